"""Two short fingerprints. Neither covers prompts, outputs, paths, ports, costs or reasons."""

import hashlib
from typing import Any

import msgspec

from deepinfer.plan.types import Plan

DIGEST_CHARS = 16


def digest(value: Any) -> str:
    """Fingerprint of plain data or Structs; equal data gives equal text, whatever order its mappings were built in."""
    data = msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]


def rank_digest(plan: Plan) -> str:
    """What all ranks of a run must share; ranks that differ refuse to start."""
    return digest(
        {
            "deepinfer": plan.deepinfer,
            "weights": plan.model.weights_digest,
            "config": plan.model.config_digest,
            "max_model_len": plan.model.max_model_len,
            "roles": plan.layout.roles,
            "cache": plan.cache,
            "blocks": [(memory.ranks, memory.num_blocks, memory.num_state_slots) for memory in plan.memory],
            "numerics": plan.numerics,
            "drafting": plan.drafting,
            "scheduler": plan.scheduler,
            "ops": _ops(plan),
            "graph": [(node.name, node.implementation, node.settings) for node in plan.graph],
        }
    )


def numerics_digest(plan: Plan) -> str:
    """What fixes the bits of an output: weights, formats, ops, replay. The key of every cache and measured curve."""
    return digest(
        {
            "deepinfer": plan.deepinfer,
            "weights": plan.model.weights_digest,
            "config": plan.model.config_digest,
            "numerics": plan.numerics.numerics,
            "dtype": plan.numerics.dtype,
            "threads": plan.numerics.threads,
            "replay": (plan.numerics.replay, plan.numerics.replay_keep_tokens),
            "architecture": plan.hardware.architecture,
            "ops": _ops(plan),
        }
    )


def _ops(plan: Plan) -> list[tuple[str, str]]:
    return [(choice.op, choice.implementation) for choice in plan.ops]
