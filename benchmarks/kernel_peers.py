"""Other people's kernels beside ours: found by import, given the same numbers, checked against the twins, never vendored.

    peers = kernel_peers.linear(copies)            # in a kernel test
    timed(op, case, calls, peers=peers)

Each function takes one tuple of the op's inputs for each copy and returns, by name, one call for each copy or the sentence
that says why the peer is absent. `bash benchmarks/peer_environment.sh` installs what the public index has. With `only`, no
other peer is asked: a peer may need as much memory again as the inputs.

Legend: T rows · K inputs or head dim · N outputs or streams · E experts · P rows sorted by expert · H heads · I index heads ·
J keys or entries · S sequences or slots · B sequences · V vocabulary · D hidden · G groups · W window slots.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from peers_call import Call, Calls, Peer, ask
from peers_deep_gemm import (
    deep_gemm_contiguous,
    deep_gemm_einsum,
    deep_gemm_fp8,
    deep_gemm_fp8_einsum,
    deep_gemm_hyper_products,
    deep_gemm_index_decode,
    deep_gemm_index_prefill,
    deep_gemm_masked,
)
from peers_flash_mla import flash_mla_decode, flash_mla_prefill
from peers_flashinfer import (
    flashinfer_norm_quant,
    flashinfer_rms_norm,
    flashinfer_sample,
    flashinfer_sample_plain,
    flashinfer_topk,
)
from peers_lmdeploy import (
    lmdeploy_fp4_experts,
    lmdeploy_fp4_layer,
    lmdeploy_fp8,
    lmdeploy_hyper_collapse,
    lmdeploy_hyper_mix,
    lmdeploy_swiglu,
    lmdeploy_topk,
)
from peers_sglang import sglang_store_main, sglang_swiglu, sglang_topk
from peers_torch import (
    cublas_bf16,
    cublas_bmm,
    cublas_linear,
    grouped_mm_bf16,
    scaled_mm_128,
    scaled_mm_tensor,
    torch_rms_norm,
    torch_softmax_multinomial,
    torch_topk,
)
from peers_triton_kernels import triton_kernels_mxfp4
from torch import Tensor

from deepinfer.formats.fp4 import dequantise_fp4_experts
from deepinfer.formats.fp8 import dequantise_fp8_blocks
from deepinfer.formats.rows import pack_main, unpack_main
from deepinfer.ops.attention import attention
from deepinfer.ops.experts import swiglu
from deepinfer.ops.hyper import hyper_collapse, hyper_mix
from deepinfer.ops.norm import rms_norm
from deepinfer.ops.rotate import rotate

Copies = Sequence[tuple[Any, ...]]
ByName = dict[str, Calls]
CHECKED_SEQUENCES = 4  # of index scores
CHECKED_ROWS = 64  # of an attention: the twin's keys of a row are 1.3 MB of float32


def linear(copies: Copies, only: Sequence[str] = ()) -> ByName:
    """(x_TK bf16 on the FP8 grid, codes_NK e4m3, scale E8M0 [N / 32, K / 32]) → x · weightᵀ."""
    x_TK, codes_NK, scale = copies[0]
    expected_TN = x_TK.float() @ dequantise_fp8_blocks(codes_NK, scale).t()
    peers = (cublas_bf16, scaled_mm_tensor, scaled_mm_128, deep_gemm_fp8, lmdeploy_fp8)
    return ask(_wanted(peers, only), copies, expected_TN)


def bf16_linear(copies: Copies) -> ByName:
    """(x_TK bf16, weight_NK bf16, dtype of the result) → x · weightᵀ."""
    x_TK, weight_NK, _ = copies[0]
    expected_TN = x_TK[:CHECKED_ROWS].float() @ weight_NK.float().t()
    return ask((_first_rows(cublas_linear),), copies, expected_TN)


def grouped(copies: Copies, only: Sequence[str] = ()) -> ByName:
    """(x_PK bf16 on the FP8 grid, counts_E integers, codes uint8 [E, N, K / 2], scale E8M0 [E, N, K / 32]) → [P, N].

    Rows are sorted by expert; counts_E says how many each has.
    """
    x_PK, counts_E, codes, scale = copies[0]
    parts = [
        part_PK.float() @ dequantise_fp4_experts(codes[e], scale[e]).t()
        for e, part_PK in enumerate(x_PK.split(counts_E.tolist()))
        if len(part_PK)
    ]
    peers = (grouped_mm_bf16, triton_kernels_mxfp4, lmdeploy_fp4_experts, deep_gemm_contiguous, deep_gemm_masked)
    return ask(_wanted(peers, only), copies, torch.cat(parts))


def expert_layer(copies: Copies, expected_TD: Tensor) -> ByName:
    """(x_TD, picks_TX, weight_TX, (codes, scale) of gate and up, (codes, scale) of down, limit) → the layer's answer [T, D]."""
    return ask((lmdeploy_fp4_layer,), copies, expected_TD)


def decode_attention(copies: Copies) -> ByName:
    """(q_THK rotated, window_JK, window_rows_TW, selected_JK, selected_rows_TS, sink_H, scale, rows_each) → [T, H, K].

    Keys are decoded numbers by row, lists name rows, -1 hides. Nothing is rotated back.
    """
    q_THK, window_JK, window_rows_TW, selected_JK, selected_rows_TS, sink_H, scale = copies[0][:7]
    first = slice(0, CHECKED_ROWS)
    keys = [window_JK, selected_JK] if selected_JK is not None else [window_JK]
    lists = [window_rows_TW[first], selected_rows_TS[first]] if selected_JK is not None else [window_rows_TW[first]]
    expected = _attention(q_THK[first], keys, lists, sink_H, scale)
    return ask((_first_rows(flash_mla_decode),), copies, expected)


def prefill_attention(copies: Copies) -> ByName:
    """(q_THK rotated, keys_JK decoded, rows_TS, sink_H, scale) → [T, H, K]; nothing is rotated back."""
    q_THK, keys_JK, rows_TS, sink_H, scale = copies[0]
    first = slice(0, CHECKED_ROWS)
    expected = _attention(q_THK[first], [keys_JK], [rows_TS[first]], sink_H, scale)
    return ask((_first_rows(flash_mla_prefill),), copies, expected)


def index_prefill(copies: Copies) -> ByName:
    """(q_TIK, weight_TI, keys_JK decoded) → [T, J], every key visible."""
    q_TIK, weight_TI, keys_JK = copies[0]
    products_TIJ = torch.einsum("tik,jk->tij", q_TIK[:CHECKED_ROWS].float(), keys_JK.float())
    expected_TJ = torch.einsum("tij,ti->tj", products_TIJ.relu(), weight_TI[:CHECKED_ROWS].float())
    return ask((_first_rows(deep_gemm_index_prefill),), copies, expected_TJ)


def index_decode(copies: Copies) -> ByName:
    """(q_SIK, weight_SI, keys_SJK decoded) → [S, J], every key visible; J is a multiple of 64."""
    q_SIK, weight_SI, keys_SJK = copies[0]
    few = slice(0, CHECKED_SEQUENCES)
    products_SIJ = torch.einsum("sik,sjk->sij", q_SIK[few].float(), keys_SJK[few].float())
    expected_SJ = torch.einsum("sij,si->sj", products_SIJ.relu(), weight_SI[few].float())
    return ask((_first_rows(deep_gemm_index_decode),), copies, expected_SJ)


def top_k(copies: Copies) -> ByName:
    """(scores_TJ float32, count) → the entries with the best scores, in any order."""
    return ask((torch_topk, flashinfer_topk, lmdeploy_topk, sglang_topk), copies, copies[0])


def sample(copies: Copies) -> ByName:
    """(logits_BV float32, temperature_B float32, top_k_B int32, top_p_B float32) → one token a row.

    A token is right where top-k allows it; peers without filters may draw any.
    """
    logits_BV, _, top_k_B, _ = copies[0]
    rank_BV = logits_BV.argsort(dim=1, descending=True).argsort(dim=1)
    allowed_BV = rank_BV < top_k_B.unsqueeze(1)
    filtered = ask((flashinfer_sample,), copies, allowed_BV)
    return filtered | ask((flashinfer_sample_plain, torch_softmax_multinomial), copies, torch.ones_like(allowed_BV))


def norm(copies: Copies) -> ByName:
    """(x_TD bf16, weight_D, eps) → the normalised rows, quantised or not."""
    x_TD, weight_D, eps = copies[0]
    expected_TD = rms_norm(x_TD.float(), weight_D.float(), eps)
    return ask((torch_rms_norm, flashinfer_rms_norm, flashinfer_norm_quant), copies, expected_TD)


def store_main(copies: Copies) -> ByName:
    """(kv_TK bf16, weight_K, eps, rope_T2F, rows_T int32 from 0) → rows of main keys at ratio 1, and the normed latents."""
    kv_TK, weight_K, eps, rope_T2F, _ = copies[0]
    rotated_TK = rotate(rms_norm(kv_TK, weight_K, eps), rope_T2F)
    return ask((sglang_store_main,), copies, unpack_main(pack_main(rotated_TK)))


def swiglu_quantise(copies: Copies) -> ByName:
    """(h_TJ bf16, limit) → SwiGLU in FP8 with scales of 32 columns; no routing weight."""
    h_TJ, limit = copies[0]
    return ask((lmdeploy_swiglu, sglang_swiglu), copies, swiglu(h_TJ.float(), None, limit))


def hyper_parts(copies: Copies) -> ByName:
    """(x_TND bf16, out_TD bf16, fn_CK float32, read_TN, mixing_TMN, write_TN) → the three parts of an mHC site, each a peer."""
    products = [(x_TND.flatten(1), fn_CK) for x_TND, _, fn_CK, *_ in copies]
    sums = [(x_TND, read_TN) for x_TND, _, _, read_TN, *_ in copies]
    mixes = [(x_TND, out_TD, mixing_TMN, write_TN) for x_TND, out_TD, _, _, mixing_TMN, write_TN in copies]
    expected = products[0][0].float() @ products[0][1].t()
    return (
        ask((deep_gemm_hyper_products,), products, expected)
        | ask((lmdeploy_hyper_collapse,), sums, hyper_collapse(*sums[0]))
        | ask((lmdeploy_hyper_mix,), mixes, hyper_mix(*mixes[0]))
    )


def hyper_sites(copies: Copies) -> ByName:
    """The same inputs, two sites a layer → each layer as the parts of its sites: no coefficients, norms or quantisation."""
    parts = hyper_parts(copies)
    absent = [why for why in parts.values() if isinstance(why, str)]
    if absent:
        return {"parts of two sites": absent[0]}
    in_turn = ("lmdeploy_hyper_mix", "deep_gemm_hyper_products", "lmdeploy_hyper_collapse")
    sites = list(zip(*(parts[name] for name in in_turn), strict=True))
    return {"parts of two sites": [partial(_in_turn, first + second) for first, second in zip(sites[::2], sites[1::2])]}


def output_projection(copies: Copies) -> ByName:
    """(x_TGK bf16, weight_GNK bf16) → [T, G, N], the groups apart."""
    x_TGK, weight_GNK = copies[0]
    expected = torch.einsum("tgk,gnk->tgn", x_TGK.float(), weight_GNK.float())
    return ask((cublas_bmm, deep_gemm_einsum, deep_gemm_fp8_einsum), copies, expected)


def _wanted(peers: Sequence[Peer], only: Sequence[str]) -> list[Peer]:
    return [one for one in peers if not only or one.name in only]


def _in_turn(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _first_rows(one: Peer) -> Peer:
    """The same peer, checked by the first rows of its answer."""
    return Peer(
        one.name,
        one.module,
        one.package,
        one.build,
        one.tolerance,
        lambda got, expected: one.compare(got[: len(expected)], expected),
    )


def _attention(q_THK: Tensor, keys: list[Tensor], rows: list[Tensor], sink_H: Tensor, scale: float) -> Tensor:
    """The twin's attention over one or two lists, in float32."""
    listed = [part for key_JK, list_TS in zip(keys, rows) for part in (key_JK.float()[list_TS.long()], list_TS >= 0)]
    window_TWK, mask_TW, selected_TSK, mask_TS = (*listed, None, None)[:4]
    return attention(q_THK.float(), window_TWK, mask_TW, selected_TSK, mask_TS, sink_H.float(), scale)
