"""Engines of an accelerator on the CPU: fused operations as plain torch, every lane and copy as on a device."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from golden_engine import GOLDEN, small_plan

from deepinfer.engine.build import EngineGraph, build_graph
from deepinfer.engine.device_executor import DeviceExecutor
from deepinfer.ops.device import twins
from deepinfer.plan.types import Plan


@cache
def golden_of_blocks() -> Path:
    """The golden checkpoint with candidates in blocks of 8, which is what fused operations choose."""
    folder = Path(mkdtemp(prefix="golden-of-blocks-"))
    for file in (GOLDEN / "tiny_a").iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file)
    config = (GOLDEN / "tiny_a" / "config.json").read_text("utf-8")
    assert '"candidate_block_size": 4' in config
    (folder / "config.json").write_text(
        config.replace('"candidate_block_size": 4', '"candidate_block_size": 8'), "utf-8"
    )
    return folder


def blocks_plan(*overrides: str) -> Plan:
    return small_plan(f"model.path={golden_of_blocks()}", "model.dtype=float64", "cost=roofline", *overrides)


def device_graph(*overrides: str) -> EngineGraph:
    """In float64: twins round a row alike in any company but for its last bits, which no token shows then."""
    return build_graph(blocks_plan(*overrides), poison_freed=True, device_ops=twins())


def local_graph(*overrides: str) -> EngineGraph:
    return build_graph(blocks_plan(*overrides), poison_freed=True)


def device_executor(graph: EngineGraph) -> DeviceExecutor:
    executor = getattr(graph.executor, "inner", graph.executor)
    assert isinstance(executor, DeviceExecutor)
    return executor
