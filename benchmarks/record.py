"""One JSON line per measurement, with everything needed to compare it with another: versions, commit, machine, digests."""

import argparse
import json
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
KEEP = "--record"
_PACKAGES = (
    *("deepinfer", "torch", "numpy", "numba", "hydra-core", "transformers", "triton", "cuda-bindings"),
    *("deepinfer-gemm", "sgl-deep-gemm", "sgl-flash-mla", "flashinfer-python", "lmdeploy", "triton-kernels", "sglang"),
    "apache-tvm-ffi",
)


def options(doc: str | None) -> argparse.ArgumentParser:
    """A parser for a benchmark: its docstring as written, and `--record`."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(KEEP, action="store_true", help="also append the lines to benchmarks/results, which is tracked")
    return parser


def record(figure: str, **values: Any) -> dict[str, Any]:
    """Print one measurement as a JSON line; append it to results/<figure>.jsonl only where --record was typed.

    Units belong into the keys.
    """
    line = {
        "figure": figure,
        **values,
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **surroundings(),
    }
    text = json.dumps(line)
    print(text, flush=True)
    if KEEP in sys.argv[1:]:
        RESULTS.mkdir(exist_ok=True)
        with (RESULTS / f"{figure}.jsonl").open("a") as file:
            file.write(text + "\n")
    return line


def surroundings() -> dict[str, Any]:
    """Commit, package versions and machine of this run."""
    return {
        "commit": _commit(),
        "python": platform.python_version(),
        "versions": {name: found for name in _PACKAGES if (found := _version(name))},
        "machine": {"cpu": _cpu_model(), "arch": platform.machine(), "cores": _cores()},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    def git(*words: str) -> str:
        return subprocess.run(
            ("git", *words), cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        ).stdout.strip()

    dirty = "+dirty" if git("status", "--porcelain", "--", "../deepinfer", "../kernels", "../conf") else ""
    return (git("rev-parse", "--short", "HEAD") or "unknown") + dirty


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for row in info.read_text().splitlines():
            if row.startswith("model name"):
                return row.partition(":")[2].strip()
    return platform.processor() or sys.platform


def _cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
