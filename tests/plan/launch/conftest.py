"""Launches of a few plans, rendered without a command line."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from deepinfer.config.specs import Spec
from deepinfer.plan.launch import render
from deepinfer.plan.launch.job import Rendered
from deepinfer.plan.types import Plan

DISAGGREGATED = (
    "hardware=gb300",
    "deploy=disaggregated",
    "parallel@deploy.prefill.parallel=ep4",
    "parallel@deploy.decode.parallel=ep64",
    "deploy.prefill.replicas=2",
    "speculation=dspark",
)
TWO_NODES = ("hardware=h200", "parallel=ep8", "parallel.attention_dp=16", "parallel.expert=16")
CASES: dict[str, tuple[str, ...]] = {
    "torchrun": (*TWO_NODES, "launcher=torchrun", "launcher.env.NCCL_DEBUG=WARN", "launcher.env.OMP_NUM_THREADS=8"),
    "slurm": (
        *DISAGGREGATED,
        "launcher=slurm",
        "launcher.partition=gpu",
        "launcher.account=lab",
        "launcher.time=1-00:00:00",
    ),
    "kubernetes": (
        *DISAGGREGATED,
        "launcher=kubernetes",
        "launcher.image=registry.example/deepinfer:1",
        "launcher.file_secret=keys",
        "serving.host=0.0.0.0",
        "serving.api_keys=/etc/deepinfer-secrets/keys.yaml",
    ),
    "ray": (*TWO_NODES, "launcher=ray"),
    "local": ("model=v41_tiny", "model.weights=dummy", "launcher=local", "launcher.python=python"),
}


@pytest.fixture
def launch_of(plan_of: Callable[..., Plan], spec_of: Callable[..., Spec]) -> Callable[..., tuple[Plan, Rendered]]:
    """The plan and the files of some overrides; `task` is what the ranks do, `cluster` a site."""

    def make(*overrides: str, task: str = "serve", cluster: Any = None) -> tuple[Plan, Rendered]:
        spec = spec_of(*overrides)
        serving = spec.serving if task == "serve" else None
        plan = structs.replace(plan_of(*overrides), task=task, serving=serving)
        return plan, render(plan, spec.launcher, cluster or spec.cluster)

    return make


@pytest.fixture
def case_of(launch_of: Callable[..., tuple[Plan, Rendered]]) -> Callable[[str], tuple[Plan, Rendered]]:
    return lambda name: launch_of(*CASES[name])


@pytest.fixture
def without_digests() -> Callable[[Plan, str], str]:
    """Text without the fingerprints of its plan, which change with the smallest size in it."""

    def replaced(plan: Plan, text: str) -> str:
        text = text.replace(plan.rank_digest, "<rank digest>").replace(plan.numerics_digest, "<numerics digest>")
        return re.sub(r"-plan-[0-9a-f]{8}\b", "-plan-<digest>", text)

    return replaced
