"""Kernel tests: Triton under its interpreter where there is no GPU, and `timed`, which measures what a test has checked.

pytest tests/kernels -m gpu --time results.jsonl      on a GPU: check, then time; one JSON line a case
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, so before any is imported
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

Call = Callable[[], object]
Timed = Callable[..., None]


@pytest.fixture
def timed(request: pytest.FixtureRequest) -> Timed:
    """`timed(op, case, calls, …)` appends one line to the file of --time; without that option it does nothing.

    `calls`: one call for each copy of the inputs. `flops` (of `dtype`) and `moved_bytes` are the least that the op must do.
    `peers`: name → calls on the same inputs, or a sentence that says why the peer is absent. Further values go into the line.
    """
    path = request.config.getoption("--time")

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
        **values: object,
    ) -> None:
        if path is None:
            return
        from device_timer import floor_us, time_calls
        from record import surroundings

        present = {name: peer for name, peer in (peers or {}).items() if not isinstance(peer, str)}
        spreads = time_calls({"ours": calls, **present}, runs, graph)
        ours = spreads.pop("ours")
        floor, bound = floor_us(flops, dtype, moved_bytes)
        line = {
            "op": op,
            "case": case,
            **values,
            "median_us": round(ours.median_us, 3),
            "p10_us": round(ours.p10_us, 3),
            "p90_us": round(ours.p90_us, 3),
            "tflops": round(flops / ours.median_us / 1e6, 1),
            "gbytes_per_s": round(moved_bytes / ours.median_us / 1e3, 1),
            "floor_us": round(floor, 3),
            "bound": bound,
            "share": round(floor / ours.median_us, 4),
            "peers_us": {name: round(spread.median_us, 3) for name, spread in spreads.items()},
            "ratios": {name: round(spread.median_us / ours.median_us, 3) for name, spread in spreads.items()},
            "absent": {name: why for name, why in (peers or {}).items() if isinstance(why, str)},
            "device": torch.cuda.get_device_name(),
            "cuda": torch.version.cuda,
            **surroundings(),
        }
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")
        peer_text = "  ".join(f"{name} ×{ratio}" for name, ratio in line["ratios"].items())
        print(f"TIME {op:28s} {case:34s} {line['median_us']:9.2f} us {line['tflops']:7.1f} TF "
              f"{line['gbytes_per_s']:7.1f} GB/s  {line['share']:.1%} of {bound}  {peer_text}")  # fmt: skip

    return measure
