"""Calibrations from the measured tables of NVIDIA's aiconfigurator-core (Apache-2.0), an optional package.

Its parquet files lie at systems/data/SYSTEM/operation/backend/version/name.parquet; the newest version of a table is read.
"""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from deepinfer.config.chips import Chip
from deepinfer.config.errors import ExitCode, Problem, Refused, listed, nearest
from deepinfer.config.libraries import BY_NAME
from deepinfer.plan.cost.readings import (
    FP8_BYTES,
    MXFP4_BYTES,
    ONE_RANK,
    READINGS,
    V4_FLASH_EXPERTS,
    Kind,
    Reading,
    Row,
    exchanged_bytes,
    latency_ms,
    share_of,
)
from deepinfer.plan.cost.timing import computed_in

PACKAGE, DISTRIBUTION = "aiconfigurator_core", BY_NAME["aiconfigurator-core"]
SYSTEMS = {  # by words of a chip's name, the longer ones first
    "GB300": "gb300",
    "GB200": "gb200",
    "B300": "b300_sxm",
    "B200": "b200_sxm",
    "H200": "h200_sxm",
    "H100": "h100_sxm",
}
ATTENTION_KINDS = ("csa", "hca")  # layers of V4-Flash, as many of one kind as of the other
V4_FLASH_ATTENTION_BYTES = 4096 * (1024 + 512) + 1024 * 32768 + 4096 * 8192 + 8192 * 4096  # FP8, one layer
V4_FLASH_CHOSEN, V4_FLASH_EXPERT = 6, 3 * 4096 * 2048
MOE, MXFP4 = "moe/{backend}/moe_perf", {"moe_dtype": "w4a8_mxfp4_mxfp8"}
ONE_ROW = V4_FLASH_EXPERTS | ONE_RANK | {"num_tokens": 1}


class TableFiles:
    """The tables of one system and backend; a table that is not there has no rows."""

    def __init__(self, system: str, backend: str) -> None:
        self.system, self.backend = system, backend
        self.root = data_folder() / system

    def rows(self, table: str, where: Mapping[str, Any]) -> list[Row]:
        """Rows of `operation/backend/name` whose columns have the values of `where`."""
        from pyarrow import parquet  # a second of imports that only this option pays

        operation, backend, name = table.format(backend=self.backend).split("/")
        files = sorted(self.root.glob(f"{operation}/{backend}/*/{name}.parquet"), key=_version)
        if not files:
            return []
        known = parquet.read_schema(files[-1]).names
        filters = [(column, "==", value) for column, value in where.items() if column in known]
        if len(filters) < len(where):
            return []
        found: list[Row] = parquet.read_table(files[-1], filters=filters or None).to_pylist()
        return found


def data_folder() -> Path:
    """Where the package keeps its tables; Refused where it is not installed."""
    found = find_spec(PACKAGE)
    if found is None or not found.submodule_search_locations or find_spec("pyarrow") is None:
        problem = Problem(
            asked="cost=aiconfigurator",
            found="the package aiconfigurator-core is not installed",
            why="its tables are what this option reads",
            fix=DISTRIBUTION.get,
            code=ExitCode.PLAN,
        )
        raise Refused([problem])
    return Path(found.submodule_search_locations[0]) / "systems" / "data"


def system_of(chip: Chip, asked: str = "auto") -> str:
    """The folder of tables for a chip; Refused where there is none."""
    known = sorted(folder.name for folder in data_folder().iterdir() if folder.is_dir())
    if asked != "auto":
        if asked in known:
            return asked
        near = nearest(asked, known)
        raise Refused([_no_system(f"cost.system={asked}", known, f"cost.system={near}" if near else "")])
    for word, system in SYSTEMS.items():
        if word in chip.name.upper() and system in known:
            return system
    raise Refused([_no_system(f"cost=aiconfigurator for {chip.name}", known, "cost=calibrated")])


def _no_system(asked: str, known: list[str], fix: str) -> Problem:
    return Problem(asked=asked, found=f"there are tables of {listed(known)}", fix=fix, code=ExitCode.PLAN)


def _version(file: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", file.parent.name))


def shares_from(tables: TableFiles, chip: Chip) -> dict[Kind, dict[str, float]]:
    """Every share that the tables tell, by kind and key."""
    found: dict[Kind, dict[str, float]] = {"flops": {}, "bandwidth": {}, "links": {}}
    for reading in READINGS:
        key, peak = _key_and_peak(reading, chip)
        if tables.backend != "sglang" and "/sglang/wideep" in reading.table:
            continue
        share = share_of(reading, tables.rows(reading.table, reading.where), peak) if peak else None
        if share is not None:
            found[reading.kind][key] = min(1.0, share)
    nvlink = chip.links.get("nvlink")
    if nvlink is not None and (widest := _widest(tables.rows("comm/nccl/nccl_perf", {"op_name": "alltoall"}))):
        found["links"]["nvlink"] = exchanged_bytes(widest) / (widest["latency"] / 1e3) / nvlink.value
    return found


def _key_and_peak(reading: Reading, chip: Chip) -> tuple[str, float]:
    """The key with the dtype that the chip computes index scores in, and the figure of the data sheet; 0 for none."""
    key = reading.key.format(index=computed_in(chip, "f4_e2m1")[0])
    if reading.kind == "bandwidth":
        return key, chip.memory_bandwidth_bytes_per_s.value
    fact = chip.peak_flops_by_dtype.get(key.rpartition("/")[2])
    return key, fact.value if fact else 0.0


def _widest(rows: list[Row]) -> Row | None:
    """The largest exchange of most ranks, in 16-bit elements."""
    halves = [row for row in rows if row["nccl_dtype"] == "half"]
    return max(halves, key=lambda row: (row["num_gpus"], row["message_size"]), default=None)


def layer_latency_s(tables: TableFiles, chip: Chip, bandwidth: Mapping[str, float]) -> float | None:
    """What a layer takes beyond reading its weights: V4-Flash's three modules at one row, less those bytes."""
    parts_ms = [_attention_ms(tables), _experts_ms(tables), _streams_ms(tables)]
    if None in parts_ms or not {"weights", "experts/weights"} <= bandwidth.keys():
        return None
    expert_bytes = V4_FLASH_EXPERT * (MXFP4_BYTES if tables.rows(MOE, ONE_ROW | MXFP4) else FP8_BYTES)
    read = (
        V4_FLASH_ATTENTION_BYTES / bandwidth["weights"] + V4_FLASH_CHOSEN * expert_bytes / bandwidth["experts/weights"]
    )
    spent_s = sum(part for part in parts_ms if part is not None) / 1e3
    return max(0.0, spent_s - read / chip.memory_bandwidth_bytes_per_s.value)


def collective_latency_s(tables: TableFiles) -> float | None:
    """The mean of DeepEP's low-latency dispatch and combine of one row."""
    where = {"num_token": 1, "hidden_size": 7168, "num_topk": 8, "num_experts": 256, "node_num": 1}
    rows = tables.rows("comm/sglang/wideep_deepep_ll_perf", where)
    return (rows[0]["dispatch_avg_t_us"] + rows[0]["combine_avg_t_us"]) / 2e6 if rows else None


def _attention_ms(tables: TableFiles) -> float | None:
    """The mean of both kinds of layer at one sequence of 4,096 tokens, of the engine that is faster there."""
    where = {"num_heads": 64, "batch_size": 1, "step": 4096, "tp_size": 1, "gemm_type": "fp8_block"}
    found = []
    for backend in ("vllm", "sglang"):
        kinds = [
            [row for row in tables.rows(f"sparse_attention/{backend}/dsv4_{kind}_generation_module_perf", where)]
            for kind in ATTENTION_KINDS
        ]
        if all(kinds):
            found.append(sum(min(row["latency"] for row in rows) for rows in kinds) / len(kinds))
    return min(found, default=None)


def _experts_ms(tables: TableFiles) -> float | None:
    rows = tables.rows(MOE, ONE_ROW | MXFP4) or tables.rows(MOE, ONE_ROW | {"moe_dtype": "fp8_block"})
    return latency_ms(rows, "op_name") if rows else None


def _streams_ms(tables: TableFiles) -> float | None:
    rows = tables.rows("mhc/{backend}/mhc_module_perf", {"num_tokens": 1, "hidden_size": 4096})
    return latency_ms(rows, "op_name") if rows else None
