"""The border of any width against the twin in float64, a row's bits in any company, graphs."""

import functools

import pytest
import torch
from deepinfer.kernels import general_hyper_border as kernel
from hyper_border_cases import SETTINGS, assert_near, norm_weights, site_weights, streams
from row_cases import DEVICES, bits
from torch import Tensor

from deepinfer.ops import hyper, norm
from deepinfer.ops import hyper_border as twin
from deepinfer.ops.hyper_border import Border, Coefficients, SiteWeights


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("hidden", [256, 96, 1280])
def test_values(hidden: int, device: str) -> None:
    rows = 2 if device == "cpu" else 131
    generator = torch.Generator(device).manual_seed(rows)
    x_TND, out_TD, ended = streams(rows, hidden, generator)
    site, norm_D = site_weights(hidden, generator), norm_weights(hidden, generator)
    run = functools.partial(kernel.hyper_border, collapsed=True)
    prepared = kernel.prepare_hyper_site(site)
    for given, begun in ((out_TD, prepared), (None, prepared), (out_TD, None), (None, None)):
        border = run(x_TND, given, ended, begun, norm_D, *SETTINGS)
        exact_TND = x_TND.double()
        if given is not None:
            exact_TND = hyper.hyper_mix(exact_TND, given.double(), *(value.double() for value in ended[1:]))
        assert_near(border.x_TND, exact_TND, 0.003)
        exact_TND = border.x_TND.double()  # what follows is made from the rounded streams
        if begun is not None:
            exact = twin.site_coefficients(exact_TND, SiteWeights(*(value.double() for value in site)), *SETTINGS)
            assert border.coefficients is not None
            for found, expected in zip(border.coefficients, exact):
                assert_near(found, expected, 1e-6)
        assert_near(border.collapsed_TD, hyper.hyper_collapse(exact_TND, ended.read_TN.double()), 0.004)
        assert_near(border.normed_TD, norm.rms_norm(border.collapsed_TD.double(), norm_D.double(), SETTINGS[0]), 0.003)
        assert torch.equal(border.quantised_TD, norm.quantise_activation(border.normed_TD))
        if given is not None and begun is None:
            assert torch.equal(run(x_TND, given, ended, None, None, *SETTINGS).x_TND, border.x_TND)


def test_three_streams_and_nothing_to_do() -> None:
    generator = torch.Generator().manual_seed(4)
    x_TND, out_TD, ended = streams(2, 64, generator)
    norm_D = norm_weights(64, generator)
    ended = Coefficients(
        ended.read_TN[:, :3].contiguous(), ended.mixing_TMN[:, :3, :3].contiguous(), ended.write_TN[:, :3].contiguous()
    )
    site = SiteWeights(
        torch.randn(15, 192, generator=generator) * 0.1, torch.randn(15, generator=generator), torch.ones(3)
    )
    border = kernel.hyper_border(x_TND[:, :3].contiguous(), out_TD, ended, site, norm_D, *SETTINGS)
    wide = SiteWeights(*(value.double() for value in site))
    exact = twin.site_coefficients(border.x_TND.double(), wide, *SETTINGS)
    assert border.coefficients is not None and border.collapsed_TD.numel() == 0
    for found, expected in zip(border.coefficients, exact):
        assert_near(found, expected, 1e-6)
    untouched = kernel.hyper_border(x_TND[:, :3].contiguous(), None, ended, None, None, *SETTINGS)
    assert untouched.normed_TD.numel() == 0 and torch.equal(untouched.x_TND, x_TND[:, :3])


@pytest.mark.parametrize("device", DEVICES)
def test_a_row_has_the_same_bits_in_any_batch(device: str) -> None:
    """Alone or among others, early or late, and beside rows of NaN and infinity."""
    total, hidden = (6, 64) if device == "cpu" else (300, 256)
    generator = torch.Generator(device).manual_seed(5)
    x_TND, out_TD, ended = streams(total, hidden, generator)
    site, norm_D = kernel.prepare_hyper_site(site_weights(hidden, generator)), norm_weights(hidden, generator)
    whole = _values(kernel.hyper_border(x_TND, out_TD, ended, site, norm_D, *SETTINGS))
    for rows in (1, 2, 5, 64, 256):
        for at in range(0, total - rows + 1, max(1, total // 3)):
            cut = slice(at, at + rows)
            part = Coefficients(*(value[cut].contiguous() for value in ended))
            border = kernel.hyper_border(
                x_TND[cut].contiguous(), out_TD[cut].contiguous(), part, site, norm_D, *SETTINGS
            )
            assert all(torch.equal(bits(a[cut]), bits(b)) for a, b in zip(whole, _values(border)))
    x_TND[1::2], out_TD[1::2] = float("nan"), float("inf")
    border = kernel.hyper_border(x_TND, out_TD, ended, site, norm_D, *SETTINGS)
    assert all(torch.equal(bits(a[::2]), bits(b[::2])) for a, b in zip(whole, _values(border)))


def test_layouts_are_refused() -> None:
    generator = torch.Generator().manual_seed(3)
    x_TND, out_TD, ended = streams(2, 64, generator)
    site, norm_D = site_weights(64, generator), norm_weights(64, generator)
    for arguments, words in (
        ((x_TND.float(), out_TD, ended, site, norm_D), "bfloat16"),
        ((x_TND, out_TD[:1], ended, site, norm_D), "one row of output"),
        ((x_TND, out_TD, Coefficients(*(value.double() for value in ended)), site, norm_D), "coefficients are float32"),
        ((x_TND, out_TD, ended, site_weights(128, generator), norm_D), "fn is float32"),
        ((x_TND, out_TD, ended, site, None), "there is a norm"),
        ((x_TND, out_TD, ended, site, norm_D[:32]), "a weight for every column"),
    ):
        with pytest.raises(AssertionError, match=words):
            kernel.hyper_border(*arguments, *SETTINGS)


def _values(border: Border) -> list[Tensor]:
    return [border.x_TND, border.normed_TD, border.quantised_TD, *(border.coefficients or ())]
