"""Rows of measured tables become shares: a few cited rows by hand, and every figure of cost=calibrated where the package is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from deepinfer.config.chips import Chip
from deepinfer.config.cost_facts import system_of
from deepinfer.config.errors import Refused
from deepinfer.config.kernel_readings import READINGS, Reading, exchanged_bytes, rate_of
from deepinfer.config.kernel_tables import PACKAGE, TableFiles, rates_from
from deepinfer.plan.cost.tables import layer_latency_s, shares_of
from deepinfer.plan.cost.types import Calibration

SHARES = yaml.safe_load((Path(__file__).parents[3] / "conf" / "cost" / "calibrated.yaml").read_text())["architectures"]
H200_F8, H200_BANDWIDTH, H200_NVLINK = 1979e12, 4.8e12, 450e9
V3 = {
    "hidden_size": 7168,
    "inter_size": 2048,
    "topk": 8,
    "num_experts": 256,
    "moe_ep_size": 4,
    "distribution": "uniform",
}
LOGITS = {"num_heads": 64, "batch_size": 1, "tp_size": 1}
MHC = {"num_tokens": 4096, "hidden_size": 4096}


def reading(key: str, table: str = "") -> Reading:
    return next(r for r in READINGS if r.key == key and table in r.table)


CITED = [  # rows of aiconfigurator-core 0.12.0, h200_sxm, as they stand there
    (
        reading("f8_e4m3"),
        [{"gemm_dtype": "fp8_block", "m": 4096, "n": 5120, "k": 8192, "latency": 0.268553}],
        H200_F8,
        0.646,
    ),
    (
        reading("experts/f8_e4m3", "wideep"),
        [V3 | {"num_tokens": 65536, "latency": 9.843108}],
        H200_F8,
        SHARES["sm90"]["flops"]["experts/f8_e4m3"]["value"],
    ),
    (
        reading("experts/weights", "wideep"),
        [V3 | {"num_tokens": 512, "latency": 0.738874}],
        H200_BANDWIDTH,
        SHARES["sm90"]["bandwidth"]["experts/weights"]["value"],
    ),
    (
        reading("mhc/streams"),
        [MHC | {"op_name": "pre", "latency": 0.1795}, MHC | {"op_name": "post", "latency": 0.1504}],
        H200_BANDWIDTH,
        SHARES["sm90"]["bandwidth"]["mhc/streams"]["value"],
    ),
    (
        reading("index/{index}"),
        [LOGITS | {"isl": 8192, "step": 524288, "latency": 22.776163}],
        H200_F8,
        SHARES["sm90"]["flops"]["index/f8_e4m3"]["value"],
    ),
    (
        reading("cache"),
        [LOGITS | {"isl": 1, "step": 1000000, "latency": 0.009456}],
        H200_BANDWIDTH,
        SHARES["sm90"]["bandwidth"]["cache"]["value"],
    ),
]


@pytest.mark.parametrize(("how", "rows", "peak", "share"), CITED, ids=[case[0].key for case in CITED])
def test_cited_rows(how: Reading, rows: list[dict[str, Any]], peak: float, share: float) -> None:
    assert rate_of(how, rows) / peak == pytest.approx(share, abs=6e-4)


def test_the_widest_exchange() -> None:
    row = {"num_gpus": 8, "message_size": 268435456, "latency": 1.50991}
    share = exchanged_bytes(row) / (row["latency"] / 1e3) / H200_NVLINK
    assert share == pytest.approx(SHARES["sm90"]["links"]["nvlink"]["value"], abs=6e-4)


def test_rows_that_do_not_fit_are_left_out() -> None:
    small = {"gemm_dtype": "fp8_block", "m": 64, "n": 5120, "k": 8192, "latency": 1e-9}
    other = {"gemm_dtype": "bfloat16", "m": 4096, "n": 5120, "k": 8192, "latency": 1e-9}
    assert rate_of(reading("f8_e4m3"), [small, other]) is None
    rate = rate_of(reading("f8_e4m3"), [CITED[0][1][0], small, other])
    assert rate / H200_F8 == pytest.approx(0.646, abs=6e-4)


@pytest.mark.parametrize(("architecture", "name"), [("sm90", "h200"), ("sm100", "gb200"), ("sm103", "gb300")])
def test_calibrated_is_what_the_tables_say(architecture: str, name: str, chip_of: Callable[[str], Chip]) -> None:
    pytest.importorskip(PACKAGE)
    chip, written = chip_of(name), SHARES[architecture]
    rates = rates_from(TableFiles(system_of(chip), "sglang"))
    found = shares_of(rates, chip)
    compared = 0
    for kind in ("flops", "bandwidth", "links"):
        for key, fact in written[kind].items():
            if "aiconfigurator" in fact["source"] or "the same table" in fact["source"]:
                assert found[kind][key] == pytest.approx(fact["value"], abs=6e-4), key
                compared += 1
    assert compared >= 8
    layer_us = float(written["layer_latency_s"]["value"].removesuffix("us"))
    assert layer_latency_s(rates) == pytest.approx(layer_us / 1e6, rel=0.005)
    call_us = float(written["collective_latency_s"]["value"].removesuffix("us"))
    assert rates.collective_latency_s == pytest.approx(call_us / 1e6, rel=0.01)


def test_the_option_reads_the_tables_of_its_chip(calibrate: Callable[..., Calibration]) -> None:
    pytest.importorskip(PACKAGE)
    found = calibrate("hardware=gb300", "cost=aiconfigurator", "cost.backend=vllm")
    assert "gb300, vllm" in found.source and 0 < found.flops_share["f8_e4m3"] < 1
    for chip, key, words in (
        ("ascend950", "auto", "type: cost=calibrated"),
        ("h200", "h20_sxm", "type: cost.system=h200_sxm"),
    ):
        with pytest.raises(Refused, match=words.replace(".", r"\.")):
            calibrate(f"hardware={chip}", "cost=aiconfigurator", f"cost.system={key}")
