"""Our own kernels' figures: what they say of recorded timings, and which plans are reckoned by them."""

import math
import re
import statistics
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec import structs

from deepinfer.config.costs import CalibratedCost, OwnKernels
from deepinfer.config.specs import Spec
from deepinfer.plan.cost.kernel_time import CACHE_BYTES, KernelTime
from deepinfer.plan.cost.links import Group
from deepinfer.plan.cost.own_kernels import kernel_time
from deepinfer.plan.cost.shape import Shape
from deepinfer.plan.cost.tile_waves import Tiled, waves_of
from deepinfer.plan.cost.timing import step_time
from deepinfer.plan.cost.types import Calibration, StepTime, Work
from deepinfer.plan.cost.work import Prompt, decode_work, prefill_work
from deepinfer.plan.types import Plan

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))  # benchmarks are no package

import kernel_cases
import kernel_fit

ROUGH = {
    "top_entries",
    "candidate_blocks",
    "expert_permutation",
    "accepted_lengths",
}  # microseconds, beyond the formula
PlanOf = Callable[..., Plan]


@pytest.fixture
def own(spec_of: Callable[..., Spec]) -> OwnKernels:
    cost = spec_of("hardware=h200").cost
    assert isinstance(cost, CalibratedCost)
    return cost.own_kernels["h200"]


@pytest.fixture
def work_of(drafting_flash: Shape, chip_of: Callable) -> Callable[[int], Work]:
    """A decode step of so many sequences with five drafts each, one rank of 64; without its links."""
    group = Group(chip=chip_of("h200"), num_ranks=64, expert=64)

    def make(sequences: int) -> Work:
        work = decode_work(drafting_flash, group, sequences, 4096, rows_each=6, drafts=5, accepted=3.5)
        return structs.replace(work, links=())

    return make


@pytest.fixture
def kernels(own: OwnKernels) -> Calibration:
    times = {name: kernel_time(figures) for name, figures in own.kernels.items()}
    sheet = {"sheet_bytes_per_s": own.sheet_bytes_per_s, "sheet_flops_per_s": own.sheet_flops_per_s}
    return Calibration(label="calibrated", kernels=times, multiprocessors=own.multiprocessors, **sheet)


def test_recorded_timings_are_met(own: OwnKernels) -> None:
    lines = kernel_cases.read()
    cases = kernel_cases.cases_of(lines)
    assert cases.keys() == own.kernels.keys()
    errors = {
        kind: [abs(kernel_fit.error(kernel_time(own.kernels[kind]), case)) for case in found]
        for kind, found in cases.items()
    }
    for kind, found in errors.items():
        assert statistics.median(found) < (0.5 if kind in ROUGH else 0.15), kind
    every = sorted(error for found in errors.values() for error in found)
    assert statistics.median(every) < 0.08 and every[int(0.9 * len(every))] < 0.25


def test_the_figures_name_their_origin(own: OwnKernels) -> None:
    origin = kernel_cases.origin_of(kernel_cases.read())
    assert own.device == origin.device and own.source.endswith(f"commit {origin.commit}")


def test_a_fit_finds_the_figures_that_timings_were_made_of() -> None:
    true = KernelTime(fixed_s=4e-6, bytes_per_s=3e12, flops_per_s=6e14, power=2.0)
    sizes = [(1e6, 1e9), (1e8, 1e9), (1e9, 1e10), (1e6, 1e12), (1e8, 1e11), (5e8, 3e11), (1e7, 1e8), (2e9, 5e12)]
    cases = [
        kernel_cases.Case(
            kind="made_up",
            name=str(number),
            seconds=true.latency_s() + true.together_s(moved / true.bytes_per_s, flops / true.flops_per_s),
            num_bytes=moved,
            flops=flops,
            length=0.0,
            product=Tiled(0.0, 0.0),
            cached=False,
        )
        for number, (moved, flops) in enumerate(sizes)
    ]
    found = kernel_fit.fit(cases)
    assert found.time.power == true.power and max(map(abs, found.held_out)) < 0.05
    for name in ("fixed_s", "bytes_per_s", "flops_per_s"):
        assert getattr(found.time, name) == pytest.approx(getattr(true, name), rel=0.03), name


PLAIN = KernelTime(fixed_s=1e-6, bytes_per_s=1e12, flops_per_s=1e15)


def test_the_formula_at_its_ends() -> None:
    assert PLAIN.together_s(1e-6, 2e-6) == pytest.approx(3e-6)
    assert structs.replace(PLAIN, power=60.0).together_s(1e-6, 2e-6) == pytest.approx(2e-6)
    assert PLAIN.together_s(0.0, 0.0) == 0.0 and PLAIN.latency_s() == 1e-6
    assert structs.replace(PLAIN, flops_per_s=math.inf).compute_s(2e9) == 0.0
    assert structs.replace(PLAIN, length_s=1e-9, exponent=0.5).latency_s(10_000) == pytest.approx(1.1e-6)


def test_rows_that_the_cache_holds_come_faster() -> None:
    warm = structs.replace(PLAIN, cached=2.0)
    assert PLAIN.memory_s(1e6) == warm.memory_s(1e6, calls=0.0) == pytest.approx(1e-6)
    assert warm.memory_s(1e6) == pytest.approx(0.5e-6) and warm.memory_s(8e6, calls=8.0) == pytest.approx(4e-6)
    assert warm.memory_s(3 * CACHE_BYTES) == pytest.approx(3 * CACHE_BYTES / 1e12)
    times = [warm.memory_s(share * CACHE_BYTES) for share in (0.5, 1.0, 1.2, 1.6, 2.0, 4.0)]
    assert all(less < more for less, more in pairwise(times))


def test_rows_take_turns_where_the_chip_has_no_room_for_all() -> None:
    some = structs.replace(PLAIN, resident=2)
    assert [some.turns(rows, 132) for rows in (1, 264, 265, 1056)] == [1, 1, 2, 4] and PLAIN.turns(10_000, 132) == 1
    assert some.latency_s(turns=some.turns(1056, 132)) == pytest.approx(4e-6)


def test_a_product_waits_for_its_last_round_of_tiles() -> None:
    assert waves_of(Tiled(4096, 128 * 132), PLAIN, 132) == 1.0  # whole tiles, whole rounds
    assert waves_of(Tiled(256, 5120), PLAIN, 132) == pytest.approx(132 / 80)
    assert waves_of(Tiled(192, 128 * 132), PLAIN, 132) == 1.0  # a tile of 192 rows: no second one of 128
    wide = structs.replace(PLAIN, tile=256)
    assert waves_of(Tiled(192, 256 * 132), wide, 132) == pytest.approx(4 / 3)  # which has no room for 192
    assert waves_of(Tiled(0, 5120), PLAIN, 132) == waves_of(Tiled(5, 0), PLAIN, 132) == 1.0


def test_few_tiles_are_cut_into_parts_and_each_part_has_its_price() -> None:
    product, kernel = Tiled(32, 1792, 5120), structs.replace(PLAIN, extra_rows=64.0)
    whole = waves_of(product, kernel, 132)
    cut = waves_of(product, structs.replace(kernel, parts=8), 132)
    assert whole / 8 <= cut < whole / 5
    assert cut < waves_of(product, structs.replace(kernel, parts=8, start=600.0), 132) < whole
    many = Tiled(32, 36864, 5120)  # tiles enough
    assert waves_of(many, structs.replace(kernel, parts=8, start=600.0), 132) == waves_of(many, kernel, 132)


def test_weights_are_brought_into_their_format_once_a_tile() -> None:
    dear = structs.replace(PLAIN, extra_rows=64.0)
    assert waves_of(Tiled(128, 128 * 132), dear, 132) == pytest.approx(1.5)
    assert waves_of(Tiled(4096, 128 * 132), dear, 132) == pytest.approx(1.25)  # tiles of 256 rows


def test_experts_of_uneven_loads_have_a_last_tile_half_full() -> None:
    full = 128 * 132 * 64  # of outputs: whole rounds
    wide = structs.replace(PLAIN, tile=256)
    assert waves_of(Tiled(512, full), wide, 132) == 1.0
    assert waves_of(Tiled(512, full, ragged=True), wide, 132) == pytest.approx(8.5 / 8)
    for form in (range(8, 65), range(65, 4096)):  # narrow bands, and wide ones
        shares = [waves_of(Tiled(rows, full, ragged=True), wide, 132) for rows in form]
        assert all(abs(more / fewer - 1) < 0.04 for fewer, more in pairwise(shares)), "a row more is no tile more"


def test_the_page_has_a_row_for_each_kernel(own: OwnKernels) -> None:
    page = (Path(__file__).parents[3] / "docs" / "costs.md").read_text("utf-8")
    table = page.split("<!-- kernels: begin -->")[1].split("<!-- kernels: end -->")[0]
    for name, figures in own.kernels.items():
        row = next(line for line in table.splitlines() if line.startswith(f"| `{name}` |"))
        least, rate = re.search(r"\| ([\d.]+) µs.*\| ([\d.]+) TB/s", row).groups()
        assert float(least) == pytest.approx(figures.fixed_s * 1e6, abs=0.06)
        assert float(rate) == pytest.approx(figures.bytes_per_s / 1e12, abs=0.006)


def test_every_launch_has_figures(
    work_of: Callable[[int], Work], flash: Shape, chip_of: Callable, own: OwnKernels
) -> None:
    group = Group(chip=chip_of("h200"), num_ranks=8, expert=8)
    for work in (work_of(8), prefill_work(flash, group, Prompt(tokens=4096, keep=140), 0.5)):
        named = {launch.op for launch in work.launches}
        assert named <= own.kernels.keys() and {"fp8_linear", "sparse_attention", "fp4_experts_up"} <= named
        assert all(launch.calls >= 0 and launch.num_bytes >= 0 for launch in work.launches)


def test_launches_do_the_work_of_their_parts(work_of: Callable[[int], Work]) -> None:
    """FLOPs are the parts' but for the streams', whose kernel is reckoned by its bytes; no launch reads fewer weights."""
    work = work_of(32)
    for part in work.parts:
        mine = [launch for launch in work.launches if launch.part == part.part]
        if part.part in ("attn_proj", "attention", "shared", "experts", "head"):
            assert sum(launch.flops for launch in mine) == pytest.approx(sum(part.flops.values())), part.part
        if part.part in ("attn_proj", "shared", "experts", "head", "router"):
            assert sum(launch.num_bytes for launch in mine) >= part.weight_bytes, part.part


def test_a_step_grows_with_its_sequences(
    work_of: Callable[[int], Work], chip_of: Callable, kernels: Calibration
) -> None:
    times = [step_time(work_of(count), chip_of("h200"), kernels) for count in (1, 2, 8, 64, 256)]
    assert all(later.time_s >= earlier.time_s for earlier, later in pairwise(times))
    assert times[0].bound in ("latency", "memory") and times[-1].bound.startswith("compute")
    for time in times:
        assert time.time_s == pytest.approx(time.body_s + time.latency_s) and time.label == "calibrated"
        assert time.body_s <= time.memory_s + sum(time.compute_s.values()) + 1e-12


def test_a_chip_with_other_figures_is_reckoned_with_them(
    work_of: Callable[[int], Work], spec_of: Callable[..., Spec], kernels: Calibration
) -> None:
    def step(*overrides: str) -> StepTime:
        return step_time(work_of(64), spec_of("hardware=h200", *overrides).hardware, kernels)

    base = step()
    slow = step("hardware.memory_bandwidth_bytes_per_s=2.4TB/s")
    assert slow.memory_s == pytest.approx(2 * base.memory_s) and slow.latency_s == base.latency_s
    fast = step("hardware.peak_flops_by_dtype.bf16=1978TFLOP/s")
    assert sum(fast.compute_s.values()) == pytest.approx(sum(base.compute_s.values()) / 2) and fast.time_s < base.time_s


def assumed(plan: Plan) -> str:
    return "\n".join(plan.cost.assumptions)


def test_plans_of_our_kernels_say_so_and_others_do_not(plan_of: PlanOf) -> None:
    ours = plan_of("hardware=h200", "parallel=ep8")
    assert "calibrated: our own kernels, timed one by one on an NVIDIA H200" in assumed(ours)
    assert {figure.label for figure in ours.cost.headline} == {"calibrated"}
    for other in (("hardware=h100",), ("hardware=b200",), ("hardware=h200", "kernels=reference")):
        text = assumed(plan_of(*other, "parallel=ep8"))
        assert "our own kernels" not in text and "calibration of sm" in text, other
    assert "our own kernels" not in assumed(plan_of("hardware=h200", "parallel=ep8", "cost=roofline"))


def test_another_width_is_not_reckoned_by_them(plan_of: PlanOf) -> None:
    text = assumed(plan_of("hardware=h200", "model=v41_tiny", "model.dtype=bfloat16"))
    assert "our own kernels" not in text and "calibration of sm90" in text
