"""Kernel tests: Triton under its interpreter where there is no GPU, and `timed`, which measures what a test has checked.

pytest tests/kernels -m gpu --time results.jsonl      on a GPU: check, then time; one JSON line a case
"""

import json
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before any is imported
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

Call = Callable[[], object]
Timed = Callable[..., None]
PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes whether the test itself passed: lines of a test that fails after it timed something are not written."""
    report = yield
    if call.when == "call":
        item.stash[PASSED] = report.passed
    return report


@pytest.fixture
def timed(request: pytest.FixtureRequest) -> Iterator[Timed]:
    """`timed(op, case, calls, …)` gives one line to the file of --time if the test passes; without the option, nothing.

    `calls`: one call for each copy of the inputs. `flops` (of `dtype`) and `moved_bytes` are the least that the op must do;
    `host_floor_us`, where given, is the least that the bus to the host allows, and then the floor. `peers`: name → calls on the
    same inputs, or a sentence that says why the peer is absent. Further values go into the line.
    """
    path = request.config.getoption("--time")
    lines: list[dict[str, Any]] = []
    test = request.node.nodeid.partition("[")[0].rpartition("/")[2]

    def measure(
        op: str,
        case: str,
        calls: Sequence[Call],
        *,
        flops: float = 0.0,
        dtype: str = "bf16",
        moved_bytes: float = 0.0,
        peers: Mapping[str, Sequence[Call] | str] | None = None,
        graph: bool = True,
        runs: int = 50,
        **values: Any,
    ) -> None:
        if path is None:
            return
        from device_timer import time_calls
        from kernel_lines import line_of

        present = {name: peer for name, peer in (peers or {}).items() if not isinstance(peer, str)}
        absent = {name: why for name, why in (peers or {}).items() if isinstance(why, str)}
        spreads = time_calls({"ours": calls, **present}, runs, graph)
        line = line_of(op, case, spreads, absent, flops, dtype, moved_bytes, {**values, "test": test})
        lines.append(line)
        peer_text = "  ".join(f"{name} ×{ratio}" for name, ratio in line["ratios"].items())
        print(f"TIME {op:28s} {case:34s} {line['median_us']:9.2f} us {line['tflops']:7.1f} TF "
              f"{line['gbytes_per_s']:7.1f} GB/s  {line['share']:.1%} of {line['bound']}  {peer_text}")  # fmt: skip

    yield measure
    if lines and request.node.stash.get(PASSED, False):
        with Path(path).open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
