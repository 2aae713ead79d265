"""benchmarks/kernel_sizes.py: its cases of single rows, made and called once with the twins on a CPU."""

import re

import kernel_row_sizes
import kernel_sizes
import pytest
import torch
from kernel_cases import KINDS

from deepinfer.ops.device import twins

SMALL = {
    "DEVICE": "cpu",
    "ROWS": (2,),
    "QUERIES": (2,),
    "SCANS": ((2, 2, 256),),
    "SEEN": 512,
    "CANDIDATES": 128,
    "SCANNED": 512,
    "CANDIDATE_ROWS": (1,),
    "SAMPLED": (2,),
    "SEQUENCES": (2,),
    "TABLE_ROWS": 50,
    "VOCABULARY": 4096,
    "ROTATED_BYTES": 1.0,
}


@pytest.mark.parametrize("name", kernel_row_sizes.CASES)
def test_cases_of_rows_can_be_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for constant, value in SMALL.items():
        monkeypatch.setattr(kernel_row_sizes, constant, value)
    made = list(kernel_row_sizes.CASES[name](twins()))
    assert made
    with torch.inference_mode():
        for timing in made:
            timing.calls[0]()
            assert timing.moved_bytes > 0


def test_every_case_is_of_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its timing would be recorded and never read."""
    for constant, value in SMALL.items():
        monkeypatch.setattr(kernel_row_sizes, constant, value)
    for name in kernel_row_sizes.CASES:
        for timing in kernel_row_sizes.CASES[name](twins()):
            text = f"{timing.op}| {timing.case}"
            assert [kind for kind, pattern in KINDS.items() if re.fullmatch(pattern, text)], text
    assert kernel_row_sizes.CASES.keys() <= kernel_sizes.CASES.keys()
