"""lmdeploy's Triton kernels as peers, without lmdeploy: its package wants an engine's worth of others, its kernels do not.

The files are found where lmdeploy is installed; packages above them are entered without running their __init__.

Legend: T rows · K inputs · N outputs, or streams of hyper-connections · D hidden · P rows sorted by expert · J entries.
"""

import importlib
import importlib.machinery
import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType

import torch
from peers_call import Call, peer
from peers_layouts import column_major, fp8_blocks, fp8_rows
from peers_torch import same_choice
from torch import Tensor

from deepinfer.formats.fp8 import dequantise_fp8_blocks, quantise_fp8_rows
from deepinfer.formats.scales import decode_e8m0

KERNELS = "lmdeploy.pytorch.kernels.cuda"
PACKAGES = ("lmdeploy", "lmdeploy.pytorch", "lmdeploy.pytorch.kernels", KERNELS, f"{KERNELS}.moe", f"{KERNELS}.dsv4")
EXACT, FP8_AGAIN = 0.005, 0.06
HERE = "peers_lmdeploy"  # `peer` imports this module, and `kernels` the foreign file


def kernels(name: str) -> ModuleType:
    """One file of lmdeploy's CUDA kernels. Raises ModuleNotFoundError where lmdeploy is not installed."""
    found = importlib.machinery.PathFinder.find_spec("lmdeploy")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("lmdeploy is not installed: bash benchmarks/peer_environment.sh")
    root = Path(found.submodule_search_locations[0])
    for package in PACKAGES:
        if package not in sys.modules:
            entered = ModuleType(package)
            entered.__path__ = [str(root.joinpath(*package.split(".")[1:]))]
            sys.modules[package] = entered
    if "lmdeploy.utils" not in sys.modules:  # of it the kernels use the logger alone
        tools = ModuleType("lmdeploy.utils")
        tools.get_logger = logging.getLogger  # type: ignore[attr-defined]
        sys.modules["lmdeploy.utils"] = tools
    return importlib.import_module(f"{KERNELS}.{name}")


def fp8_activation(x_TK: Tensor) -> tuple[Tensor, Tensor]:
    """E4M3 codes and float32 scales of 32 columns each; exact for numbers that lie on the FP8 grid."""
    codes, scale = quantise_fp8_rows(x_TK)
    return codes, decode_e8m0(scale, torch.float32)


@peer(HERE, package="lmdeploy", tolerance=FP8_AGAIN)
def lmdeploy_fp8(_: ModuleType, x_TK: Tensor, codes_NK: Tensor, scale: Tensor) -> Call:
    """fp8_gemm_nt in Gluon, the same operands as DeepGEMM's: lossy."""
    product = kernels("blocked_fp8_gemm_gluon").fp8_gemm_nt
    codes, x_scale = fp8_rows(x_TK)
    x, weight = (codes, column_major(x_scale)), fp8_blocks(dequantise_fp8_blocks(codes_NK, scale))
    out_TN = x_TK.new_full((x_TK.shape[0], codes_NK.shape[0]), torch.nan)

    def call() -> Tensor:
        product(x, weight, out_TN, None)
        return out_TN

    return call


@peer(HERE, package="lmdeploy", tolerance=EXACT)
def lmdeploy_fp4_experts(_: ModuleType, x_PK: Tensor, counts_E: Tensor, codes: Tensor, scale: Tensor) -> Call:
    """fused_moe_v4_fp4_kernel_launcher: FP8 rows sorted by expert against MXFP4 weights, the checkpoint's own numbers."""
    launch = kernels("moe.v4_fp4").fused_moe_v4_fp4_kernel_launcher
    x, x_scale = fp8_activation(x_PK)
    rows = x_PK.shape[0]
    end_E = counts_E.to(x.device).cumsum(0).int()
    out_PN = x_PK.new_full((rows, codes.shape[1]), torch.nan)
    places = {
        "sorted_idx": torch.arange(rows, dtype=torch.int32, device=x.device),
        "exp_start": end_E - counts_E.to(x.device, torch.int32),
        "exp_end": end_E,
        "num_tokens": rows,
        "reindex_a": False,
        "reindex_c": False,
        "is_gate_up": codes.shape[1] < 2 * codes.shape[2],  # chooses among tiles alone
    }

    def call() -> Tensor:
        launch(x, x_scale, codes, scale.view(torch.float8_e8m0fnu), out_PN, **places)
        return out_PN

    return call


@peer(HERE, package="lmdeploy", tolerance=0.05)
def lmdeploy_fp4_layer(
    _: ModuleType,
    x_TK: Tensor,
    picks_TX: Tensor,
    weight_TX: Tensor,
    gate_up: tuple[Tensor, Tensor],
    down: tuple[Tensor, Tensor],
    limit: float,
) -> Call:
    """fused_moe_v4_fp4: sorting, both products, SwiGLU and the sum over slots; the routing weight comes last."""
    layer = kernels("moe.v4_fp4").fused_moe_v4_fp4
    weights = [part for codes, scale in (gate_up, down) for part in (codes, scale.view(torch.float8_e8m0fnu))]
    operands = *fp8_activation(x_TK), *weights, weight_TX, picks_TX.long(), picks_TX.shape[1]
    return lambda: layer(*operands, out_dtype=torch.bfloat16, swiglu_limit=limit)


def swiglu_error(got: tuple[Tensor, Tensor], expected_TI: Tensor) -> float:
    """Relative error of codes · scales."""
    codes, scale = got
    value_TI = (codes.float().unflatten(-1, (scale.shape[-1], -1)) * scale.unsqueeze(-1)).flatten(-2)
    return float((value_TI.double() - expected_TI.double()).norm() / expected_TI.double().norm())


@peer(HERE, package="lmdeploy", tolerance=0.05, compare=swiglu_error)
def lmdeploy_swiglu(_: ModuleType, h_TJ: Tensor, limit: float) -> Call:
    """v4_swiglu_and_quant_fp8 with groups of 32 and power-of-two scales; it takes no routing weight."""
    act = kernels("moe.v4_swiglu_quant").v4_swiglu_and_quant_fp8
    return lambda: act(h_TJ, swiglu_limit=limit, group_size=32)


@peer(HERE, package="lmdeploy", tolerance=EXACT)
def lmdeploy_hyper_collapse(_: ModuleType, x_TND: Tensor, mix_TN: Tensor) -> Call:
    """hc_pre_reduce: the weighted sum of the streams."""
    reduce = kernels("dsv4.hc_prepost").hc_pre_reduce
    return lambda: reduce(x_TND, mix_TN, x_TND.shape[1])


@peer(HERE, package="lmdeploy", tolerance=EXACT)
def lmdeploy_hyper_mix(_: ModuleType, x_TND: Tensor, out_TD: Tensor, mixing_TMN: Tensor, write_TN: Tensor) -> Call:
    """hc_post_expand: the streams mixed and written."""
    expand = kernels("dsv4.hc_prepost").hc_post_expand
    return lambda: expand(out_TD, x_TND, write_TN, mixing_TMN, x_TND.shape[1])


@peer(HERE, package="lmdeploy", tolerance=0.0, compare=same_choice)
def lmdeploy_topk(_: ModuleType, scores_TJ: Tensor, count: int) -> Call:
    """bitonic_topk."""
    best = kernels("bitonic_topk").bitonic_topk
    length_T = torch.full((scores_TJ.shape[0],), scores_TJ.shape[1], dtype=torch.int32, device=scores_TJ.device)
    return lambda: best(scores_TJ, torch.ones_like(length_T), length_T, count, sorted=False, threshold=-torch.inf)
