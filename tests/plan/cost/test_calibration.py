"""What a `cost` option makes of a chip: shares with their source, refusals that say what is missing."""

import json
import statistics
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import yaml

from deepinfer.config import kernel_tables
from deepinfer.config.errors import ExitCode, Refused
from deepinfer.config.specs import Spec
from deepinfer.plan.cost.timing import step_time
from deepinfer.plan.cost.types import Calibration, PartWork, Work
from deepinfer.plan.types import Plan

ROOT = Path(__file__).parents[3]
CEILINGS = ROOT / "benchmarks" / "results" / "ceilings.jsonl"
CHIPS = ("h100", "h200", "b200", "gb200", "gb300", "ascend950", "cpu", "virtual")
Calibrate = Callable[..., Calibration]


def refusal(calibrate: Calibrate, *overrides: str) -> str:
    with pytest.raises(Refused) as raised:
        calibrate(*overrides)
    assert raised.value.exit_code is ExitCode.PLAN
    return str(raised.value)


def test_the_roofline_has_every_share_at_one(calibrate: Calibrate) -> None:
    assert calibrate("hardware=h200", "cost=roofline") == Calibration()


def test_a_chip_takes_the_shares_of_its_architecture(calibrate: Calibrate) -> None:
    written = yaml.safe_load((ROOT / "conf" / "cost" / "calibrated.yaml").read_text())
    found = calibrate("hardware=h200", "cost=calibrated")
    own = written["architectures"]["sm90"]
    assert found.label == "calibrated" and "calibration of sm90;" in found.source
    assert found.flops_share == {key: fact["value"] for key, fact in own["flops"].items()}
    assert found.link_share == {key: fact["value"] for key, fact in own["links"].items()}
    assert found.default_bandwidth_share == min(
        fact["value"] for key, fact in own["bandwidth"].items() if "/" not in key
    )
    assert found.layer_latency_s == pytest.approx(101.3e-6)
    assert found.system_share == written["system_share"]["value"]


def test_other_architectures_say_whose_shares_they_take(calibrate: Calibrate) -> None:
    found = calibrate("hardware=ascend950", "cost=calibrated")
    assert "calibration of sm90 applied to ascend950" in found.source
    hopper = calibrate("hardware=h200", "cost=calibrated")
    assert found.flops_share == hopper.flops_share


def test_a_stand_in_that_is_not_there_is_refused(calibrate: Calibrate) -> None:
    said = refusal(calibrate, "hardware=ascend950", "cost=calibrated", "cost.stand_in=sm89")
    assert "cost.stand_in=sm89" in said and "sm90" in said and "type: cost.stand_in=" in said


def test_whole_steps_take_no_system_share(calibrate: Calibrate) -> None:
    assert calibrate("hardware=cpu", "cost=calibrated").system_share == 1.0


@pytest.mark.parametrize("chip", CHIPS)
def test_calibrated_is_never_faster_than_the_roofline(chip: str, plan_of: Callable[..., Plan]) -> None:
    model = "v41_tiny" if chip in ("cpu", "virtual") else "v41_flash"
    parallel = "single" if chip in ("cpu", "virtual") else "ep8"
    roofline, calibrated = (
        plan_of(f"hardware={chip}", f"model={model}", f"parallel={parallel}", f"cost={cost}").cost
        for cost in ("roofline", "calibrated")
    )
    for figure in roofline.headline:
        other = calibrated.figure(figure.name)
        slower = other.value > figure.value if figure.name == "ttft_s" else other.value < figure.value
        assert slower, figure.name
        assert (figure.label, other.label) == ("roofline", "calibrated")


def test_a_parts_own_bandwidth_share_wins(spec_of: Callable[..., Spec]) -> None:
    chip = spec_of("hardware=h200").hardware
    work = Work(parts=(part("experts"), part("attn_proj")), links=(), rows=1.0, layers=1)
    shares = {"weights": 0.5, "experts/weights": 0.25}
    both = step_time(work, chip, Calibration(bandwidth_share=shares, parts_overlap=False))
    floor = 1e9 / chip.memory_bandwidth_bytes_per_s.value
    assert [time.memory_s / floor for time in both.parts] == pytest.approx([4, 2])


def part(name: str) -> PartWork:
    return PartWork(part=name, flops={}, weight_bytes=1e9, cache_bytes=0.0, table_bytes=0.0, stream_bytes=0.0)


def test_measured_takes_medians_of_the_lines(calibrate: Calibrate) -> None:
    lines = [json.loads(line) for line in CEILINGS.read_text().splitlines()]
    found = calibrate("hardware=h200", "cost=measured", f"cost.path={CEILINGS}")
    blocks = [x["share"] for x in lines if x.get("dtype") == "f8_e4m3/block128" and x["bound"] == "compute"]
    assert len(blocks) == 6 and found.flops_share["f8_e4m3"] == statistics.median(blocks)
    (copy,) = (x["share"] for x in lines if x["what"] == "copy")
    assert found.bandwidth_share["streams"] == copy
    assert found.link_share["nvlink"] == max(x["share"] for x in lines if x["what"] == "all_to_all")
    assert found.label == "calibrated" and "NVIDIA H200" in found.source and found.system_share == 1.0


def test_measured_without_a_file_asks_for_it(calibrate: Calibrate) -> None:
    said = refusal(calibrate, "hardware=h200", "cost=measured")
    assert "cost.path" in said and "nothing given" in said and "type: cost.path=" in said


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("{", "line 1\n    it is no line of a benchmark"),
        ("\n[1]\n", "line 2\n    it is no line of a benchmark"),
        ('{"figure": "ceilings"}', "missing required field `chip`"),
        ('{"figure": "ceilings", "chip": "b200", "what": "copy", "share": 0}', "share"),
        (
            '{"figure": "ceilings", "chip": "b200", "what": "copy", "share": NaN}',
            "line 1\n    it is no line of a benchmark",
        ),
        ("\udcff", "line 1\n    it is no line of a benchmark"),
        ('{"figure": "throughput"}\n', "no line of it is a ceiling"),
        ('{"figure": "ceilings", "chip": "gb200", "what": "copy", "share": 0.9}\n', "measured on gb200"),
    ],
)
def test_a_file_that_does_not_serve_is_refused(
    text: str | None, words: str, tmp_path: Path, calibrate: Calibrate
) -> None:
    path = tmp_path / "ceilings.jsonl"
    if text is not None:
        path.write_bytes(text.encode(errors="surrogateescape"))
    assert words in refusal(calibrate, "hardware=b200", "cost=measured", f"cost.path={path}")


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        (["aiconfigurator_core"], "    aiconfigurator-core is not installed"),
        (["pyarrow"], "    pyarrow is not installed"),
        (["aiconfigurator_core", "pyarrow"], "    aiconfigurator-core and pyarrow are not installed"),
    ],
)
def test_the_package_that_lacks_is_named(
    calibrate: Calibrate, monkeypatch: pytest.MonkeyPatch, absent: list[str], said: str
) -> None:
    there = ModuleSpec("there", None, is_package=True)
    there.submodule_search_locations.append("nowhere")
    monkeypatch.setattr(kernel_tables, "find_spec", lambda name: None if name in absent else there)
    refused = refusal(calibrate, "hardware=h200", "cost=aiconfigurator")
    assert said in refused and "pip install -e '.[calibrate]'" in refused


def test_a_plan_carries_the_refusal(plan_of: Callable[..., Plan]) -> None:
    with pytest.raises(Refused, match=r"cost\.path"):
        plan_of("hardware=h200", "model=v41_flash", "parallel=ep8", "cost=measured")


def test_shares_of_our_own_measurements_are_those_of_the_lines() -> None:
    shares = {
        line["what"]: line["share"] for line in map(json.loads, CEILINGS.read_text().splitlines()) if "share" in line
    }
    cited = {"tables": "gather_264", "streams": "copy", "host": "host_to_device"}
    own = yaml.safe_load((ROOT / "conf" / "cost" / "calibrated.yaml").read_text())["architectures"]["sm90"]
    facts = {key: fact for key, fact in (own["bandwidth"] | own["links"]).items() if "ceilings.jsonl" in fact["source"]}
    assert facts.keys() == cited.keys()
    for key, fact in facts.items():
        assert fact["value"] == pytest.approx(shares[cited[key]], abs=6e-4), key
