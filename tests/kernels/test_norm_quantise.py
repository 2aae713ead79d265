"""RMS norm and the FP8 quantiser against their twins.

Norms sum in another order than the twin: about one bfloat16 in a thousand is its neighbour. What follows the norm is exact.
"""

import pytest
import torch
from deepinfer.kernels import triton_norm_quantise, triton_quantise
from row_cases import (
    DEVICES,
    EPS,
    assert_same_rows,
    bits,
    compiled,
    foreign,
    num_copies,
    random_rows,
    relative_error,
    rotating,
)
from row_cases import share_of_different as different
from torch import Tensor

from deepinfer.ops import norm_quantise as twins

WIDTHS = (5120, 1280, 512, 128)
GRID, CODES = {"grid": True}, {"grid": False, "codes": True}
TARGET = "≥ 80 % of copy bandwidth at ≥ 8 K tokens"


def inputs(width: int, device: str, rows: int) -> tuple[Tensor, Tensor]:
    """A slice of columns, and a weight."""
    wide = random_rows(width, rows, width + 512, device=device)
    return wide[:, 512:], random_rows(1, width, device=device, wide=False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
def test_values(width: int, device: str) -> None:
    x_TD, weight_D = inputs(width, device, 5 if device == "cpu" else 301)
    found = triton_norm_quantise.norm_quantise(x_TD, weight_D, EPS, normed=True, grid=True, codes=True)
    wanted = twins.norm_quantise(x_TD, weight_D, EPS, normed=True)
    exact = twins.norm_quantise(x_TD.double(), weight_D.double(), EPS, normed=True)
    assert relative_error(found.normed_TD, exact.normed_TD) < 2.5e-3
    assert ((found.normed_TD.double() - exact.normed_TD).abs() <= exact.normed_TD.abs() / 250).all()
    assert different(found.normed_TD, wanted.normed_TD) < 2e-3
    assert_exactly_quantised(found.normed_TD, found)
    assert relative_error(found.grid_TD, exact.normed_TD) < 0.03


def assert_exactly_quantised(x_TD: Tensor, found: twins.Quantised) -> None:
    wanted = twins.quantise(x_TD, codes=True)
    for name in ("grid_TD", "codes_TD", "powers_TG"):
        assert torch.equal(bits(getattr(found, name)), bits(getattr(wanted, name))), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("form", (GRID, CODES, {"grid": True, "normed": True}), ids=str)
def test_forms_agree(form: dict[str, bool], device: str) -> None:
    x_TD, weight_D = inputs(512, device, 9)
    some = triton_norm_quantise.norm_quantise(x_TD, weight_D, EPS, **form)
    full = triton_norm_quantise.norm_quantise(x_TD, weight_D, EPS, normed=True, grid=True, codes=True)
    for part, whole in zip(some, full):
        assert part is None or torch.equal(bits(part), bits(whole))
    assert [part is not None for part in some] == [
        form.get(name, False) for name in ("normed", "grid", "codes", "codes")
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_quantise_alone(device: str) -> None:
    x_TD = random_rows(3, 11, 1024, device=device)[:, 256:]
    x_TD[3, 5], x_TD[4, 70], x_TD[5, :32] = 3e38, 1e-30, 448 * 2.0**3
    assert_exactly_quantised(x_TD, triton_quantise.quantise(x_TD, grid=True, codes=True))


@pytest.mark.parametrize("device", DEVICES)
def test_not_a_number(device: str) -> None:
    """NaN and infinity spoil their own row, or group, and nothing else."""
    x_TD, weight_D = inputs(128, device, 40)
    clean = triton_norm_quantise.norm_quantise(x_TD, weight_D, EPS)
    x_TD[7, 3], x_TD[9, 100] = torch.nan, torch.inf
    found = triton_norm_quantise.norm_quantise(x_TD, weight_D, EPS, codes=True)
    assert found.grid_TD[7].isnan().all() and (found.powers_TG[7] == 255).all()
    assert found.grid_TD[9, 96:].isnan().all() and (found.powers_TG[9, 3] == 255).all()
    others = [row for row in range(40) if row not in (7, 9)]
    assert torch.equal(bits(found.grid_TD[others]), bits(clean.grid_TD[others]))
    alone = triton_quantise.quantise(x_TD[:, 96:], codes=True)
    assert alone.grid_TD[9].isnan().all() and (alone.powers_TG[9] == 255).all() and not alone.grid_TD[8].isnan().any()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_invariant(width: int, device: str) -> None:
    x_TD, weight_D = inputs(width, device, 7 if device == "cpu" else 300)
    x_TD[3] = torch.nan
    assert_same_rows(
        lambda rows: triton_norm_quantise.norm_quantise(x_TD[rows], weight_D, EPS, normed=True, grid=True, codes=True),
        len(x_TD),
        device,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("form", (GRID, CODES), ids=("grid", "codes"))
@pytest.mark.parametrize("width, tokens", [(5120, 8192), (1280, 32768), (512, 65536), (128, 262144)])
def test_speed(width: int, tokens: int, form: dict[str, bool], timed, request: pytest.FixtureRequest) -> None:
    moved = tokens * width * (4 if form is GRID else 3 + 1 / 32)
    rows = [random_rows(i, tokens, width, device="cuda", wide=False) for i in range(num_copies(moved))]
    weight_D = random_rows(99, width, device="cuda", wide=False)
    found = triton_norm_quantise.norm_quantise(rows[0], weight_D, EPS, **form)
    wanted = twins.norm_quantise(rows[0][-999:], weight_D, EPS, **form)
    assert all(one is None or different(one[-999:], other) < 2e-3 for one, other in zip(found, wanted))
    main = width == 5120 and form is GRID
    timed(
        "norm_quantise", f"{tokens} x {width} to {'grid' if form is GRID else 'codes'}",
        rotating(len(rows), lambda i: triton_norm_quantise.norm_quantise(rows[i], weight_D, EPS, **form)),
        moved_bytes=moved, variant="invariant", target=TARGET if width == 5120 else "",
        peers=compiled(
            twins.norm_quantise, len(rows), lambda twin, i: twin(rows[i], weight_D, EPS, **form), request, main
        )
        | foreign("norm", [(x_TD, weight_D, EPS) for x_TD in rows], request, main),
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("form", (GRID, CODES), ids=("grid", "codes"))
def test_speed_alone(form: dict[str, bool], timed) -> None:
    tokens, width = 8192, 8192
    moved = tokens * width * (4 if form is GRID else 3 + 1 / 32)
    rows = [random_rows(i, tokens, width, device="cuda", wide=False) for i in range(2)]
    found, wanted = triton_quantise.quantise(rows[0], **form), twins.quantise(rows[0][-999:], **form)
    assert all(one is None or torch.equal(bits(one[-999:]), bits(other)) for one, other in zip(found, wanted))
    timed(
        "quantise", f"{tokens} x {width} to {'grid' if form is GRID else 'codes'}",
        rotating(2, lambda i: triton_quantise.quantise(rows[i], **form)), moved_bytes=moved, variant="invariant",
    )  # fmt: skip
