"""Which operations a model gets on a Hopper GPU, and the sentences that say why."""

import json
import os
from dataclasses import fields

import msgspec
import pytest
import torch

from deepinfer.arch.config import V41Config, parse_config
from deepinfer.arch.kernel_widths import CHOICES, fp8_weights, reasons
from deepinfer.config.facts import shipped_folder
from deepinfer.ops.device_choice import device_ops, refusals

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def shipped(name: str) -> V41Config:
    return parse_config(json.loads((shipped_folder(name) / "config.json").read_text()))


def test_the_released_model_gets_every_fast_kernel() -> None:
    assert reasons(shipped("v41_flash")) == () and refusals(shipped("v41_flash"), torch.bfloat16) == []
    ops, why = device_ops(shipped("v41_flash"), torch.bfloat16)
    assert ops.name == "hopper" and why == ()


def test_the_least_widths_of_the_fast_kernels_get_them() -> None:
    """A small model with the release's heads."""
    least = {
        "hidden_size": 1024,
        "num_attention_heads": 64,
        "q_lora_rank": 512,
        "o_lora_rank": 128,
        "index_n_heads": 32,
    }
    least |= {
        "moe_intermediate_size": 256,
        "dspark_markov_rank": 256,
        "n_routed_experts": 128,
        "dspark_n_routed_experts": 128,
    }
    assert reasons(msgspec.structs.replace(shipped("v41_tiny"), **least)) == ()


def test_the_shipped_tiny_model_gets_general_ones_where_its_widths_ask_for_them() -> None:
    from deepinfer.ops.hopper import hopper

    ops, why = device_ops(shipped("v41_tiny"), torch.bfloat16)
    assert why == reasons(shipped("v41_tiny"))
    for line in (
        "hidden_size=256: the kernel of hyper_border takes multiples of 1,024 to 5,120; a general kernel computes hyper_border",
        "dspark_markov_rank=32: the kernel of markov_step has rank 256; a general kernel computes markov_step",
    ):
        assert line in why
    names = {field.name for field in fields(ops) if _original(ops, field.name) != _original(hopper(), field.name)}
    general = {
        "fp8_linear",
        "fp8_grouped_linear",
        "sparse_attention",
        "paged_index_scores",
        "candidate_scores",
        "hyper_border",
    }
    general |= {
        "bf16_linear",
        "router",
        "markov_step",
        "markov_work",
        "prepare_fp8_weight",
        "prepare_hyper_site",
        "name",
    }
    assert names == general
    assert all(
        any(name in line for line in why)
        for name in general
        if not name.startswith(("prepare_", "markov_work", "name"))
    )


@pytest.mark.parametrize(
    "change, operation",
    [
        ({"o_lora_rank": 96}, "fp8_grouped_linear"),
        ({"sliding_window": 100}, "sparse_attention"),
        ({"index_topk": 100}, "sparse_attention"),
        ({"index_topk": 2112}, "sparse_attention"),
        ({"num_attention_heads": 32}, "sparse_attention"),
        ({"qk_rope_head_dim": 32}, "rotate_quantise_index_q"),
        ({"index_n_heads": 16}, "candidate_scores"),
        ({"candidate_block_size": 4}, "candidate_blocks and top_entries"),
        ({"hc_mult": 2}, "hyper_border"),
        ({"hidden_size": 6144}, "hyper_border"),
        ({"n_routed_experts": 640}, "router"),
        ({"n_routed_experts": 512}, "fp4_grouped_linear"),
        ({"dspark_num_experts_per_tok": 9}, "router"),
        ({"moe_intermediate_size": 2336}, "fp4_experts_up"),
        ({"dspark_markov_rank": 128}, "markov_step"),
        ({"hidden_size": 5152}, "bf16_linear"),
    ],
)
def test_each_width_that_a_kernel_has_moves_its_operations_alone(change: dict[str, int], operation: str) -> None:
    config = msgspec.structs.replace(shipped("v41_flash"), **change)
    ((name, value),) = change.items()
    chosen = [line for line in reasons(config) if operation in line]
    assert len(chosen) == 1 and (f"{name}={value}" in chosen[0] or "×" in chosen[0] or "9 chosen" in chosen[0])


def test_widths_that_no_kernel_takes_are_refused_all_at_once() -> None:
    many = {"index_topk": 5000, "index_n_heads": 6, "o_groups": 1, "o_lora_rank": 16}
    config = msgspec.structs.replace(
        shipped("v41_tiny"), head_dim=96, vocab_size=1000, moe_intermediate_size=100, **many
    )
    assert len(refusals(config, torch.bfloat16)) == 6
    with pytest.raises(
        ValueError, match=r"float32.*head_dim=96.*moe_intermediate_size=100.*vocab_size=1000.*kernels=reference"
    ):
        device_ops(config, torch.float32)


def test_small_cache_blocks_move_the_index_scores_and_odd_ones_are_refused() -> None:
    (line,) = reasons(shipped("v41_flash"), block_tokens=32)
    assert "cache.block_tokens=32" in line and "not 16 and 32" in line and "paged_index_scores" in line
    ops, why = device_ops(shipped("v41_flash"), torch.bfloat16, block_tokens=32)
    assert why == (line,) and ops.name == "hopper and general"
    with pytest.raises(ValueError, match=r"cache\.block_tokens=24: .*multiple of 16"):
        device_ops(shipped("v41_flash"), torch.bfloat16, block_tokens=24)


def test_operations_belong_to_one_choice_each() -> None:
    names = [name for choice in CHOICES for name in choice.operations]
    assert len(names) == len(set(names)) and ((1280 + 512, 5120), "wq_a and wkv together") in fp8_weights(
        shipped("v41_flash")
    )


def _original(ops: object, name: str) -> object:
    operation = getattr(ops, name)
    inner = getattr(operation, "__wrapped__", operation)
    return getattr(inner, "func", inner)
