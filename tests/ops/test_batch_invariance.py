"""Every op gives a row the same bits at every batch width, offset and thread count of one or two."""

from collections.abc import Callable, Iterator

import pytest
import torch
from op_cases import ROWS, Inputs, cases

from deepinfer.ops import Ops, native, reference

NAMES = sorted(cases(Inputs(torch.float32)))


@pytest.fixture(params=[1, 2], ids=["1_thread", "2_threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.sample(48)
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("backend", "dtype"),
    [(reference, torch.float32), (reference, torch.float64), (native, torch.float32)],
    ids=["reference-float32", "reference-float64", "native-float32"],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_row_has_the_same_bits_at_every_width_and_offset(
    name: str, backend: Callable[[], Ops], dtype: torch.dtype, full: bool, sample_seed: int
) -> None:
    run, ops = cases(Inputs(dtype))[name], backend()
    whole = run(ops, slice(0, ROWS))
    generator = torch.Generator().manual_seed(sample_seed)
    for width in range(1, ROWS + 1):
        offsets = torch.arange(ROWS - width + 1)
        if not full:
            offsets = offsets[torch.randperm(len(offsets), generator=generator)[:1]]
        for offset in offsets.tolist():
            rows = slice(offset, offset + width)
            assert torch.equal(run(ops, rows), whole[rows]), f"rows {offset} … {offset + width - 1} differ"
