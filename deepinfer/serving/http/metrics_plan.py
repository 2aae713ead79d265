"""What is served, as gauges that are always 1: the plan's choices, its cache, this build."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from prometheus_client.core import GaugeMetricFamily, Metric

import deepinfer

GROUPS = (
    *("model", "hardware", "parallel", "deploy", "speculation", "sampling", "replay", "scheduler", "executor"),
    *("cache", "kernels", "grammar", "balancer"),
)


def infos(plan_json: bytes, prefix: str, labels: dict[str, str]) -> Iterator[Metric]:
    """`plan_json` is a plan's; what it does not say is left empty."""
    plan: dict[str, Any] = msgspec.json.decode(plan_json)
    choices = plan.get("choices", {})
    digests = {name: plan.get(name, "") for name in ("rank_digest", "numerics_digest")}
    told = {name: choices.get(name, "") for name in GROUPS} | digests
    layout, cache, capacity = (plan.get(name) or {} for name in ("layout", "cache", "capacity"))
    told["num_ranks"] = str(layout.get("num_ranks", ""))
    yield _info(f"{prefix}plan_info", "The plan that is served; /v1/plan has all of it.", labels | told)
    sizes = {
        "block_size": str(cache.get("block_tokens", "")),
        "num_blocks": str(capacity.get("num_blocks", "")),
        "cache_dtype": cache.get("dtype", ""),
        "enable_prefix_caching": str(choices.get("cache") == "prefix"),
    }
    yield _info(f"{prefix}cache_config_info", "The cache of a rank.", labels | sizes)
    build = {"version": deepinfer.__version__, "python": platform.python_version(), "torch": _version("torch")}
    yield _info(f"{prefix}build_info", "What runs.", labels | build)


def _info(name: str, about: str, labels: dict[str, str]) -> Metric:
    family = GaugeMetricFamily(name, about, labels=list(labels))
    family.add_metric(list(labels.values()), 1)
    return family


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
