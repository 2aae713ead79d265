"""Short fingerprints: two of what a plan does, and a seal of all that is written in its file.

The first two cover neither prompts nor outputs, paths, ports, costs or reasons; the seal covers every key.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec

from deepinfer.plan.types import SEAL, OpChoice, Plan, RolePlan

DIGEST_CHARS = 16


def digest(value: Any) -> str:
    """Fingerprint of plain data or Structs; equal data gives equal text, whatever order its mappings were built in."""
    data = msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(data).hexdigest()[:DIGEST_CHARS]


def seal(written: dict[str, Any]) -> str:
    """Fingerprint of a plan's file, as parsed, but for the seal itself: any other key, value or type gives another one."""
    return digest({key: value for key, value in written.items() if key != SEAL})


def sealed(plan: Plan) -> bytes:
    """The plan as JSON with its seal, by which `rank` knows that nobody edited it."""
    written = msgspec.json.decode(plan.to_json())
    return msgspec.json.encode({**written, SEAL: seal(written)})


def rank_digest(plan: Plan) -> str:
    """What all ranks of a run must share; ranks that differ refuse to start."""
    return digest(
        {
            "deepinfer": plan.deepinfer,
            "weights": plan.model.weights_digest,
            "config": digest(plan.model.config),
            "max_model_len": plan.model.max_model_len,
            "roles": [_role(role) for role in plan.layout.roles],
            "cache": plan.cache,
            "blocks": [
                (memory.ranks, memory.num_blocks, memory.num_state_slots, memory.num_snapshots)
                for memory in plan.memory
            ],
            "numerics": plan.numerics,
            "drafting": plan.drafting,
            "scheduler": plan.scheduler,
            "graph": [(node.name, node.implementation, node.settings) for node in plan.graph],
        }
    )


def numerics_digest(plan: Plan) -> str:
    """What fixes the bits of an output: weights, formats, ops, replay. The key of every cache and measured curve.

    Roles with the same ops on the same architecture count once, so that splitting prefill from decode changes nothing.
    """
    first, *others = {digest(way): way for way in map(_way, plan.layout.roles)}.values()
    return digest(
        {
            "deepinfer": plan.deepinfer,
            "weights": plan.model.weights_digest,
            "config": digest(plan.model.config),
            "numerics": plan.numerics.numerics,
            "dtype": plan.numerics.dtype,
            "threads": plan.numerics.threads,
            "replay": (plan.numerics.replay, plan.numerics.replay_keep_tokens),
            **({"hits": "bounded"} if plan.numerics.replay_on_hit == "bounded" else {}),
            **first,
            **({"other_roles": others} if others else {}),
        }
    )


def rounding(architecture: str, ops: Iterable[OpChoice]) -> dict[str, Any]:
    """What rounds the numbers of a role: equal for two roles whose bits are the same."""
    return {"architecture": architecture, "ops": [(choice.op, choice.implementation) for choice in ops]}


def _way(role: RolePlan) -> dict[str, Any]:
    return rounding(role.hardware.architecture, role.ops)


def _role(role: RolePlan) -> dict[str, Any]:
    """A role without what is measured or only told."""
    data: dict[str, Any] = msgspec.to_builtins(role)
    named = {key: value for key, value in data.items() if key not in ("hardware", "ops", "floors")}
    return {**named, **_way(role)}
