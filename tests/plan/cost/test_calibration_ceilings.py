"""benchmarks/ceilings.py: what it reads of a chip, and lines that cost=measured can read back."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from deepinfer.config.chips import Chip
from deepinfer.config.errors import Refused
from deepinfer.config.facts import chip_names, hardware_options
from deepinfer.plan.cost.types import Calibration

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))  # benchmarks are no package

import ceilings

OPTIONS = hardware_options()


@pytest.mark.parametrize("name", OPTIONS)
def test_the_figures_of_a_chip_are_those_of_the_configuration(name: str, chip_of: Callable[[str], Chip]) -> None:
    bench, chip = ceilings.Bench(name, "cpu", 1), chip_of(name)
    assert bench.bandwidth == chip.memory_bandwidth_bytes_per_s.value
    assert bench.peaks == {dtype: fact.value for dtype, fact in chip.peak_flops_by_dtype.items()}
    assert bench.links == {link: fact.value for link, fact in chip.links.items()}


def test_its_lines_are_what_measured_reads(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    calibrate: Callable[..., Calibration],
) -> None:
    monkeypatch.setattr(sys, "argv", ["ceilings.py"])
    monkeypatch.setattr(ceilings, "ON_CPU", {"small": (64, 128)})
    bench = ceilings.Bench("cpu", "cpu", 3)
    ceilings.measure_gemm(bench)
    ceilings.measure_launch(bench)
    printed = capsys.readouterr().out
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [line["what"] for line in lines] == ["gemm", "gemm", "launch_eager", "launch_and_wait"]
    for line in lines:
        assert line["p10_us"] <= line["median_us"] <= line["p90_us"] and line["runs"] == 3 and line["chip"] == "cpu"
    (tmp_path / "own.jsonl").write_text(printed)
    found = calibrate("hardware=cpu", "cost=measured", f"cost.path={tmp_path / 'own.jsonl'}")
    shares = {line["bound"]: line["share"] for line in lines if line["what"] == "gemm"}
    assert found == structs.replace(
        found,
        flops_share={"f32": shares["compute"]} if "compute" in shares else {},
        bandwidth_share={"weights": shares["memory"]} if "memory" in shares else {},
    )


def test_floor_and_share(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["ceilings.py"])
    floors = {"compute": 2e-6, "memory": 5e-6}
    ceilings.keep(ceilings.Bench("cpu", "cpu", 1), "x", ceilings.np.array([10.0, 20.0, 40.0]), floors)
    line = json.loads(capsys.readouterr().out)
    assert (line["bound"], line["floor_us"], line["share"]) == ("memory", 5.0, 0.25)


def written(path: Path, chip: str, device: str = "") -> str:
    """A file with one line of a measurement, as an override."""
    path.write_text(json.dumps({"figure": "ceilings", "what": "copy", "share": 0.5, "chip": chip, "device": device}))
    return f"cost.path={path}"


@pytest.mark.parametrize("name", OPTIONS)
def test_lines_of_a_chip_serve_plans_for_it(name: str, tmp_path: Path, calibrate: Callable[..., Calibration]) -> None:
    found = calibrate(f"hardware={name}", "cost=measured", written(tmp_path / "own.jsonl", chip=name))
    assert found.bandwidth_share == {"streams": 0.5}
    for other in set(OPTIONS) - {name}:
        path = written(tmp_path / "own.jsonl", chip=other)
        if chip_names()[other] == chip_names()[name]:  # ascend950 is another word for the 950DT
            assert calibrate(f"hardware={name}", "cost=measured", path) == found
        else:
            with pytest.raises(Refused, match=f"it was measured on {other}"):
                calibrate(f"hardware={name}", "cost=measured", path)


@pytest.mark.parametrize("word", ["nvidia", "sxm", "huawei", "ascend", "950dt", "NVIDIA", ""])
def test_a_word_of_a_chips_name_is_no_chip(word: str, tmp_path: Path, calibrate: Callable[..., Calibration]) -> None:
    path = written(tmp_path / "own.jsonl", chip=word)
    for name in ("h200", "ascend950dt"):
        with pytest.raises(Refused, match="it was measured on"):
            calibrate(f"hardware={name}", "cost=measured", path)


def test_a_device_of_the_chips_very_name_serves(tmp_path: Path, calibrate: Callable[..., Calibration]) -> None:
    path = written(tmp_path / "own.jsonl", chip="our_cards", device="NVIDIA B200")
    assert calibrate("hardware=b200", "cost=measured", path).bandwidth_share == {"streams": 0.5}
    with pytest.raises(Refused, match="it was measured on our_cards"):
        calibrate("hardware=gb200", "cost=measured", path)
