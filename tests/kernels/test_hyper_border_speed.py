"""Times of the border between hyper-connection sites; test_hyper_border.py checks it.

Apart, because what is timed is a layer, two borders with sites as cold as a model finds them, beside a peer written for it.
"""

import functools
from typing import Any

import pytest
import torch
from deepinfer.kernels import cuda_hyper_border as kernel
from hyper_border_cases import HIDDEN, SETTINGS, assert_near, norm_weights, site_weights, streams
from row_cases import foreign
from torch import Tensor

from deepinfer.ops.hyper_border import Border, Coefficients, SiteWeights

# streams read and written, output read, normed and quantised rows written
BYTES_PER_ROW = 2 * HIDDEN * (4 + 4 + 1 + 1 + 1)
# both sites of a layer, norm included, microseconds; an H200 with SGLang's TileLang kernels. NVIDIA aiconfigurator-core 0.12.0,
# h200_sxm tables: hidden 4096 and 7168 are published, 5120 is interpolated between them
PUBLISHED_US = {1: (23, 27), 256: (34, 45), 4096: (330, 552), 8192: (627, 1060)}


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "warm"), [(1, False), (1, True), *((rows, False) for rows in (16, 32, 64, 256, 1024, 4096, 8192))]
)
def test_speed(rows: int, warm: bool, timed: Any, request: pytest.FixtureRequest) -> None:
    """Two borders: both sites of a layer, each with its norm and the FP8 grid. Their fn comes from memory, as in a model of
    43 layers; where it is `warm`, from the L2 cache. The streams of few rows are in the cache, as a sublayer leaves them.
    """
    generator = torch.Generator("cuda").manual_seed(6)
    num_copies = max(2, min(8, int(4e8 / (rows * BYTES_PER_ROW))))
    num_layers = num_copies if warm or rows > 1024 else 43
    sites = [site_weights(HIDDEN, generator) for _ in range(2 * (1 if warm else num_layers))]
    prepared, norm_D = [kernel.prepare_hyper_site(site) for site in sites], norm_weights(HIDDEN, generator)
    copies = [streams(rows, HIDDEN, generator) for _ in range(num_copies)]

    def both(op: Any, weights: list[Any], i: int) -> None:
        x_TND, out_TD, ended = copies[i % num_copies]
        first = op(x_TND, out_TD, ended, weights[2 * i % len(weights)], norm_D, *SETTINGS)
        op(first.x_TND, out_TD, first.coefficients, weights[(2 * i + 1) % len(weights)], norm_D, *SETTINGS)

    peers: dict[str, list[Any] | str] = {}
    if rows in (1, 4096) and not warm:
        found = kernel.hyper_border(*copies[0], prepared[0], norm_D, *SETTINGS)
        assert_near(_torch_border(*copies[0], sites[0], norm_D, *SETTINGS).normed_TD, found.normed_TD.double(), 0.01)
        peers["torch, op by op"] = [functools.partial(both, _torch_border, sites, i) for i in range(num_layers)]
    parts = [
        (*copies[i // 2 % num_copies][:2], sites[i % len(sites)].fn_CX, *copies[i // 2 % num_copies][2])
        for i in range(2 * num_layers)
    ]
    peers |= foreign("hyper_sites", parts, request, rows in (1, 256, 4096, 8192) and not warm)
    published = dict(zip(("H=4096", "H=7168"), PUBLISHED_US[rows])) if rows in PUBLISHED_US else {}
    timed(
        "hyper_border",
        f"two sites, {rows} rows" + ", fn in the L2 cache" * warm,
        [functools.partial(both, kernel.hyper_border, prepared, i) for i in range(num_layers)],
        moved_bytes=2 * (rows * BYTES_PER_ROW + 24 * 4 * HIDDEN * 4),
        peers=peers,
        runs=30,
        variant="invariant",
        target={1: "≤ 14 µs", 4096: "≤ 300 µs"}.get(rows, "") * (not warm),
        tilelang_published_us=published,
    )


@pytest.mark.gpu
@pytest.mark.parametrize("normed", [True, False])
def test_speed_where_no_site_begins(normed: bool, timed: Any) -> None:
    """After the last site: mix, collapse, norm. Before an engram: mix alone."""
    generator = torch.Generator("cuda").manual_seed(9)
    copies = [streams(4096, HIDDEN, generator) for _ in range(2)]
    norm_D = norm_weights(HIDDEN, generator) if normed else None
    run = functools.partial(kernel.hyper_border, quantise=False)
    timed(
        "hyper_border",
        f"{'mix and norm' if normed else 'mix alone'}, 4096 rows",
        [functools.partial(run, *copy, None, norm_D, *SETTINGS) for copy in copies],
        moved_bytes=4096 * 2 * HIDDEN * (4 + 4 + 1 + normed),
        runs=30,
        variant="invariant",
    )


def _torch_border(
    x_TND: Tensor, out_TD: Tensor, ended: Coefficients, begun: SiteWeights, norm_D: Tensor, *settings: Any
) -> Border:
    """The twin with torch's own product, sums and casts: operations that a graph can record."""
    norm_eps, eps, iterations = settings
    wide_TND = torch.einsum("tmn,tmd->tnd", ended.mixing_TMN, x_TND.float())
    x_TND = (wide_TND + ended.write_TN[..., None] * out_TD.float()[:, None]).bfloat16()
    z_TX = x_TND.flatten(1).float()
    raw_TC = (z_TX @ begun.fn_CX.t()) * torch.rsqrt(z_TX.square().mean(-1, keepdim=True) + norm_eps)
    scale_C = torch.cat([scale.expand(count) for scale, count in zip(begun.scale_3, (4, 4, 16))])
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
    groups_TGC = normed_TD.float().unflatten(1, (-1, 32))
    scale_TG1 = torch.exp2(torch.ceil(torch.log2(groups_TGC.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448)))
    quantised_TD = ((groups_TGC / scale_TG1).to(torch.float8_e4m3fn).float() * scale_TG1).flatten(1).bfloat16()
    return Border(x_TND, collapsed_TD, normed_TD, quantised_TD, coefficients)
