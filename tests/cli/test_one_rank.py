"""What is told to who wants to run what needs several devices: something that works as it is typed."""

import re
import shlex
from collections.abc import Callable

import pytest
from msgspec import structs

import deepinfer.config.facts
from deepinfer.cli.main import main
from deepinfer.config.compose import load
from deepinfer.config.errors import ExitCode
from deepinfer.config.facts import probe
from deepinfer.config.probes import Device, MachineFacts, probe_machine
from deepinfer.engine.unbuilt import device_problem, run_problems
from deepinfer.plan.require import has_devices, missing
from deepinfer.plan.resolve import resolve

H200 = Device(vendor="nvidia", name="NVIDIA H200", memory_bytes=150_754_820_096, compute_capability="9.0")
LIBRARIES = {"triton": "3.6.0", "cuda-bindings": "13.0.0", "nvidia-cuda-nvrtc": "13.0.0", "torch": "2.11.0"}
Machine = Callable[[int], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine with so many H200 and all that they need."""

    def make(devices: int) -> None:
        def look(_: object) -> MachineFacts:
            return structs.replace(
                probe_machine(),
                memory_bytes=10**12,
                available_bytes=10**12,
                devices=(H200,) * devices,
                toolkits={"driver": "580.10", "cuda": "13.0"},
                libraries=probe_machine().libraries | LIBRARIES,
            )

        monkeypatch.setattr(deepinfer.config.facts, "probe_machine", look)

    return make


def told(capsys: pytest.CaptureFixture[str]) -> tuple[str, list[str]]:
    """All of stderr, and what it says to type."""
    text = capsys.readouterr().err
    return text, re.findall(r"type: (.*)", text)


@pytest.mark.parametrize("verb", ["generate", "bench"])
def test_without_the_device_a_plan_is_what_works(
    verb: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(0)
    assert main([verb, "hardware=h200"]) == ExitCode.DEVICE
    text, typed = told(capsys)
    assert typed == ["deepinfer plan hardware=h200 parallel=ep4", "hardware=cpu"]
    assert "asks for more devices than this machine has" in text and "this machine has no accelerator" in text
    assert main(shlex.split(typed[0])[1:]) == ExitCode.OK


@pytest.mark.parametrize("words", ["parallel=single", "parallel=single parallel.expert=1 speculation=none"])
def test_the_plan_that_works_sets_anew_what_was_typed(
    words: str, machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(0)
    assert main(["generate", "hardware=h200", *words.split()]) == ExitCode.DEVICE
    _, typed = told(capsys)
    rest = " ".join(word for word in words.split() if not word.startswith("parallel"))
    assert typed[0].split() == f"deepinfer plan hardware=h200 {rest} parallel=ep4".split()
    assert main(shlex.split(typed[0])[1:]) == ExitCode.OK


def test_the_true_model_on_one_device_is_answered_with_what_one_device_runs(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine(1)
    assert main(["generate", "hardware=h200"]) == ExitCode.MEMORY
    text, typed = told(capsys)
    assert typed == ["model=v41_tiny"] and "deepinfer bench task.slice=rank" in text and "deepinfer plan" in text
    assert main(["bench", "hardware=h200"]) == ExitCode.MEMORY
    _, (timed,) = told(capsys)
    spec = load("task=bench", "hardware=h200", *timed.split())
    assert resolve(spec, probe(spec)).layout.num_ranks == 64 and spec.task.slice == "rank"


@pytest.mark.parametrize("devices", [0, 1, 4])
@pytest.mark.parametrize("model", [(), ("model=v41_tiny",)])
def test_what_is_typed_in_place_of_several_ranks_is_a_run(
    devices: int, model: tuple[str, ...], machine: Machine
) -> None:
    machine(devices)
    asked = ["hardware=h200", *model, "parallel=ep4"]
    spec = load("task=generate", *asked)
    facts = probe(spec)
    plan = resolve(spec, facts)
    problem = device_problem(plan, missing(plan, facts), has_devices(plan, facts))
    if devices == 4:
        assert problem is None and run_problems(plan, spec) == []
        return
    if devices == 1:
        assert "doctor" not in problem.found and "this machine has 1 × NVIDIA H200" in problem.found
    given = {word.partition("=")[0]: word for word in [*asked, *problem.fix.split()]}
    spec = load("task=generate", *given.values())
    facts = probe(spec)
    plan = resolve(spec, facts)
    assert missing(plan, facts) is None and run_problems(plan, spec) == []
    assert plan.hardware.kind == ("cuda" if devices else "cpu") and plan.model.name == "v41_tiny"
