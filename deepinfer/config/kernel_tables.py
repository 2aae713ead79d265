"""What kernels reach by the measured tables of NVIDIA's aiconfigurator-core (Apache-2.0), an optional package.

Its parquet files lie at systems/data/SYSTEM/operation/backend/version/name.parquet; the newest version of a table is read.
"""

import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from msgspec import Struct

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.kernel_readings import (
    FP8_BYTES,
    MXFP4_BYTES,
    ONE_RANK,
    READINGS,
    V4_FLASH_EXPERTS,
    Row,
    exchanged_bytes,
    latency_ms,
    rate_of,
)
from deepinfer.config.libraries import BY_NAME

PACKAGE = "aiconfigurator_core"
NEEDED = {PACKAGE: "aiconfigurator-core", "pyarrow": "pyarrow"}  # module → distribution
ATTENTION_KINDS = ("csa", "hca")  # layers of V4-Flash, as many of one kind as of the other
V4_FLASH_ATTENTION_BYTES = 4096 * (1024 + 512) + 1024 * 32768 + 4096 * 8192 + 8192 * 4096  # FP8, one layer
V4_FLASH_CHOSEN, V4_FLASH_EXPERT = 6, 3 * 4096 * 2048
MOE, MXFP4 = "moe/{backend}/moe_perf", {"moe_dtype": "w4a8_mxfp4_mxfp8"}
ONE_ROW = V4_FLASH_EXPERTS | ONE_RANK | {"num_tokens": 1}


class KernelRates(Struct, frozen=True, kw_only=True):
    """What kernels reach on one system, by the keys of a calibration, and what passes between them."""

    flops_per_s: dict[str, float]  # "{index}" stands for the dtype that the chip computes index scores in
    bandwidth_bytes_per_s: dict[str, float]
    links_bytes_per_s: dict[str, float]
    latency_s: float | None  # of V4-Flash's three modules of one layer, at one row
    read_bytes: dict[str, float]  # weights that such a layer reads meanwhile, by key of the bandwidth
    collective_latency_s: float | None


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
    """Where the package keeps its tables; Refused where it, or what reads them, is not installed."""
    missing = [distribution for module, distribution in NEEDED.items() if find_spec(module) is None]
    found = find_spec(PACKAGE)
    if missing or found is None or not found.submodule_search_locations:
        problem = Problem(
            asked="cost=aiconfigurator",
            found=f"{' and '.join(missing or [PACKAGE])} {'are' if len(missing) > 1 else 'is'} not installed",
            why="this option reads the tables of aiconfigurator-core, which are parquet files",
            fix=BY_NAME["aiconfigurator-core"].get,
            code=ExitCode.PLAN,
        )
        raise Refused([problem])
    return Path(found.submodule_search_locations[0]) / "systems" / "data"


def known_systems() -> tuple[str, ...]:
    """Systems that there are tables of, sorted; Refused as in `data_folder`."""
    return tuple(sorted(folder.name for folder in data_folder().iterdir() if folder.is_dir()))


def _version(file: Path) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", file.parent.name))


def rates_from(tables: TableFiles) -> KernelRates:
    """Everything that the tables of one system tell."""
    found: dict[str, dict[str, float]] = {"flops": {}, "bandwidth": {}}
    for reading in READINGS:
        if tables.backend != "sglang" and "/sglang/wideep" in reading.table:
            continue
        rate = rate_of(reading, tables.rows(reading.table, reading.where))
        if rate is not None:
            found[reading.kind][reading.key] = rate
    widest = _widest(tables.rows("comm/nccl/nccl_perf", {"op_name": "alltoall"}))
    packed = tables.rows(MOE, ONE_ROW | MXFP4)
    parts_ms = [_attention_ms(tables), _experts_ms(tables, packed), _streams_ms(tables)]
    expert_bytes = V4_FLASH_EXPERT * (MXFP4_BYTES if packed else FP8_BYTES)
    return KernelRates(
        flops_per_s=found["flops"],
        bandwidth_bytes_per_s=found["bandwidth"],
        links_bytes_per_s={"nvlink": exchanged_bytes(widest) / (widest["latency"] / 1e3)} if widest else {},
        latency_s=None if None in parts_ms else sum(part for part in parts_ms if part is not None) / 1e3,
        read_bytes={"weights": V4_FLASH_ATTENTION_BYTES, "experts/weights": V4_FLASH_CHOSEN * expert_bytes},
        collective_latency_s=_collective_latency_s(tables),
    )


def _widest(rows: list[Row]) -> Row | None:
    """The largest exchange of most ranks, in 16-bit elements."""
    halves = [row for row in rows if row["nccl_dtype"] == "half"]
    return max(halves, key=lambda row: (row["num_gpus"], row["message_size"]), default=None)


def _collective_latency_s(tables: TableFiles) -> float | None:
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
            tables.rows(f"sparse_attention/{backend}/dsv4_{kind}_generation_module_perf", where)
            for kind in ATTENTION_KINDS
        ]
        if all(kinds):
            found.append(sum(min(row["latency"] for row in rows) for rows in kinds) / len(kinds))
    return min(found, default=None)


def _experts_ms(tables: TableFiles, packed: list[Row]) -> float | None:
    rows = packed or tables.rows(MOE, ONE_ROW | {"moe_dtype": "fp8_block"})
    return latency_ms(rows, "op_name") if rows else None


def _streams_ms(tables: TableFiles) -> float | None:
    rows = tables.rows("mhc/{backend}/mhc_module_perf", {"num_tokens": 1, "hidden_size": 4096})
    return latency_ms(rows, "op_name") if rows else None
