"""The border between hyper-connection sites: against float64, the same bits whatever the batch, and timed.

CUDA C++ has no interpreter, so a CPU checks the twin, the prepared weights and the refusals; the rest is GPU-only.
"""

import functools
from typing import Any

import pytest
import torch
from deepinfer.kernels import cuda_hyper_border as kernel
from torch import Tensor

from deepinfer.ops import hyper, norm
from deepinfer.ops import hyper_border as twin
from deepinfer.ops.hyper_border import Border, Coefficients, SiteWeights

SETTINGS = (1e-20, 1e-6, 20)  # norm_eps, eps, iterations
HIDDEN = 5120
BYTES_PER_ROW = (
    2 * HIDDEN * (4 + 4 + 1 + 1 + 1)
)  # streams read and written, output read, normed and quantised rows written
# both sites of a layer, norm included, microseconds; an H200 with SGLang's TileLang kernels. NVIDIA aiconfigurator-core 0.12.0,
# h200_sxm tables: hidden 4096 and 7168 are published, 5120 is interpolated between them
PUBLISHED_US = {1: (23, 27), 256: (34, 45), 4096: (330, 552), 8192: (627, 1060)}


def site_weights(hidden: int, generator: torch.Generator) -> SiteWeights:
    """fn gives raw coefficients of about unit size; scales from 0.5 to 1.5."""
    random = functools.partial(torch.randn, device=generator.device, generator=generator)
    scale_3 = torch.rand(3, device=generator.device, generator=generator) + 0.5
    return SiteWeights(random(24, 4 * hidden) * (4 * hidden) ** -0.5, random(24) * 0.5, scale_3)


def streams(rows: int, hidden: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Coefficients]:
    """Streams whose size varies from row to row, a sublayer's output, and the coefficients of the site that ends."""
    random = functools.partial(torch.randn, device=generator.device, generator=generator)
    x_TND = (random(rows, 4, hidden) * torch.exp(random(rows, 1, 1))).bfloat16()
    mixing_TMN = torch.softmax(random(rows, 4, 4), -1)
    ended = Coefficients(torch.sigmoid(random(rows, 4)), mixing_TMN, 2 * torch.sigmoid(random(rows, 4)))
    return x_TND, random(rows, hidden).bfloat16(), ended


def norm_weights(hidden: int, generator: torch.Generator) -> Tensor:
    return (torch.rand(hidden, device=generator.device, generator=generator) + 0.5).bfloat16()


def test_the_twin_is_the_ops_one_after_another() -> None:
    generator = torch.Generator().manual_seed(1)
    x_TND, out_TD, ended = streams(3, 64, generator)
    site, norm_D = site_weights(64, generator), norm_weights(64, generator)
    border = twin.hyper_border(x_TND, out_TD, ended, site, norm_D, *SETTINGS)
    mixed_TND = hyper.hyper_mix(x_TND, out_TD, ended.mixing_TMN, ended.write_TN)
    assert torch.equal(border.x_TND, mixed_TND)
    assert torch.equal(border.collapsed_TD, hyper.hyper_collapse(mixed_TND, ended.read_TN))
    assert torch.equal(border.normed_TD, norm.rms_norm(border.collapsed_TD, norm_D, SETTINGS[0]))
    assert border.coefficients is not None
    torch.testing.assert_close(border.coefficients.mixing_TMN.sum(1), torch.ones(3, 4), atol=1e-4, rtol=0)
    first = twin.hyper_border(x_TND, None, ended, site, norm_D, *SETTINGS)
    last = twin.hyper_border(x_TND, out_TD, ended, None, norm_D, *SETTINGS)
    assert first.x_TND is x_TND and last.coefficients is None
    assert torch.equal(last.normed_TD, border.normed_TD)


@pytest.mark.parametrize("hidden", [1024, 2048])
def test_prepared_weights_add_up_to_fn(hidden: int) -> None:
    site = site_weights(hidden, torch.Generator().manual_seed(2))
    parts = kernel.prepare_hyper_site(site).parts
    by_lane = parts.double().view(hidden // 32, 4, 3, 3, 8, 4, 8)  # unit, stream, part, tile, output, lane, column
    fn_CX = by_lane.sum(2).permute(2, 3, 1, 0, 4, 5).reshape(24, 4 * hidden)
    assert torch.equal(fn_CX, site.fn_CX.double())


def test_layouts_are_refused() -> None:
    generator = torch.Generator().manual_seed(3)
    x_TND, out_TD, ended = streams(2, 1024, generator)
    site, norm_D = kernel.prepare_hyper_site(site_weights(1024, generator)), norm_weights(1024, generator)
    wider = kernel.prepare_hyper_site(site_weights(2048, generator))
    for arguments, words in (
        ((x_TND.float(), out_TD, ended, site, norm_D), "bf16"),
        ((x_TND[..., :1000], None, ended, site, norm_D), "1,024 to 5,120"),
        ((x_TND[:, :3], out_TD, ended, site, norm_D), "four streams"),
        ((x_TND, out_TD[:1], ended, site, norm_D), "one row of output"),
        ((x_TND, out_TD, Coefficients(*(value.double() for value in ended)), site, norm_D), "coefficients are f32"),
        ((x_TND, out_TD, ended, wider, norm_D), "another width"),
    ):
        with pytest.raises(AssertionError, match=words):
            kernel.hyper_border(*arguments, *SETTINGS)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.parametrize("narrow", [True, False])
@pytest.mark.parametrize(
    ("rows", "hidden"), [(1, HIDDEN), (7, HIDDEN), (77, HIDDEN), (513, HIDDEN), (77, 4096), (77, 1024)]
)
def test_values(rows: int, hidden: int, narrow: bool) -> None:
    generator = torch.Generator("cuda").manual_seed(rows)
    x_TND, out_TD, ended = streams(rows, hidden, generator)
    site, norm_D = site_weights(hidden, generator), norm_weights(hidden, generator)
    run = functools.partial(kernel.hyper_border, collapsed=True, narrow=narrow)
    prepared = kernel.prepare_hyper_site(site)
    for given, begun in ((out_TD, prepared), (None, prepared), (out_TD, None)):
        _poison(x_TND)
        border = run(x_TND, given, ended, begun, norm_D, *SETTINGS)
        exact_TND = x_TND.double()
        if given is not None:
            exact_TND = hyper.hyper_mix(exact_TND, given.double(), *(value.double() for value in ended[1:]))
        if begun is not None:
            _near(border.x_TND, exact_TND, 0.003)
            exact_TND = border.x_TND.double()  # what follows is made from the rounded streams
            wide = SiteWeights(*(value.double() for value in site))
            exact = twin.site_coefficients(exact_TND, wide, *SETTINGS)
            assert border.coefficients is not None
            for found, expected in zip(border.coefficients, exact):
                _near(found, expected, 1e-6)
        _near(border.collapsed_TD, hyper.hyper_collapse(exact_TND, ended.read_TN.double()), 0.004)
        _near(border.normed_TD, norm.rms_norm(border.collapsed_TD.double(), norm_D.double(), SETTINGS[0]), 0.003)
        assert torch.equal(border.quantised_TD, norm.quantise_activation(border.normed_TD))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 7, 64, 256, 700])
def test_a_row_has_the_same_bits_in_any_batch(rows: int) -> None:
    """Alone or among others, early or late, by either schedule, and beside rows of NaN and infinity."""
    generator = torch.Generator("cuda").manual_seed(5)
    x_TND, out_TD, ended = streams(1800, HIDDEN, generator)
    site, norm_D = kernel.prepare_hyper_site(site_weights(HIDDEN, generator)), norm_weights(HIDDEN, generator)
    whole = _values(kernel.hyper_border(x_TND, out_TD, ended, site, norm_D, *SETTINGS))
    for narrow in (True, False):
        for at in (0, 5, 1029):
            cut = slice(at, at + rows)
            part = Coefficients(*(value[cut].contiguous() for value in ended))
            border = kernel.hyper_border(
                x_TND[cut].contiguous(), out_TD[cut].contiguous(), part, site, norm_D, *SETTINGS, narrow=narrow
            )
            assert all(torch.equal(a[cut], b) for a, b in zip(whole, _values(border)))
        spoilt_TND, spoilt_TD = x_TND.clone(), out_TD.clone()
        spoilt_TND[1::2], spoilt_TD[1::2] = float("nan"), float("inf")
        border = kernel.hyper_border(spoilt_TND, spoilt_TD, ended, site, norm_D, *SETTINGS, narrow=narrow)
        assert all(torch.equal(a[::2], b[::2]) for a, b in zip(whole, _values(border)))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 16, 64, 256, 1024, 4096, 8192])
def test_speed(rows: int, timed: Any) -> None:
    """Two borders: both sites of a layer, each with its norm and the FP8 grid. Few rows find their fn in the L2 cache."""
    generator = torch.Generator("cuda").manual_seed(6)
    num_copies = max(2, min(8, int(4e8 / (rows * BYTES_PER_ROW))))
    sites = [site_weights(HIDDEN, generator) for _ in range(2 * num_copies)]
    prepared, norm_D = [kernel.prepare_hyper_site(site) for site in sites], norm_weights(HIDDEN, generator)
    copies = [streams(rows, HIDDEN, generator) for _ in range(num_copies)]

    def both(op: Any, weights: list[Any], i: int) -> None:
        x_TND, out_TD, ended = copies[i]
        first = op(x_TND, out_TD, ended, weights[2 * i], norm_D, *SETTINGS)
        op(first.x_TND, out_TD, first.coefficients, weights[2 * i + 1], norm_D, *SETTINGS)

    peers: dict[str, list[Any] | str] = {}
    if rows in (1, 4096):
        found = kernel.hyper_border(*copies[0], prepared[0], norm_D, *SETTINGS)
        _near(_torch_border(*copies[0], sites[0], norm_D, *SETTINGS).normed_TD, found.normed_TD.double(), 0.01)
        peers["torch, op by op"] = [functools.partial(both, _torch_border, sites, i) for i in range(num_copies)]
    published = dict(zip(("H=4096", "H=7168"), PUBLISHED_US[rows])) if rows in PUBLISHED_US else {}
    timed(
        "hyper_border",
        f"two sites, {rows} rows",
        [functools.partial(both, kernel.hyper_border, prepared, i) for i in range(num_copies)],
        moved_bytes=2 * (rows * BYTES_PER_ROW + 24 * 4 * HIDDEN * 4),
        peers=peers,
        runs=30,
        variant="invariant",
        target={1: "≤ 14 µs", 4096: "≤ 300 µs"}.get(rows, ""),
        tilelang_published_us=published,
    )


def _torch_border(
    x_TND: Tensor, out_TD: Tensor, ended: Coefficients, begun: SiteWeights, norm_D: Tensor, *settings: Any
) -> Border:
    """The twin with torch's own product and sums."""
    norm_eps, eps, iterations = settings
    wide_TND = torch.einsum("tmn,tmd->tnd", ended.mixing_TMN, x_TND.float())
    x_TND = (wide_TND + ended.write_TN[..., None] * out_TD.float()[:, None]).bfloat16()
    z_TX = x_TND.flatten(1).float()
    raw_TC = (z_TX @ begun.fn_CX.t()) * torch.rsqrt(z_TX.square().mean(-1, keepdim=True) + norm_eps)
    scale_C = begun.scale_3.repeat_interleave(torch.tensor([4, 4, 16], device=x_TND.device), output_size=24)
    scaled_TC = raw_TC * scale_C + begun.base_C
    mixing = torch.softmax(scaled_TC[:, 8:].unflatten(1, (4, 4)), -1) + eps
    mixing = mixing / (mixing.sum(1, keepdim=True) + eps)
    for _ in range(iterations - 1):
        mixing = mixing / (mixing.sum(2, keepdim=True) + eps)
        mixing = mixing / (mixing.sum(1, keepdim=True) + eps)
    coefficients = Coefficients(scaled_TC[:, :4].sigmoid() + eps, mixing, 2 * scaled_TC[:, 4:8].sigmoid())
    collapsed_TD = (x_TND.float() * ended.read_TN[..., None]).sum(1).bfloat16()
    wide_TD = collapsed_TD.float()
    rms_T1 = torch.rsqrt(wide_TD.square().mean(-1, keepdim=True) + norm_eps)
    normed_TD = (wide_TD * rms_T1 * norm_D.float()).bfloat16()
    return Border(x_TND, collapsed_TD, normed_TD, norm.quantise_activation(normed_TD), coefficients)


def _values(border: Border) -> list[Tensor]:
    return [border.x_TND, border.normed_TD, border.quantised_TD, *(border.coefficients or ())]


def _near(found: Tensor, expected: Tensor, bound: float) -> None:
    """In norm within the bound; each number within eight bounds of its own size or of its row's mean size."""
    error, size = (found.double() - expected).abs(), expected.square().mean(-1, keepdim=True).sqrt()
    assert error.norm() <= bound * expected.norm(), f"{error.norm() / expected.norm():.2e} in norm"
    worst = (error / torch.maximum(expected.abs(), size)).max()
    assert worst <= 8 * bound, f"one number is off by {worst:.2e}"


def _poison(like: Tensor) -> None:
    """Leaves NaN in the memory that the next outputs are given."""
    kept = [torch.full_like(like[:, 0], float("nan")) for _ in range(4)]
    kept += [torch.full_like(like, float("nan")), torch.full((like.shape[0] * 64,), float("nan"), device=like.device)]
    torch.cuda.synchronize()
