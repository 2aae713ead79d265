"""`deepinfer doctor`: every prerequisite of every target is taken away from a faked machine, one at a time."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deepinfer.cli import doctor
from deepinfer.cli.main import main
from deepinfer.config.env import Foreign
from deepinfer.config.facts import chip_sheets
from deepinfer.config.libraries import BY_NAME, LIBRARIES
from deepinfer.config.probes import Device, MachineFacts
from deepinfer.plan.prerequisites import Target, libraries, targets

ROOT = Path(__file__).parents[2]
CAPABILITY = {"sm90": "9.0", "sm100": "10.0", "sm103": "10.3"}
SHEETS = {option: sheet for option, sheet in chip_sheets().items() if sheet["kind"] != "virtual"}


def equipped(sheet: dict[str, Any]) -> MachineFacts:
    """A machine on which a target lacks nothing."""
    architecture = sheet["architecture"]["value"]
    device = Device(vendor="huawei", name=sheet["name"].removeprefix("Huawei ").replace(" ", ""))
    if sheet["kind"] == "cuda":
        device = Device(vendor="nvidia", name=sheet["name"], compute_capability=CAPABILITY[architecture])
    return MachineFacts(
        system="linux",
        architecture="x86_64",
        python="3.12.4",
        cores=64,
        memory_bytes=10**12,
        available_bytes=10**12,
        devices=() if sheet["kind"] == "cpu" else (device,) * 8,
        toolkits={"gcc": "13.3.0", "cuda": "13.0", "driver": "580.95.05", "cann": "9.2.0"},
        libraries={library.name: library.at_least or "1.0" for library in LIBRARIES},
    )


def without(machine: MachineFacts, what: str) -> MachineFacts:
    """The same machine with one thing gone or too old."""
    changes: dict[str, Any] = {
        "device": {"devices": ()},
        "os": {"system": "darwin"},
        "python": {"python": "3.10.9"},
    }.get(what) or (
        {"toolkits": {name: version for name, version in machine.toolkits.items() if name != what}}
        if what in machine.toolkits
        else {"libraries": {name: version for name, version in machine.libraries.items() if name != what}}
    )
    fields = {name: getattr(machine, name) for name in machine.__struct_fields__}
    return MachineFacts(**fields | changes)


def prerequisites() -> Iterator[tuple[str, str]]:
    for option, sheet in SHEETS.items():
        (target,) = targets({option: sheet}, equipped(sheet))
        for finding in target.findings:
            yield option, finding.what


def lacking(target: Target) -> list[str]:
    return [finding.what for finding in target.findings if not finding.met]


@pytest.mark.parametrize("option", SHEETS)
def test_an_equipped_machine_lacks_nothing(option: str) -> None:
    (target,) = targets({option: SHEETS[option]}, equipped(SHEETS[option]))
    assert lacking(target) == []
    assert target.ready == (SHEETS[option]["architecture"]["value"] in ("cpu", "sm90"))  # the others have no code yet


@pytest.mark.parametrize(("option", "what"), list(prerequisites()))
def test_one_missing_prerequisite_is_found_and_its_remedy_named(option: str, what: str) -> None:
    sheet = SHEETS[option]
    (target,) = targets({option: sheet}, without(equipped(sheet), what))
    assert lacking(target) == [what]
    assert not target.ready
    (finding,) = [finding for finding in target.findings if not finding.met]
    assert finding.needs and finding.how and "{" not in finding.how


def test_every_target_has_its_toolkit_floor() -> None:
    asked = dict.fromkeys(SHEETS, frozenset[str]())
    for option, what in prerequisites():
        asked[option] |= {what}
    assert {"device", "os", "gcc", "python", "cuda", "driver"} <= asked["b200"] & asked["gb200"] & asked["gb300"]
    assert {"device", "os", "gcc", "python", "cann"} <= asked["ascend950"] & asked["ascend950pr"]
    assert asked["cpu"] == {"python", "torch", "numba"}


def test_the_wrong_device_is_named() -> None:
    machine = equipped(SHEETS["h200"])
    (target,) = targets({"b200": SHEETS["b200"]}, machine)
    (finding,) = [finding for finding in target.findings if finding.what == "device"]
    assert not finding.met and finding.found == "8 × NVIDIA H200 SXM"


def test_a_cpu_build_of_torch_does_not_drive_a_gpu() -> None:
    machine = equipped(SHEETS["h200"])
    fields = {name: getattr(machine, name) for name in machine.__struct_fields__}
    machine = MachineFacts(**fields | {"libraries": machine.libraries | {"torch": "2.13.0+cpu"}})
    (h200, cpu) = targets({"h200": SHEETS["h200"], "cpu": SHEETS["cpu"]}, machine)
    assert lacking(h200) == ["torch"] and lacking(cpu) == []


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_each_library_missing_and_too_old(library: Any) -> None:
    machine = equipped(SHEETS["cpu"])
    found = {entry.name: finding for entry, finding in libraries(without(machine, library.name))}
    assert not found[library.name].met and found[library.name].how == library.get
    assert all(finding.met for name, finding in found.items() if name != library.name)
    if library.below:
        fields = {name: getattr(machine, name) for name in machine.__struct_fields__}
        newer = MachineFacts(**fields | {"libraries": machine.libraries | {library.name: library.below}})
        assert not dict((entry.name, finding) for entry, finding in libraries(newer))[library.name].met


def requirements() -> Iterator[tuple[str, str, str]]:
    """Extra, distribution and version range of everything that pyproject.toml names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"": project["dependencies"]} | project["optional-dependencies"]
    for extra, lines in groups.items():
        for line in lines:
            name, versions = re.match(r"([\w-]+)(.*?)(?:;|$)", line).groups()  # type: ignore[union-attr]
            yield extra, name, versions


def test_the_table_of_libraries_is_that_of_the_package() -> None:
    declared = {(extra, name) for extra, name, _ in requirements() if extra not in ("dev", "train")}
    ours = {(library.extra, library.name) for library in LIBRARIES}
    assert ours <= declared
    assert {name for _, name in declared} == {name for _, name in ours}


@pytest.mark.parametrize(("extra", "name", "versions"), list(requirements()))
def test_versions_are_those_of_the_package(extra: str, name: str, versions: str) -> None:
    if name not in BY_NAME or extra not in (BY_NAME[name].extra, "dev"):
        return
    floor = re.search(r">=([\d.]+)", versions)
    ceiling = re.search(r"<([\d.]+)", versions)
    library = BY_NAME[name]
    assert library.at_least == (floor.group(1) if floor else "")
    assert library.below == (ceiling.group(1) if ceiling else "")


def test_never_install_deepinfer_by_name() -> None:
    for library in LIBRARIES:
        assert not re.search(r"pip install deepinfer(\s|$)", library.get)


class Bare:
    """A machine with next to nothing."""

    system, architecture, python, cores, foreign = "linux", "x86_64", "3.11.2", 4, Foreign()

    def read(self, path: str) -> str | None:
        return "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n" if path == "/proc/meminfo" else None

    def find(self, pattern: str) -> list[str]:
        return []

    def which(self, command: str) -> None: ...

    def run(self, *argv: str) -> None: ...

    def version(self, distribution: str) -> str | None:
        return {"torch": "2.12.0", "numba": "0.61.2"}.get(distribution)


def test_plain_report(capsys: pytest.CaptureFixture[str]) -> None:
    doctor.print_report(machine=Bare())
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert re.search(r"^  memory +8\.6 GB, 4\.3 GB free$", text, re.MULTILINE)
    assert re.search(r"^  device +none found$", text, re.MULTILINE)
    assert re.search(r"^  cpu +ready +CPU +-$", text, re.MULTILINE)
    assert re.search(r"^  cann +≥ 9\.2 +- +ascend950 ascend950dt ascend950pr +install CANN 9\.2", text, re.MULTILINE)
    assert re.search(r"^  b200 +plan only: no code in this version +NVIDIA B200 +device, ", text, re.MULTILINE)
    assert re.search(r"^  h200 +not ready +NVIDIA H200 SXM +device, driver", text, re.MULTILINE)
    assert re.search(r"^  numpy +lacks +≥ 1\.26 +- .*pip install -e \.$", text, re.MULTILINE)
    assert re.search(r"^  xgrammar +optional .*pip install -e '\.\[xgrammar\]'$", text, re.MULTILINE)


def test_json_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "format=json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["targets"].keys() == SHEETS.keys()
    assert report["libraries"].keys() == BY_NAME.keys()
    assert report["kernels"].keys() == {"triton", "deepseek"}
    assert report["machine"]["cores"] >= 1


def test_report_of_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    titles = [line for line in capsys.readouterr().out.splitlines() if line and not line.startswith(" ")]
    assert titles == ["this machine", "hardware targets", "what targets lack", "kernels", "libraries"]


def test_a_report_is_no_graph(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "format=mermaid"]) == 2
    assert "doctor format=json" in capsys.readouterr().err


def test_tables_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    doctor.print_report(machine=Bare())
    text = capsys.readouterr().out
    assert "hardware targets" in text and "to get it" in text and "ascend950pr" in text
    assert "pip install -e '.[xgrammar]'" in text


def test_one_target_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "hardware=h200"]) == 0
    text = capsys.readouterr().out
    assert "h200" in text and "gb200" not in text and "ascend" not in text and "fastapi" not in text
    assert main(["doctor", "hardware=h200", "format=json"]) == 0
    assert json.loads(capsys.readouterr().out)["targets"].keys() == {"h200"}


def test_what_targets_lack_is_said_once() -> None:
    (rows,) = [rows for title, _, rows in doctor.tables(machine=Bare()) if title == "what targets lack"]
    assert len({(*row[:2], row[-1]) for row in rows}) == len(rows)
    assert all(row[-1] for row in rows)


def test_a_chip_of_the_same_architecture_is_another_chip() -> None:
    sheets = {option: SHEETS[option] for option in ("h100", "h200")}
    (h100, h200) = targets(sheets, equipped(SHEETS["h100"]))
    assert lacking(h100) == [] and lacking(h200) == ["device"]


def test_a_wheel_is_not_told_to_install_a_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepinfer.config.libraries.IN_CHECKOUT", False)
    assert BY_NAME["fastapi"].get == "pip install 'fastapi>=0.115'"
    assert BY_NAME["deepinfer-gemm"].get == "pip install --no-build-isolation deepinfer-gemm"
    assert not any("-e" in library.get.split() for library in LIBRARIES)


def test_a_virtual_chip_is_no_target(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "hardware=virtual"]) == 2
    assert "type: doctor\n" in capsys.readouterr().err
