"""The adapters of TileKernels 2.1.0, DeepSelect 1.0.0 and DeepEP 2.5.0.

The package is not here and its kernels are not run: a stub records the calls. What an argument must look like is what the
package's own checks ask for; numbers are checked only where the adapter itself makes them.
"""

from collections.abc import Callable

import pytest
import torch
from stub_packages import Stub, decoded

from deepinfer import formats
from deepinfer.ops import deepseek_ep, deepseek_select, deepseek_tiles

E4M3, I32, I64, F32 = torch.float8_e4m3fn, torch.int32, torch.int64, torch.float32


def test_norms_and_quantisers(stub: Callable[[str], Stub]) -> None:
    tiles, x_TD, weight_D = stub("tile_kernels"), torch.randn(4, 256).bfloat16(), torch.rand(256).bfloat16()
    tiles.answers["quant.norm_forward"] = lambda x, **_: (x, None, x)
    tiles.answers["quant.norm_forward_and_per_token_cast"] = lambda x, **_: (("codes", "scales"), x, None, x)
    tiles.answers["quant.swiglu_forward_and_per_token_cast"] = lambda **_: ("codes", "scales")
    tiles.answers["quant.per_token_cast_and_cast_back"] = lambda x, **_: x.zero_()
    deepseek_tiles.rms_norm(x_TD, weight_D, 1e-6)
    assert list(tiles.arguments("quant.norm_forward")) == ["x", "weight", "eps"]
    assert deepseek_tiles.norm_quantise(x_TD, weight_D, 1e-6)[1].pair == ("codes", "scales")
    packed = dict.fromkeys(("use_tma_aligned_col_major_sf", "round_sf", "use_packed_ue8m0"), True)
    call = tiles.arguments("quant.norm_forward_and_per_token_cast")
    assert (call["fmt"], call["num_per_channels"], call["with_out_bf16"]) == ("e4m3", 32, True)
    assert packed.items() <= call.items()
    deepseek_tiles.swiglu_quantise(torch.randn(4, 512).bfloat16(), torch.rand(4), 10.0)
    call = tiles.arguments("quant.swiglu_forward_and_per_token_cast")
    assert (call["fmt"], call["num_per_channels"], call["clamp_value"]) == (
        "e4m3",
        32,
        10.0,
    ) and packed.items() <= call.items()
    before = x_TD.clone()
    assert (deepseek_tiles.quantise_activation(x_TD) == 0).all() and torch.equal(
        x_TD, before
    )  # rounded in place: a copy
    assert tiles.arguments("quant.per_token_cast_and_cast_back")["round_sf"] is True
    tiles.calls.clear()
    assert deepseek_tiles.quantise_index(torch.randn(4, 32, 128)).shape == (4, 32, 128)
    call = tiles.arguments("quant.per_token_cast_and_cast_back")
    assert (call["fmt"], call["num_per_channels"], call["x"].shape) == ("e2m1", 32, (128, 128))


def test_rotation_in_place_of_a_copy(stub: Callable[[str], Stub]) -> None:
    tiles, rope_T2F = stub("tile_kernels"), torch.randn(3, 2, 32)
    tiles.answers["transform.apply_rotary"] = lambda query, **_: query.zero_()
    for x in (torch.randn(3, 64, 512), torch.randn(3, 512)):
        tiles.calls.clear()
        turned = deepseek_tiles.rotate(x, rope_T2F, inverse=True)
        assert (
            turned.shape == x.shape and torch.equal(turned[..., :448], x[..., :448]) and (turned[..., 448:] == 0).all()
        )
        call = tiles.arguments("transform.apply_rotary")
        assert call["query"].ndim == 3 and call["query"].shape[-1] == 64 and call["query"].stride(-1) == 1
        assert (call["interleaved"], call["conjugate"]) == (True, True) and call["cos_sin_cache"].dtype == F32
        assert torch.equal(call["cos_sin_cache"], torch.cat((rope_T2F[:, 0], rope_T2F[:, 1]), 1))


def test_streams_router_and_hashes(stub: Callable[[str], Stub]) -> None:
    tiles, x_TND = stub("tile_kernels"), torch.randn(5, 4, 128).bfloat16()
    tiles.answers["mhc.mhc_post_fwd"] = lambda residual, **_: residual
    tiles.answers["moe.moe_topk_gate_forward"] = lambda **_: ("picks", "weights")
    tiles.answers["engram.engram_hash"] = lambda **_: torch.zeros(1, 5, 24, dtype=I32)
    assert deepseek_tiles.hyper_mix(x_TND, x_TND[:, 0].contiguous(), torch.rand(5, 4, 4), torch.rand(5, 4)).shape == (
        5,
        4,
        128,
    )
    call = tiles.arguments("mhc.mhc_post_fwd")
    assert call["x"].shape == (1, 5, 128) and call["residual"].shape == (1, 5, 4, 128)
    assert call["post_layer_mix"].shape == (1, 5, 4, 1) and call["comb_res_mix"].shape == (1, 5, 4, 4)
    out_TD = deepseek_tiles.hyper_collapse(x_TND, torch.rand(5, 4))
    call = tiles.arguments("mhc.mhc_pre_apply_mix_fwd")
    assert call["o"] is out_TD and call["x"].shape == (5, 4, 128) and call["mix"].shape == (5, 4)
    assert deepseek_tiles.choose_experts(torch.randn(5, 384), torch.randn(384), 6, 2.5) == ("picks", "weights")
    call = tiles.arguments("moe.moe_topk_gate_forward")
    assert (call["num_topk"], call["routed_scaling_factor"], call["ep_rank"]) == (6, 2.5, 0)
    rows = deepseek_tiles.engram_rows(
        torch.zeros(5, 4, dtype=I64),
        torch.ones(4, dtype=I64),
        torch.ones(3, 8, dtype=I64),
        torch.zeros(3, 8, dtype=I64),
    )
    call = tiles.arguments("engram.engram_hash")
    assert rows.dtype == I64 and rows.shape == (5, 24)
    assert (
        call["ngram_token_ids"].dtype == I32
        and call["multipliers"].shape == (1, 4)
        and call["multipliers"].dtype == I64
    )
    assert call["vocab_sizes"].shape == (1, 3, 8) and call["offsets"].shape == (1, 24) and call["offsets"].dtype == I32


@pytest.mark.parametrize("width", [4096, 1003])
def test_top_entries(stub: Callable[[str], Stub], width: int) -> None:
    select, out_TN = stub("deep_select"), torch.zeros(3, 512, dtype=I32)
    select.answers["get_stride_requirement"] = lambda: (32, 32)
    scores_TJ = torch.randn(3, width)
    assert deepseek_select.top_entries(scores_TJ, torch.tensor([5, 600, 9999]), out_TN) is out_TN
    call = select.arguments("topk")
    assert (
        call["input"].stride(1) == 1 and call["input"].stride(0) * 4 % 32 == 0 and torch.equal(call["input"], scores_TJ)
    )
    assert call["topk"] == 512 and call["output_idx"] is out_TN and call["indices_type"] == I32
    assert call["end"].dtype == I32 and call["end"].tolist() == [5, 600, width]
    assert (call["sorted_index"], call["return_value"], call["idx_oob_fill_value"]) == (True, False, -1)


def test_exchange(stub: Callable[[str], Stub]) -> None:
    exchange_stub, group = stub("deep_ep"), type("Group", (), {"size": lambda self: 2})()
    exchange_stub.module.topk_idx_t = I64  # type: ignore[attr-defined]
    exchange_stub.answers["EPBuffer.dispatch"] = lambda x, topk_idx, topk_weights, **_: (
        x,
        topk_idx,
        topk_weights,
        "handle",
        None,
    )
    exchange_stub.answers["EPBuffer.combine"] = lambda x, **_: (x, None, None)
    exchange = deepseek_ep.ExpertExchange(group, 8, 16, 256, 2)
    made = exchange_stub.arguments("EPBuffer.__init__")
    assert (made["group"], made["num_max_tokens_per_rank"], made["hidden"], made["num_topk"]) == (group, 16, 256, 2)
    assert made["use_fp8_dispatch"] and made["deterministic"] and made["explicitly_destroy"]
    x_TD = formats.fake_fp8_rows(torch.randn(3, 256).bfloat16())
    received = exchange.dispatch(x_TD, torch.zeros(3, 2, dtype=I32), torch.rand(3, 2), 128)
    call = exchange_stub.arguments("EPBuffer.dispatch")
    assert call["x"][0].dtype == E4M3 and call["x"][1].dtype == I32 and call["topk_idx"].dtype == I64
    assert (call["num_experts"], call["expert_alignment"], call["use_tma_aligned_col_major_sf"]) == (8, 128, True)
    assert torch.equal(decoded(*call["x"]), x_TD.float())
    out_TD = exchange.combine(torch.randn(3, 256).bfloat16(), received)
    assert exchange_stub.arguments("EPBuffer.combine")["handle"] == "handle" and out_TD.shape == (3, 256)
    exchange.close()
