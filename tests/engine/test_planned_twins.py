"""Torch's twins of the fused operations on a GPU: what a step of them is planned with."""

import torch
from traced_bytes import META, traced

from deepinfer.config.compose import load
from deepinfer.config.facts import probe
from deepinfer.ops.sparse_attention import sparse_attention
from deepinfer.plan.resolve import resolve
from deepinfer.plan.twin_step import twin_bytes
from deepinfer.plan.types import Plan

ROWS = 512


def tiny(*overrides: str) -> Plan:
    spec = load("task=plan", "model=v41_tiny", "hardware=h200", *overrides)
    return resolve(spec, probe(spec))


def test_keys_that_the_twin_of_attention_expands_are_planned() -> None:
    plan = tiny("kernels=reference")
    c = plan.model.config
    lists = [torch.empty(ROWS, slots, dtype=torch.int32, device=META) for slots in (c.sliding_window, c.index_topk)]
    sizes = (c.head_dim + c.head_dim // 32, c.head_dim // 2 + c.head_dim // 16)
    window, main = (torch.empty(9, 64, size, dtype=torch.uint8, device=META) for size in sizes)
    q_THK = torch.empty(ROWS, c.num_attention_heads, c.head_dim, dtype=torch.bfloat16, device=META)
    sink_H, rope_T2F = torch.empty(c.num_attention_heads, device=META), torch.empty(ROWS, 2, 32, device=META)
    with traced() as trace:
        sparse_attention(q_THK, window, lists[0], main, lists[1], sink_H, 1.0, rope_T2F)
    planned = twin_bytes(c, ROWS, 2) - twin_bytes(c, 0, 2)
    assert trace.peak <= planned <= 1.4 * trace.peak
    twins, kernels = (each.memory[0].item("workspace").num_bytes for each in (plan, tiny()))
    assert twins > kernels + planned * plan.scheduler.max_num_batched_tokens / ROWS / 2
