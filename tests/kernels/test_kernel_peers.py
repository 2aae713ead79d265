"""Peers: absent ones say why, layouts hold our numbers, and on a GPU every installed peer computes what the twin does."""

from types import ModuleType

import kernel_peers
import peers_call
import peers_layouts
import pytest
import torch
from torch import Tensor

from deepinfer.formats.fp4 import dequantise_fp4_experts, quantise_fp4_experts
from deepinfer.formats.fp8 import quantise_fp8_blocks
from deepinfer.ops.experts import swiglu
from deepinfer.ops.norm import quantise_activation

GPU = pytest.mark.gpu


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def test_absent_peer_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)

    @peers_call.peer("no_such_module", tolerance=0.0)
    def nobody(module: ModuleType) -> peers_call.Call:
        raise AssertionError("not reached")

    assert nobody([()], None) == (
        "no_such_module is not installed (No module named 'no_such_module'): bash benchmarks/peer_environment.sh"
    )


def test_peer_that_raises_or_errs_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(peers_call, "captured", lambda calls: calls[0]())

    @peers_call.peer("torch", tolerance=0.01)
    def doubling(torch_: ModuleType, x: Tensor) -> peers_call.Call:
        return lambda: 2 * x

    @peers_call.peer("torch", tolerance=0.01)
    def crashing(torch_: ModuleType, x: Tensor) -> peers_call.Call:
        raise RuntimeError("no kernel\n  image")

    ones = torch.ones(3)
    assert isinstance(doubling([(ones,), (ones,)], 2 * ones), list)
    assert str(doubling([(ones,)], ones)).endswith("computes something else: 100.00% from the twin, 1.00% allowed")
    assert str(crashing([(ones,)], ones)).endswith("failed: RuntimeError: no kernel image")


def test_a_nan_is_never_within_tolerance() -> None:
    assert not peers_call.relative_error(torch.tensor([1.0, torch.nan]), torch.ones(2)) <= 1.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_every_peer_is_a_sentence(generator: torch.Generator) -> None:
    weight = quantise_fp8_blocks(torch.randn(64, 64, generator=generator))
    found = kernel_peers.linear([(torch.randn(4, 64, generator=generator).bfloat16(), *weight)])
    assert {"cublas_bf16", "deep_gemm_fp8", "lmdeploy_fp8"} < set(found)
    assert all(str(why).endswith("it needs a GPU") for why in found.values())


def test_column_major_scales_keep_numbers_and_pitch(generator: torch.Generator) -> None:
    scale_TG = torch.randn(7, 5, generator=generator)
    turned = peers_layouts.column_major(scale_TG)
    assert turned.equal(scale_TG)
    assert turned.stride() == (1, 8)
    padded = peers_layouts.padded_columns(scale_TG)
    assert padded.shape == (8, 5) and padded[:7].equal(scale_TG) and not padded[7].any()


@pytest.mark.parametrize("group", [32, 128])
def test_fp8_rows_decode_within_half_a_step(generator: torch.Generator, group: int) -> None:
    x_TK = torch.randn(9, 256, generator=generator)
    codes, scale = peers_layouts.fp8_rows(x_TK, group)
    decoded = codes.float() * scale.repeat_interleave(group, 1)
    assert (decoded - x_TK).abs().le(x_TK.abs() / 16 + scale.repeat_interleave(group, 1) / 512).all()


def test_fp8_blocks_decode_within_half_a_step(generator: torch.Generator) -> None:
    weight = torch.randn(256, 384, generator=generator)
    codes, scale = peers_layouts.fp8_blocks(weight)
    wide = scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert (codes.float() * wide - weight).abs().le(weight.abs() / 16 + wide / 512).all()
    assert scale.shape == (2, 3)


def decode_v4_pages(cache: Tensor) -> Tensor:
    """Float32 keys [J, 512] byte by byte: the page's rows of 448 codes and 64 bf16 numbers, then its scales."""
    pages, page, _, row = cache.shape
    whole = cache.as_strided((pages, page * row), (cache.stride(0), 1))
    rows = whole[:, : 576 * page].reshape(-1, 576)
    exponents = whole[:, 576 * page :].reshape(-1, 8)[:, :7].double() - 127
    codes = rows[:, :448].contiguous().view(torch.float8_e4m3fn).double()
    plain = codes * torch.exp2(exponents).repeat_interleave(64, dim=1)
    return torch.cat((plain.float(), rows[:, 448:].contiguous().view(torch.bfloat16).float()), dim=1)


@pytest.mark.parametrize("page", [64, 96])
def test_v4_pages_decode_to_the_keys(generator: torch.Generator, page: int) -> None:
    keys_JK = torch.randn(2 * page, 512, generator=generator).bfloat16() * 3
    cache = peers_layouts.v4_pages(keys_JK, page)
    assert cache.shape == (2, page, 1, 584)
    assert cache.stride(0) % 576 == 0
    assert cache.stride(0) >= 584 * page
    decoded = decode_v4_pages(cache)
    assert decoded[:, 448:].equal(keys_JK[:, 448:].float())
    error = (decoded[:, :448] - keys_JK[:, :448].float()).abs()
    assert error.le(keys_JK[:, :448].float().abs() / 16 + 2.0**-9).all()


def test_index_pages_hold_codes_then_scales(generator: torch.Generator) -> None:
    keys_JK = torch.randn(128, 128, generator=generator)
    pages = peers_layouts.index_pages(keys_JK).view(2, -1)
    codes = pages[:, : 64 * 128].reshape(128, 128).view(torch.float8_e4m3fn).float()
    scale = pages[:, 64 * 128 :].contiguous().view(torch.float32).reshape(128, 1)
    assert (codes * scale - keys_JK).abs().le(keys_JK.abs() / 16 + scale / 512).all()


def test_groups_are_padded_to_whole_tiles() -> None:
    assert peers_layouts.padded_groups([3, 0, 128, 129], 128) == [0, 128, 128, 256, 512]


def right(found: kernel_peers.ByName) -> None:
    """No installed peer computes something else. Absent ones are printed."""
    for name, calls in found.items():
        print(f"PEER {name}: {calls if isinstance(calls, str) else f'{len(calls)} calls'}")
    assert not [why for why in found.values() if isinstance(why, str) and "something else" in why]


def fp8_grid(*shape: int) -> Tensor:
    return quantise_activation(torch.randn(shape, device="cuda").bfloat16())


@GPU
@pytest.mark.parametrize("rows", [64, 512])
def test_linear_peers(rows: int) -> None:
    weight = quantise_fp8_blocks(torch.randn(1280, 5120, device="cuda") / 64)
    right(kernel_peers.linear([(fp8_grid(rows, 5120), *weight)] * 2))


@GPU
def test_grouped_peers() -> None:
    counts_E = torch.tensor([5, 0, 130, 61, 1, 300, 7, 8])
    experts = [quantise_fp4_experts(torch.randn(4608, 5120, device="cuda") / 64) for _ in counts_E]
    codes, scale = (torch.stack(part) for part in zip(*experts))
    right(kernel_peers.grouped([(fp8_grid(int(counts_E.sum()), 5120), counts_E, codes, scale)]))


@GPU
def test_expert_layer_peers() -> None:
    x_TD, limit = fp8_grid(40, 1024), 10.0
    gate_up, down = (
        [quantise_fp4_experts(torch.randn(shape, device="cuda") / 32) for _ in range(8)]
        for shape in ((1024, 1024), (1024, 512))
    )
    picks_TX = torch.rand(40, 8, device="cuda").argsort(1)[:, :6]
    weight_TX = torch.rand(40, 6, device="cuda")
    expected_TD = torch.zeros(40, 1024, device="cuda")
    for e in range(8):
        rows, slots = (picks_TX == e).nonzero(as_tuple=True)
        act_TI = quantise_activation(swiglu(x_TD[rows].float() @ dequantise_fp4_experts(*gate_up[e]).t(), None, limit))
        out_TD = act_TI @ dequantise_fp4_experts(*down[e]).t() * weight_TX[rows, slots].unsqueeze(1)
        expected_TD.index_add_(0, rows, out_TD)
    stacked = [tuple(torch.stack(part) for part in zip(*experts)) for experts in (gate_up, down)]
    right(kernel_peers.expert_layer([(x_TD, picks_TX, weight_TX, *stacked, limit)], expected_TD))


@GPU
@pytest.mark.parametrize("rows_each", [1, 4])
def test_decode_attention_peers(rows_each: int) -> None:
    rows = 32 * rows_each
    window_JK, selected_JK = torch.randn(2, 4096, 512, device="cuda").bfloat16()
    lists = [torch.rand(rows, 4096, device="cuda").argsort(1)[:, :count].int() for count in (128, 512)]
    lists[0][::3, 100:], lists[1][1::2, 7] = -1, -1
    q_THK, sink_H = torch.randn(rows, 64, 512, device="cuda").bfloat16(), torch.randn(64, device="cuda")
    copy = (q_THK, window_JK, lists[0], selected_JK, lists[1], sink_H, 512**-0.5, rows_each)
    right(kernel_peers.decode_attention([copy]))


@GPU
def test_prefill_attention_peers() -> None:
    q_THK, keys_JK = (
        torch.randn(200, 64, 512, device="cuda").bfloat16(),
        torch.randn(4096, 512, device="cuda").bfloat16(),
    )
    rows_TS = torch.rand(200, 4096, device="cuda").argsort(1)[:, :640].int()
    rows_TS[::3, 100:300] = -1
    right(kernel_peers.prefill_attention([(q_THK, keys_JK, rows_TS, torch.randn(64, device="cuda"), 512**-0.5)]))


@GPU
def test_index_peers() -> None:
    q_TIK, weight_TI = torch.randn(64, 32, 128, device="cuda").bfloat16(), torch.randn(64, 32, device="cuda")
    right(kernel_peers.index_prefill([(q_TIK, weight_TI, torch.randn(8192, 128, device="cuda"))]))
    right(kernel_peers.index_decode([(q_TIK[:8], weight_TI[:8], torch.randn(8, 1024, 128, device="cuda"))]))


@GPU
def test_top_k_and_sampler_peers() -> None:
    right(kernel_peers.top_k([(torch.randn(33, 16384, device="cuda"), 512)]))
    temperature_B, top_k_B = torch.ones(16, device="cuda"), torch.full((16,), 50, dtype=torch.int32, device="cuda")
    logits_BV = torch.randn(16, 129_280, device="cuda")
    right(kernel_peers.sample([(logits_BV, temperature_B, top_k_B, torch.full((16,), 0.9, device="cuda"))]))


@GPU
def test_elementwise_and_projection_peers() -> None:
    x_TD = torch.randn(300, 5120, device="cuda").bfloat16()
    right(kernel_peers.norm([(x_TD, torch.rand(5120, device="cuda") + 0.5, 1e-6)]))
    right(kernel_peers.swiglu_quantise([(3 * torch.randn(300, 4608, device="cuda").bfloat16(), 10.0)]))
    angles = torch.rand(300, 32, device="cuda") * 6.3
    rope_T2F, rows_T = torch.stack((angles.cos(), angles.sin()), 1), torch.randperm(300).int().cuda()
    kv_TK, weight_K = torch.randn(300, 512, device="cuda").bfloat16(), torch.rand(512, device="cuda").bfloat16()
    right(kernel_peers.store_main([(kv_TK, weight_K, 1e-6, rope_T2F, rows_T)]))
    streams_TND, mixing = torch.randn(300, 4, 5120, device="cuda").bfloat16(), torch.rand(300, 4, 4, device="cuda")
    fn_CK, (read_TN, write_TN) = torch.randn(24, 20480, device="cuda") / 100, torch.rand(2, 300, 4, device="cuda")
    right(kernel_peers.hyper_parts([(streams_TND, x_TD, fn_CK, read_TN, mixing, write_TN)]))
    x_TGK, weight_GNK = torch.randn(300, 8, 4096, device="cuda"), torch.randn(8, 1024, 4096, device="cuda")
    right(kernel_peers.output_projection([(x_TGK.bfloat16(), weight_GNK.bfloat16())]))
