"""The adapters of torch_npu: arguments as 2.13.0 asks for them; the twins' numbers where its products do what they say.

The package is not here and its kernels are not run: a stub computes what the documentation says of them.
"""

import pytest
import torch
from stub_packages import Stub
from torch import Tensor

from deepinfer import formats
from deepinfer.ops import ascend_index, ascend_npu, ascend_products, deepseek_packages, indexer
from deepinfer.ops.fp4_experts import Fp4Experts
from deepinfer.ops.fp8_linear import Fp8Weight

BF16 = torch.bfloat16


def grid(*shape: int) -> Tensor:
    return formats.fake_fp8_rows(torch.randn(*shape).to(BF16))


@pytest.mark.parametrize("inputs", [256, 96])  # an even and an odd number of scale groups
def test_dense_fp8(npu: Stub, inputs: int) -> None:
    weight, x_TK = Fp8Weight(*formats.quantise_fp8_blocks(torch.randn(64, inputs))), grid(5, inputs)
    out_TN = ascend_products.fp8_linear(x_TK, ascend_products.prepare_dense(weight))
    call = npu.arguments("npu_quant_matmul")
    assert call["x1"].dtype == call["x2"].dtype == torch.float8_e4m3fn and out_TN.dtype == BF16
    assert call["scale"].shape == (-(-inputs // 64), 64, 2)
    assert torch.equal(out_TN, (x_TK.float() @ weight.numbers().t()).to(BF16))


def test_bf16(npu: Stub) -> None:
    x_TK, weight_NK = torch.randn(3, 64).to(BF16), torch.randn(8, 64).to(BF16)
    assert ascend_products.linear(x_TK, weight_NK).dtype == BF16
    out_TN = ascend_products.linear(x_TK, weight_NK, torch.float32)
    assert torch.equal(out_TN, x_TK.float() @ weight_NK.float().t()) and not npu.calls


@pytest.mark.parametrize("counts", [(3, 0, 5), (0, 0, 2), (4, 1, 0)])
def test_experts(npu: Stub, counts: tuple[int, ...]) -> None:
    codes = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8)
    experts = Fp4Experts(codes, torch.randint(120, 131, (3, 64, 4), dtype=torch.uint8))
    starts_E1, x_PK = torch.tensor((0, *counts)).cumsum(0).int(), grid(sum(counts), 128)
    prepared = ascend_products.prepare_experts(experts)
    turned = npu.arguments("npu_weight_quant_preprocess")
    assert turned["weight"].shape == (3, 64, 64) and turned["weight"].data_ptr() == codes.data_ptr()
    assert turned["weight_scale"].shape == (3, 2, 64, 2) and turned["weight_scale"].stride() == (256, 2, 4, 1)
    assert (turned["weight_dtype"], turned["weight_scale_dtype"], turned["k_group_size"]) == (296, 293, 32)
    out_PN, start = ascend_products.fp4_grouped_linear(x_PK, starts_E1, prepared), 0
    for expert, count in enumerate(counts):
        rows = slice(start, start := start + count)
        assert torch.equal(out_PN[rows], (x_PK[rows].float() @ experts.dequantised(expert, torch.float32).t()).to(BF16))


def test_index_scores(npu: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend_index, "PARTIAL_NUMBERS", 32 * 2 * 11)  # a product of 11 keys for two rows
    keys_JK, q_TIK = torch.randn(50, 128), formats.fake_index(torch.randn(4, 32, 128))
    weight_TI, start_T, end_T = torch.randn(4, 32), torch.tensor([0, 0, 20, 20]), torch.tensor([7, 8, 50, 20])
    scores_TW = ascend_index.index_scores(q_TIK, weight_TI, formats.pack_index(keys_JK), start_T, end_T)
    assert scores_TW.shape == (4, 30) and (scores_TW > -torch.inf).sum(1).tolist() == [7, 8, 30, 0]
    whole = ((q_TIK @ formats.fake_index(keys_JK).t()).clamp(min=0) * weight_TI.unsqueeze(2)).sum(1)
    for t, (start, end) in enumerate(zip(start_T.tolist(), end_T.tolist())):
        torch.testing.assert_close(scores_TW[t, : end - start], whole[t, start:end])


@pytest.mark.parametrize("wanted", [1, 5, 40])
def test_the_best_entries_are_our_twins_with_equal_scores_too(wanted: int) -> None:
    scores_TJ = torch.randint(-2, 3, (6, 24)).float()  # mostly equal
    scores_TJ[1, 3], scores_TJ[2] = torch.nan, -torch.inf
    visible_T = torch.tensor([24, 20, 24, 0, 1, 13])
    mine, twin = (torch.empty(6, wanted, dtype=torch.int32) for _ in range(2))
    ascend_index.top_entries(scores_TJ, visible_T, mine)
    assert torch.equal(mine, indexer.top_entries(scores_TJ, visible_T, twin))


def test_another_chip_or_an_older_package_is_refused_with_a_remedy(npu: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    del npu.module.npu_weight_quant_preprocess
    with pytest.raises(ValueError, match=r"has no npu_weight_quant_preprocess; .*pip install torch-npu==2.13.0"):
        ascend_npu.npu()
    monkeypatch.setattr(deepseek_packages, "architecture", lambda: "sm90")
    with pytest.raises(ValueError, match="these adapters are for ascend950, this machine has sm90"):
        ascend_npu.npu()
