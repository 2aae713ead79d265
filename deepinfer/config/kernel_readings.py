"""Which rows of a kernel's measured times stand for which key of a calibration, and how a row becomes a rate.

A row of NVIDIA's aiconfigurator-core tables is one shape and its latency in milliseconds. The rate is the work (or the
bytes) that the shape cannot do without, over latency.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

Row = Mapping[str, Any]
Kind = Literal["flops", "bandwidth", "links"]

LARGE = 2048  # rows, columns and depth from which a product fills a chip
FP8_BYTES, MXFP4_BYTES, BF16_BYTES = 1.0, 0.5 + 1 / 32, 2.0
V4_FLASH_EXPERTS = {"hidden_size": 4096, "inter_size": 2048, "topk": 6, "num_experts": 256}
V3_EXPERTS = {"hidden_size": 7168, "inter_size": 2048, "topk": 8, "num_experts": 256}
ONE_RANK = {"moe_tp_size": 1, "moe_ep_size": 1, "distribution": "balanced"}
FOUR_RANKS = {"moe_ep_size": 4, "distribution": "uniform"}
INDEX_KEY_BYTES = 128 + 4  # FP8 and its scale, of a V4 index entry, which stands for four tokens
INDEX_HEADS, INDEX_RATIO = 64, 4
SITES, STREAMS = 2, 4  # of the residual streams of a V4 layer


class Reading(Struct, frozen=True, kw_only=True):
    """One key of a calibration: a table, which of its rows count, and what they do at least."""

    kind: Kind
    key: str
    table: str  # operation/backend/file
    where: dict[str, Any]
    amount: Callable[[Row], float]  # FLOPs or bytes of one row
    keep: Callable[[Row], bool] = lambda row: True
    each: str = ""  # latencies are sums over the values of this column


def rate_of(reading: Reading, rows: Iterable[Row]) -> float | None:
    """The median FLOP/s or bytes/s that the rows reach; None where the table has no such row."""
    fitting = [row for row in rows if all(row[name] == value for name, value in reading.where.items())]
    fitting = [row for row in fitting if reading.keep(row)]
    if not fitting:
        return None
    if reading.each:
        return reading.amount(fitting[0]) / (latency_ms(fitting, reading.each) / 1e3)
    return statistics.median(reading.amount(row) / (row["latency"] / 1e3) for row in fitting)


def latency_ms(rows: Iterable[Row], each: str) -> float:
    """Σ over the values of column `each` of the median latency."""
    found: dict[Any, list[float]] = {}
    for row in rows:
        found.setdefault(row[each], []).append(row["latency"])
    return sum(statistics.median(times) for times in found.values())


def gemm_flops(row: Row) -> float:
    """FLOPs of an M × N × K product."""
    return 2.0 * row["m"] * row["n"] * row["k"]


def gemm_bytes(row: Row) -> float:
    """FP8 operands in, bf16 out."""
    return FP8_BYTES * row["k"] * (row["n"] + row["m"]) + BF16_BYTES * row["m"] * row["n"]


def expert_flops(row: Row) -> float:
    """FLOPs of one rank: `num_tokens` are those of all ranks, each for `topk` experts."""
    return 2.0 * row["num_tokens"] * row["topk"] * expert_weights(row) / row["moe_ep_size"]


def expert_weights(row: Row) -> float:
    """Weights of one expert: gate, up and down."""
    return 3.0 * row["hidden_size"] * row["inter_size"]


def expert_bytes(row: Row) -> float:
    """Weights of the experts of one rank in FP8; at the batches that we read all are chosen."""
    return FP8_BYTES * row["num_experts"] / row["moe_ep_size"] * expert_weights(row)


def mxfp4_expert_bytes(row: Row) -> float:
    """The same in MXFP4."""
    return expert_bytes(row) * MXFP4_BYTES / FP8_BYTES


def stream_bytes(row: Row) -> float:
    """Residual streams in and out and the layer's row out and in, bf16, at both sites of a layer."""
    return SITES * (2 * STREAMS + 3) * row["hidden_size"] * BF16_BYTES * row["num_tokens"]


def index_flops(row: Row) -> float:
    """Scores of `isl` queries against the entries of what came before them."""
    return 2.0 * INDEX_HEADS * 128 * row["batch_size"] * row["isl"] * row["step"] / INDEX_RATIO


def index_bytes(row: Row) -> float:
    """Index keys of every sequence."""
    return INDEX_KEY_BYTES * row["batch_size"] * (row["step"] + row["isl"]) / INDEX_RATIO


def exchanged_bytes(row: Row) -> float:
    """Bytes that leave a rank in an all-to-all; sizes are counted in 16-bit elements."""
    return BF16_BYTES * row["message_size"] * (row["num_gpus"] - 1) / row["num_gpus"]


def _large(row: Row) -> bool:
    return min(row["m"], row["n"], row["k"]) >= LARGE


def _product(key: str, dtype: str) -> Reading:
    where = {"gemm_dtype": dtype}
    return Reading(kind="flops", key=key, table="gemm/{backend}/gemm_perf", where=where, amount=gemm_flops, keep=_large)


def _experts(kind: Kind, key: str, where: dict[str, Any], amount: Callable[[Row], float]) -> Reading:
    return Reading(kind=kind, key=key, table="moe/{backend}/moe_perf", where=ONE_RANK | where, amount=amount)


_FP8 = V4_FLASH_EXPERTS | {"moe_dtype": "fp8_block"}
_MXFP4 = V4_FLASH_EXPERTS | {"moe_dtype": "w4a8_mxfp4_mxfp8"}
_DEEPGEMM = V3_EXPERTS | FOUR_RANKS
_LOGITS = "sparse_attention/sglang/dsv4_paged_mqa_logits_module_perf"

READINGS = (  # of two for one key the later one counts, where its rows are there
    _product("f8_e4m3", "fp8_block"),
    _product("bf16", "bfloat16"),
    _product("f4_e2m1", "nvfp4"),
    Reading(
        kind="bandwidth",
        key="weights",
        table="gemm/{backend}/gemm_perf",
        where={"gemm_dtype": "fp8_block", "m": 64},
        keep=lambda row: row["n"] * row["k"] >= 30e6,
        amount=gemm_bytes,
    ),
    _experts("flops", "experts/f8_e4m3", _FP8 | {"num_tokens": 16384}, expert_flops),
    _experts("bandwidth", "experts/weights", _FP8 | {"num_tokens": 256}, expert_bytes),
    Reading(
        kind="flops",
        key="experts/f8_e4m3",
        table="moe/sglang/wideep_context_moe_perf",
        where=_DEEPGEMM | {"num_tokens": 65536},
        amount=expert_flops,
    ),
    Reading(
        kind="bandwidth",
        key="experts/weights",
        table="moe/sglang/wideep_generation_moe_perf",
        where=_DEEPGEMM | {"num_tokens": 512},
        amount=expert_bytes,
    ),
    _experts("flops", "experts/f8_e4m3", _MXFP4 | {"num_tokens": 16384}, expert_flops),
    _experts("bandwidth", "experts/weights", _MXFP4 | {"num_tokens": 256}, mxfp4_expert_bytes),
    Reading(
        kind="bandwidth",
        key="mhc/streams",
        table="mhc/{backend}/mhc_module_perf",
        where={"num_tokens": 4096, "hidden_size": 4096},
        amount=stream_bytes,
        each="op_name",
    ),
    Reading(
        kind="flops",
        key="index/{index}",
        table=_LOGITS,
        where={"num_heads": INDEX_HEADS, "isl": 8192, "step": 524288, "tp_size": 1, "batch_size": 1},
        amount=index_flops,
    ),
    Reading(
        kind="bandwidth",
        key="cache",
        table=_LOGITS,
        where={"num_heads": INDEX_HEADS, "isl": 1, "step": 1000000, "tp_size": 1, "batch_size": 1},
        amount=index_bytes,
    ),
)
