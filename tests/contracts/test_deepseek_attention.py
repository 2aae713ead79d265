"""The adapter of FlashMLA against deepinfer-flashmla 1.0.0.

The package is not here and its kernels are not run: a stub records the calls. What an argument must look like is what the
package's own checks ask for; numbers are checked only where the adapter itself makes them.
"""

from collections.abc import Callable

import pytest
import torch
from stub_packages import Stub, is_packed
from torch import Tensor

from deepinfer import formats
from deepinfer.ops import deepseek_attention, deepseek_gemm
from deepinfer.ops.fp8_linear import Fp8Weight

I32, F32, BF16 = torch.int32, torch.float32, torch.bfloat16


def stores() -> tuple[Tensor, Tensor]:
    """Window and main rows in padded blocks."""
    whole = torch.zeros(4, 134 * 528 + 64, dtype=torch.uint8)
    return whole[:, : 134 * 528].view(4, 134, 528), torch.zeros(6, 64, 288, dtype=torch.uint8)


@pytest.mark.parametrize("selected", [True, False])
def test_attention(stub: Callable[[str], Stub], selected: bool) -> None:
    flash, (window_ABR, main_ABR) = stub("flash_mla"), stores()
    flash.answers["get_mla_metadata"] = lambda **_: ("schedule", None)
    flash.answers["flash_mla_with_kvcache"] = lambda q, **_: (q, None)
    q_THK, rope_T2F = torch.randn(3, 64, 512).bfloat16(), torch.randn(3, 64).view(3, 2, 32)
    rope_T2F = rope_T2F / rope_T2F.norm(dim=1, keepdim=True)
    lists = torch.zeros(3, 100, dtype=I32), torch.zeros(3, 512, dtype=I32)
    extra = (main_ABR, lists[1]) if selected else (None, None)
    out = deepseek_attention.sparse_attention(q_THK, window_ABR, lists[0], *extra, torch.randn(64), 0.04, rope_T2F)
    call = flash.arguments("flash_mla_with_kvcache")
    assert call["q"].shape == (3, 1, 64, 512) and call["q"].dtype == BF16 and call["head_dim_v"] == 512
    assert call["k_cache"].shape == (4, 134, 1, 528) and call["k_cache"].stride()[1::2] == (528, 1)
    assert (
        call["indices"].shape == (3, 1, 128)
        and call["indices"].dtype == I32
        and (call["indices"][..., 100:] == -1).all()
    )
    assert (
        call["tile_scheduler_metadata"] == "schedule"
        and call["softmax_scale"] == 0.04
        and call["enable_batch_invariant"]
    )
    assert call["attn_sink"].dtype == F32 and call["block_table"] is call["cache_seqlens"] is None
    if selected:
        assert call["extra_k_cache"].shape == (6, 64, 1, 288) and call["extra_indices_in_kvcache"].shape == (3, 1, 512)
    else:
        assert call["extra_k_cache"] is call["extra_indices_in_kvcache"] is None
    torch.testing.assert_close(out, q_THK, atol=0.05, rtol=0.02)  # turned and turned back


def test_fused_attention(stub: Callable[[str], Stub]) -> None:
    flash, (window_ABR, main_ABR) = stub("flash_mla"), stores()
    flash.answers["fused_norm_rope_attn_rope_cast.decode"] = lambda **_: ("codes", "scales", "lse")
    lists = torch.zeros(3, 128, dtype=I32), torch.zeros(3, 512, dtype=I32)
    coded = deepseek_attention.fused_attention(
        *(torch.randn(3, 64, 512).bfloat16(), window_ABR, lists[0], main_ABR, lists[1]),
        *(torch.randn(64), 0.04, torch.arange(3), torch.randn(9, 64), 8),
    )
    assert coded.pair == ("codes", "scales")
    call = flash.arguments("fused_norm_rope_attn_rope_cast.decode")
    expected = {
        "enable_q_norm": False,
        "is_rope_neox_style": False,
        "rope_dim": 64,
        "n_wv_group": 8,
        "num_per_channels": 32,
    }
    expected |= dict.fromkeys(("use_tma_aligned_col_major_sf", "round_sf", "use_packed_ue8m0"), True) | {
        "sm_scale": 0.04
    }
    assert {name: call[name] for name in expected} == expected
    assert call["token_positions"].dtype == I32 and call["cos_sin_cache"].shape == (9, 64)
    assert (
        call["q"].shape == (3, 64, 512) and call["q"].stride(1) == 512 and call["indices_in_kvcache"].shape == (3, 128)
    )
    assert call["k_cache"].shape == (4, 134, 1, 528) and call["extra_k_cache"].shape == (6, 64, 1, 288)


def test_projections_around_the_fused_kernel(stub: Callable[[str], Stub]) -> None:
    flash = stub("flash_mla")
    for name in ("permute_q_b_proj", "permute_wv_proj"):
        flash.answers[f"fused_norm_rope_attn_rope_cast.{name}"] = lambda weight_and_sf, **_: weight_and_sf
    up = deepseek_gemm.prepare_dense(Fp8Weight(*formats.quantise_fp8_blocks(torch.randn(2 * 512, 256))))
    out = deepseek_gemm.prepare_dense(Fp8Weight(*formats.quantise_fp8_blocks(torch.randn(2 * 64, 512))))
    deepseek_attention.prepare_around(up, out, heads=2, groups=2)
    call = flash.arguments("fused_norm_rope_attn_rope_cast.permute_q_b_proj")
    assert (call["h_q"], call["d_q"]) == (2, 512)
    is_packed(call["weight_and_sf"][1], 1024, 256)
    call = flash.arguments("fused_norm_rope_attn_rope_cast.permute_wv_proj")
    codes, scales = call["weight_and_sf"]
    assert (call["wv_group_size"], call["d_o"]) == (1, 512)
    assert codes.shape == (2, 64, 512) and scales.shape == (2, 64, 4) and scales.stride(1) == 1
