"""`deepinfer bench task.slice=rank` on the tiny model with plain torch: it runs, its report is whole, it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from deepinfer.cli.bench_slice import reckoning_of, share_of
from deepinfer.cli.bench_slice_checks import Points, fitting_points, refuse_slice, room_of
from deepinfer.cli.bench_slice_floors import MEASURED, exchange_of, floor_of, rates_of
from deepinfer.cli.bench_slice_report import beside_release, comparable, report
from deepinfer.cli.main import main
from deepinfer.config.compose import load
from deepinfer.config.errors import ExitCode, Refused
from deepinfer.config.facts import load_chip, probe
from deepinfer.config.probes import Device, MachineFacts
from deepinfer.config.specs import Spec
from deepinfer.config.tasks import Bench
from deepinfer.engine.rank_slice.clock import LEAST_RUNS
from deepinfer.plan.cost.work import decode_work
from deepinfer.plan.resolve import resolve
from deepinfer.plan.types import Plan

TINY = ("task.slice=rank", "model=v41_tiny", "model.weights=dummy", "hardware=cpu", "cost=roofline", "parallel=ep2")
SMALL = ("task.slice_sequences=[2]", "task.slice_contexts=[150]", "task.slice_prompts=[20]")
ASKED = {
    "task.slice": "rank",
    "model": "v41_flash",
    "model.weights": "dummy",
    "hardware": "h200",
    "parallel": "ep64",
    "cost": "roofline",
}
H200 = Device(name="NVIDIA H200", vendor="nvidia", memory_bytes=143_771 << 20, compute_capability="9.0")


def planned(*overrides: str) -> tuple[Spec, Plan, Any]:
    spec = load("task=bench", *(f"{key}={value}" for key, value in ASKED.items()), *overrides)
    facts = probe(spec)
    return spec, resolve(spec, facts, {"hardware": "h200"}), facts


def with_device(facts: Any) -> Any:
    machine = structs.replace(facts.machine, devices=(H200,))
    assert isinstance(machine, MachineFacts)
    return structs.replace(facts, machine=machine)


def test_the_slice_runs_and_its_report_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", *TINY, *SMALL, "speculation=dspark", "task.slice_routing=[balanced,skewed]"]
    assert main([*command, "format=json", f"out={tmp_path}"]) == 0
    result = json.loads(capsys.readouterr().out)
    lines = [json.loads(text) for text in (tmp_path / "bench_slice.jsonl").read_text().splitlines()]
    (role,) = result["roles"]
    assert [line["what"] for line in lines] == ["share"] + ["decode"] * 4 + ["prefill"] * 4
    assert role["decode"][1].items() <= lines[2].items() and lines[0]["numerics_digest"] == result["numerics_digest"]
    assert role["share"]["experts"] == 4 and role["expert_ranks"] == 2 and role["ops"] == {} and role["notes"] == []
    assert [(p["rows"], p["routing"]) for p in role["decode"]] == [
        (2, "balanced"), (12, "balanced"), (2, "skewed"), (12, "skewed")
    ]  # fmt: skip
    assert [(p["tokens"], p["keep"]) for p in role["prefill"]] == [(20, None), (20, 140)] * 2
    for point in [*role["decode"], *role["prefill"]]:
        assert 0 < point["least_ms"] <= point["ms"] <= point["most_ms"] and point["runs"] >= LEAST_RUNS
        assert point["share"] == pytest.approx(point["floor_ms"] / point["ms"]) and point["exchange_ms"] > 0
        assert point["tokens_per_s_links_added"] < point["tokens_per_s_links_hidden"] <= point["tokens_per_s"]
    drafting = role["decode"][1]
    assert 0 < drafting["drafting_ms"] < drafting["ms"] and drafting["tokens_each"] == 3.51
    assert drafting["tokens_per_s"] == pytest.approx(2 * 3.51 / drafting["ms"] * 1e3)
    assert any("modelled, not measured" in line for line in role["assumed"])
    figures = {figure["name"]: figure["value"] for figure in result["headline"]}
    assert figures["decode_tokens_per_s_per_gpu"] == max(point["tokens_per_s"] for point in role["decode"][:2])
    assert figures["prefill_tokens_per_s_per_gpu"] > 0 and figures["tokens_per_s_per_user"] > 0
    text = report(result)
    assert "one of" not in text and "compact" in text and "skewed × 1." in text and "* modelled" in text


@pytest.mark.parametrize(
    ("overrides", "code", "words"),
    [
        ({}, ExitCode.DEVICE, "one rank is measured on one NVIDIA H200 SXM, and this machine has no accelerator"),
        ({"model.weights": "checkpoint"}, ExitCode.PLAN, "its weights are made up on the device"),
        ({"parallel.redundant_experts": "64"}, ExitCode.PLAN, "where copies of experts lie"),
        ({"parallel.context": "2", "parallel.attention_dp": "32"}, ExitCode.PLAN, "share a prompt"),
        ({"task.slice_contexts": "[]"}, ExitCode.CONFIG, "nothing to measure"),
        ({"task.slice_routing": "[]"}, ExitCode.CONFIG, "nothing to measure"),
        ({"task.slice_sequences": "[]", "task.slice_prompts": "[]"}, ExitCode.CONFIG, "neither decode nor prefill"),
        ({"hardware": "gb200"}, ExitCode.DEVICE, "the kernels of this version are for Hopper"),
    ],
)
def test_refusals(overrides: dict[str, str], code: ExitCode, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *(f"{key}={value}" for key, value in (ASKED | overrides).items())]) == code
    printed = capsys.readouterr()
    assert words in printed.err and printed.out == "" and "Traceback" not in printed.err


def test_one_device_is_enough_for_any_layout() -> None:
    spec, plan, facts = planned()
    refuse_slice(plan, spec, with_device(facts))
    assert plan.layout.num_ranks == 64
    with pytest.raises(Refused, match="no accelerator"):
        refuse_slice(plan, spec, facts)


def test_a_rank_holds_what_the_plan_says() -> None:
    _, plan, _ = planned()
    share = share_of(plan, plan.layout.roles[0])
    assert (share.ranks, share.experts, share.draft_experts) == (64, 6, 2)
    assert sum(share.table_rows) == pytest.approx(768_022_850 / 64, abs=2) and not share.host_tables


def test_steps_that_do_not_fit_are_left_out_and_said() -> None:
    sizes = ("task.slice_sequences=[1,512]", "task.slice_contexts=[4Ki,1Mi]")
    spec, plan, _ = planned(*sizes, "task.slice_prompts=[1Ki]")
    assert isinstance(spec.task, Bench)
    room = room_of(plan, plan.layout.roles[0])
    points, notes = fitting_points(plan, spec.task, room, ("decode",))
    assert points.decode == ((1, 1, 4096), (512, 1, 4096), (1, 1, 1 << 20)) and points.prompts == ()
    assert notes == ["512 × 1 rows at 1,048,576 tokens do not fit beside the weights and are left out"]
    assert points.blocks(128) == 512 * 32 and points.sequences == 512 and points.longest > 1 << 20
    with pytest.raises(Refused, match="no step fits") as refused:
        fitting_points(plan, spec.task, without_room(room), ("decode", "prefill"))
    assert refused.value.exit_code == ExitCode.MEMORY


def without_room(room: Any) -> Any:
    return type(room)(weights=room.weights, left=1 << 20)


def test_floors_by_hand() -> None:
    spec, plan, facts = planned()
    reckoning = reckoning_of(plan, spec, facts, plan.layout.roles[0])
    assert reckoning.rates is MEASURED["h200"]
    work = decode_work(reckoning.trunk, reckoning.group, 1, 4096)
    floor = floor_of(work, reckoning.group.chip, reckoning.rates)
    experts = 6 * 40 * 18_800_640 * (1 - (1 - 6 / 384) ** 64)  # bytes of those that 64 rows of the group reach
    assert floor.parts_ms["experts"] == pytest.approx(experts / 4.25e12 * 1e3, rel=1e-3)
    assert floor.ms == pytest.approx(sum(floor.parts_ms.values())) and floor.fp8_ms <= floor.ms
    wide = decode_work(reckoning.trunk, reckoning.group, 4096, 4096)
    full, busy = (floor_of(wide, reckoning.group.chip, reckoning.rates, load) for load in (1.0, 2.0))
    flops = 2 * 4096 * 6 * 3 * 5120 * 2304 * 40
    assert full.parts_ms["experts"] == pytest.approx(flops / 790e12 * 1e3)
    assert busy.parts_ms["experts"] == pytest.approx(2 * full.parts_ms["experts"]) and full.fp8_ms < full.ms


def test_links_are_modelled_one_after_the_other() -> None:
    spec, plan, facts = planned()
    reckoning = reckoning_of(plan, spec, facts, plan.layout.roles[0])
    exchange = exchange_of(decode_work(reckoning.trunk, reckoning.group, 32, 4096), reckoning.calibration)
    assert set(exchange.by_link_ms) == {"nvlink", "network"}
    assert exchange.ms == pytest.approx(sum(exchange.by_link_ms.values())) and exchange.latency_ms == 0


def test_ceilings_are_those_that_kernels_are_held_against(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    import device_timer

    rates = MEASURED["h200"]
    assert rates.bytes_per_s == device_timer.COPY_BYTES_PER_S
    assert rates.flops == {
        "f8_e4m3": device_timer.PEAK_FLOPS["fp8"],
        "bf16": device_timer.PEAK_FLOPS["bf16"],
        "tf32": device_timer.PEAK_FLOPS["tf32"],
    }
    sheet = rates_of(load_chip("gb200"), "gb200")
    assert sheet.source == "data sheet" and sheet.flops["f8_e4m3"] == 5e15


def test_the_release_is_scaled_by_peak_and_held_against_what_serves_users_alike() -> None:
    def point(rate: float, user: float, routing: str = "balanced") -> dict[str, Any]:
        return {
            "tokens_per_s": rate,
            "tokens_per_s_links_added": 3000.0,
            "tokens_per_s_per_user": user,
            "routing": routing,
        }

    points = [point(9000.0, 40.0), point(6000.0, 110.0), point(5000.0, 150.0), point(7000.0, 120.0, "skewed")]
    (line,) = beside_release({"peak_flops": 1.979e15, "decode": points, "prefill": []})
    assert "6,000 tokens/s" in line and "at 110 a user" in line and line.endswith("= 10,291")
    assert comparable(points[:1]) is points[0] and comparable(points[3:]) is points[3]


def test_points_of_nothing() -> None:
    points = Points((), (), ("balanced",))
    assert (points.blocks(128), points.sequences) == (1, 1)
