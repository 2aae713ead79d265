"""The border between hyper-connection sites: against float64, and the same bits whatever the batch.

CUDA C++ has no interpreter, so a CPU checks the twin, the prepared weights and the refusals; the rest is GPU-only.
"""

import functools

import pytest
import torch
from deepinfer.kernels import cuda_hyper_border as kernel
from hyper_border_cases import HIDDEN, SETTINGS, assert_near, norm_weights, site_weights, streams
from torch import Tensor

from deepinfer.ops import hyper, norm
from deepinfer.ops import hyper_border as twin
from deepinfer.ops.hyper_border import Border, Coefficients, SiteWeights


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
    mixed = twin.hyper_border(x_TND, out_TD, ended, None, None, *SETTINGS)
    assert first.x_TND is x_TND and last.coefficients is None and mixed.normed_TD.numel() == 0
    assert torch.equal(last.normed_TD, border.normed_TD)
    assert torch.equal(last.x_TND, mixed_TND) and torch.equal(mixed.x_TND, mixed_TND)


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
    stored, norm_D = site_weights(1024, generator), norm_weights(1024, generator)
    site = kernel.prepare_hyper_site(stored)
    wider = kernel.prepare_hyper_site(site_weights(2048, generator))
    for arguments, words in (
        ((x_TND.float(), out_TD, ended, site, norm_D), "bf16"),
        ((x_TND[..., :1000], None, ended, site, norm_D), "1,024 to 5,120"),
        ((x_TND[:, :3], out_TD, ended, site, norm_D), "four streams"),
        ((x_TND, out_TD[:1], ended, site, norm_D), "one row of output"),
        ((x_TND, out_TD, Coefficients(*(value.double() for value in ended)), site, norm_D), "coefficients are f32"),
        ((x_TND, out_TD, ended, wider, norm_D), "another width"),
        ((x_TND, out_TD, ended, stored, norm_D), "go through prepare_hyper_site"),
        ((x_TND, out_TD, ended, site, None), "there is a norm"),
        ((x_TND, out_TD, ended, site, norm_D[:32]), "a weight for every column"),
    ):
        with pytest.raises(AssertionError, match=words):
            kernel.hyper_border(*arguments, *SETTINGS)
    for broken, words in (
        (stored._replace(fn_CX=stored.fn_CX[:20]), "24 outputs"),
        (stored._replace(base_C=stored.base_C[:20]), "24 bases"),
    ):
        with pytest.raises(AssertionError, match=words):
            kernel.prepare_hyper_site(broken)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "hidden", "narrow"),
    [
        *((1, HIDDEN, True), (7, HIDDEN, True), (29, HIDDEN, True), (29, 4096, True), (29, 1024, True)),
        *((1, HIDDEN, False), (77, HIDDEN, False), (1111, HIDDEN, False), (77, 4096, False), (77, 1024, False)),
    ],
)
def test_values(rows: int, hidden: int, narrow: bool) -> None:
    generator = torch.Generator("cuda").manual_seed(rows)
    x_TND, out_TD, ended = streams(rows, hidden, generator)
    site, norm_D = site_weights(hidden, generator), norm_weights(hidden, generator)
    run = functools.partial(kernel.hyper_border, collapsed=True, narrow=narrow)
    prepared = kernel.prepare_hyper_site(site)
    for given, begun in ((out_TD, prepared), (None, prepared), (out_TD, None), (None, None)):
        _poison(x_TND)
        border = run(x_TND, given, ended, begun, norm_D, *SETTINGS)
        exact_TND = x_TND.double()
        if given is not None:
            exact_TND = hyper.hyper_mix(exact_TND, given.double(), *(value.double() for value in ended[1:]))
        assert_near(border.x_TND, exact_TND, 0.003)
        exact_TND = border.x_TND.double()  # what follows is made from the rounded streams
        if begun is not None:
            wide = SiteWeights(*(value.double() for value in site))
            exact = twin.site_coefficients(exact_TND, wide, *SETTINGS)
            assert border.coefficients is not None
            for found, expected in zip(border.coefficients, exact):
                assert_near(found, expected, 1e-6)
        assert_near(border.collapsed_TD, hyper.hyper_collapse(exact_TND, ended.read_TN.double()), 0.004)
        assert_near(border.normed_TD, norm.rms_norm(border.collapsed_TD.double(), norm_D.double(), SETTINGS[0]), 0.003)
        assert torch.equal(border.quantised_TD, norm.quantise_activation(border.normed_TD))
        if given is not None and begun is None:
            _poison(x_TND)
            assert torch.equal(run(x_TND, given, ended, None, None, *SETTINGS).x_TND, border.x_TND)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 7, 64, 256, 700])
def test_a_row_has_the_same_bits_in_any_batch(rows: int) -> None:
    """Alone or among others, early or late, by either schedule, and beside rows of NaN and infinity."""
    generator = torch.Generator("cuda").manual_seed(5)
    x_TND, out_TD, ended = streams(1800, HIDDEN, generator)
    site, norm_D = kernel.prepare_hyper_site(site_weights(HIDDEN, generator)), norm_weights(HIDDEN, generator)
    whole = _values(kernel.hyper_border(x_TND, out_TD, ended, site, norm_D, *SETTINGS))
    for narrow in (True, False) if rows <= kernel.NARROW_LIMIT else (False,):
        for at in (0, 5, 1029):
            cut = slice(at, at + rows)
            part = Coefficients(*(value[cut].contiguous() for value in ended))
            border = kernel.hyper_border(
                x_TND[cut].contiguous(), out_TD[cut].contiguous(), part, site, norm_D, *SETTINGS, narrow=narrow
            )
            assert all(torch.equal(a[cut], b) for a, b in zip(whole, _values(border)))
        spoilt_TND, spoilt_TD, part = (
            x_TND[:rows].clone(),
            out_TD[:rows].clone(),
            Coefficients(*(v[:rows] for v in ended)),
        )
        spoilt_TND[1::2], spoilt_TD[1::2] = float("nan"), float("inf")
        border = kernel.hyper_border(spoilt_TND, spoilt_TD, part, site, norm_D, *SETTINGS, narrow=narrow)
        assert all(torch.equal(a[:rows:2], b[::2]) for a, b in zip(whole, _values(border)))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [3, 200])
def test_a_graph_replays_the_same_bits(rows: int) -> None:
    """Two borders in a graph, one after the other, replayed between ordinary launches of the same sites."""
    generator = torch.Generator("cuda").manual_seed(7)
    x_TND, out_TD, ended = streams(rows, HIDDEN, generator)
    sites = [kernel.prepare_hyper_site(site_weights(HIDDEN, generator)) for _ in range(2)]
    norm_D = norm_weights(HIDDEN, generator)

    def both() -> list[Tensor]:
        first = kernel.hyper_border(x_TND, out_TD, ended, sites[0], norm_D, *SETTINGS)
        assert first.coefficients is not None
        second = kernel.hyper_border(first.x_TND, out_TD, first.coefficients, sites[1], norm_D, *SETTINGS)
        return [*_values(first), *_values(second)]

    expected = both()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both()
    for _ in range(3):
        for value in found:
            value.fill_(float("nan"))
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(expected, found))
        assert all(torch.equal(a, b) for a, b in zip(expected, both()))


@pytest.mark.gpu
def test_launches_of_two_streams_do_not_wait_for_one_another_for_ever() -> None:
    generator = torch.Generator("cuda").manual_seed(8)
    inputs = streams(256, HIDDEN, generator)
    sites = [kernel.prepare_hyper_site(site_weights(HIDDEN, generator)) for _ in range(2)]
    norm_D = norm_weights(HIDDEN, generator)
    expected = [_values(kernel.hyper_border(*inputs, site, norm_D, *SETTINGS)) for site in sites]
    torch.cuda.synchronize()
    side, found = [torch.cuda.Stream() for _ in sites], []
    for turn in range(60):
        with torch.cuda.stream(side[turn % 2]):
            found.append(_values(kernel.hyper_border(*inputs, sites[turn % 2], norm_D, *SETTINGS)))
    torch.cuda.synchronize()
    for turn, values in enumerate(found):
        assert all(torch.equal(a, b) for a, b in zip(expected[turn % 2], values))


def _values(border: Border) -> list[Tensor]:
    return [border.x_TND, border.normed_TD, border.quantised_TD, *(border.coefficients or ())]


def _poison(like: Tensor) -> None:
    """Leaves NaN in the memory that the next outputs are given."""
    kept = [torch.full_like(like[:, 0], float("nan")) for _ in range(4)]
    kept += [torch.full_like(like, float("nan")), torch.full((like.shape[0] * 64,), float("nan"), device=like.device)]
    torch.cuda.synchronize()
