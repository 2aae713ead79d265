"""Times of made-up steps on real chips, where the longest of a few numbers can be seen."""

import msgspec
import pytest

from deepinfer.plan.cost.timing import ROOFLINE, computed_in, step_time
from deepinfer.plan.cost.types import Calibration, LinkWork, PartWork, Work


def part(name: str = "ffn", *, flops: dict[str, float] | None = None, weight_bytes: float = 0.0) -> PartWork:
    return PartWork(
        part=name,
        flops=flops or {},
        weight_bytes=weight_bytes,
        cache_bytes=0.0,
        table_bytes=0.0,
        stream_bytes=1e9,
    )


def step(*parts: PartWork, link_bytes: float = 0.0) -> Work:
    link = LinkWork(link="nvlink", what="dispatch", num_bytes=link_bytes, bytes_per_s=450e9, calls=2)
    return Work(parts=parts, links=(link,) if link_bytes else (), rows=1, layers=10)


@pytest.fixture
def h200(chip_of):
    return chip_of("h200")


def test_the_longest_counts(h200):
    heavy, wide = part(flops={"bf16": 989e12, "f8_e4m3": 1979e12}), part("head", weight_bytes=4.8e12)
    bandwidth = h200.memory_bandwidth_bytes_per_s.value
    assert step_time(step(heavy), h200).time_s == pytest.approx(2)
    time = step_time(step(heavy, wide), h200)
    assert time.time_s == pytest.approx(max(2, 4.8e12 / bandwidth))
    assert (time.bound, time.bound_part) == ("compute bf16", "ffn")
    assert time.compute_s == {"bf16": pytest.approx(1), "f8_e4m3": pytest.approx(1)}
    linked = step_time(step(heavy, link_bytes=450e9 * 5), h200)
    assert (linked.time_s, linked.bound) == (pytest.approx(5), "link nvlink")
    read = step_time(step(wide), h200)
    assert (read.bound, read.bound_part) == ("memory", "head")


def test_a_missing_peak_is_stood_in_for(chip_of):
    hopper, ascend, blackwell = chip_of("h200"), chip_of("ascend950dt"), chip_of("b200")
    assert computed_in(hopper, "f4_e2m1") == ("f8_e4m3", 1979e12)
    assert computed_in(blackwell, "f4_e2m1") == ("f4_e2m1", 9000e12)
    assert computed_in(ascend, "tf32") == ("bf16", pytest.approx(432e12 / 3))  # nothing wider: three products
    assert computed_in(chip_of("cpu"), "f8_e4m3")[0] == "bf16"
    assert computed_in(msgspec.structs.replace(hopper, peak_flops_by_dtype={}), "bf16") == ("", float("inf"))


def test_a_calibration_lengthens_a_step(h200):
    work = step(part(flops={"bf16": 989e12}, weight_bytes=1e12), part("head", weight_bytes=4e12), link_bytes=450e9)
    ideal = step_time(work, h200)
    half = Calibration(label="calibrated", default_flops_share=0.5, default_bandwidth_share=0.5, default_link_share=0.5)
    assert step_time(work, h200, half).time_s == pytest.approx(2 * ideal.time_s)
    assert step_time(work, h200, Calibration(label="calibrated", system_share=0.8)).time_s == pytest.approx(
        ideal.time_s / 0.8
    )
    late = Calibration(label="calibrated", layer_latency_s=1, collective_latency_s=10)
    found = step_time(work, h200, late)
    assert found.time_s - ideal.time_s == pytest.approx(10 * 1 + 2 * 10) == found.latency_s
    assert found.bound == "latency"
    assert {ideal.label, found.label} == {"roofline", "calibrated"}


def test_parts_one_after_the_other_take_the_longer_of_each(h200):
    bandwidth = h200.memory_bandwidth_bytes_per_s.value
    work = step(part(flops={"bf16": 989e12}), part("head", weight_bytes=2 * bandwidth))
    assert step_time(work, h200).time_s == pytest.approx(2)
    serial = Calibration(label="calibrated", parts_overlap=False)
    assert step_time(work, h200, serial).time_s == pytest.approx(3)
    streams = msgspec.structs.replace(serial, counts_streams=True)
    assert step_time(work, h200, streams).time_s == pytest.approx(3 + 1e9 / bandwidth)


def test_shares_by_part_win_over_shares_by_dtype(h200):
    work = step(part("attention", flops={"bf16": 989e12}), part("head", flops={"bf16": 989e12}))
    shares = Calibration(label="measured", flops_share={"bf16": 0.5, "attention/bf16": 0.25})
    assert step_time(work, h200, shares).compute_s["bf16"] == pytest.approx(4 + 2)


def test_ranks_that_share_a_processor_divide_it(chip_of):
    work = step(part(flops={"f32": 1e9}, weight_bytes=1e9))
    one, two = (step_time(work, chip_of("cpu"), ROOFLINE, sharers=count).time_s for count in (1, 2))
    assert two == pytest.approx(2 * one)
