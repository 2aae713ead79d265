"""Every "auto", settled by rule; and checkpoints whose own config.json wins."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.config.env import Foreign
from deepinfer.config.errors import ExitCode
from deepinfer.config.facts import shipped_folder
from deepinfer.plan.types import Decision, Plan, PlanErrors

PlanOf = Callable[..., Plan]
TINY = ("model=v41_tiny", "model.weights=dummy")
SMI = "nvidia-smi --query-gpu"
H200 = "NVIDIA H200, 143771, 143000, 9.0, 580.159.03\n"


def decision(plan: Plan, key: str) -> Decision:
    return next(decision for decision in plan.decisions if decision.key == key)


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (("model.weights=dummy",), "v41_tiny"),
        (("hardware=h200", "parallel=ep8"), "v41_flash"),
        (("hardware=ascend950", "parallel=ep64"), "v41_flash"),
        (("hardware=virtual", "parallel=ep64"), "v41_flash"),
    ],
)
def test_model(plan_of: PlanOf, overrides: tuple[str, ...], name: str) -> None:
    plan = plan_of(*overrides)
    assert plan.model.name == decision(plan, "model").value == name
    assert decision(plan, "model").runner_up


def test_dtype_follows_the_hardware(plan_of: PlanOf) -> None:
    assert plan_of(*TINY).numerics.dtype == "float32"
    assert plan_of("hardware=h200", "parallel=ep8").numerics.dtype == "bfloat16"
    plan = plan_of(*TINY, "model.dtype=float64")
    assert plan.numerics.dtype == "float64"
    assert not [decision for decision in plan.decisions if decision.key == "model.dtype"]


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (64, 2)])
def test_threads_stay_where_invariance_is_tested(plan_of: PlanOf, machine: type, cores: int, threads: int) -> None:
    wide = ("model=v41_flash", "model.weights=dummy", "hardware=cpu", "model.max_model_len=16384")
    plan = plan_of(*wide, on=machine(cores=cores, memory_gib=8192))
    assert plan.numerics.threads == threads
    assert decision(plan, "model.threads").runner_up == ("64" if cores == 64 else "")


@pytest.mark.parametrize(("cores", "runner_up"), [(1, ""), (2, "2"), (64, "2")])
def test_a_narrow_model_runs_on_one_thread(plan_of: PlanOf, machine: type, cores: int, runner_up: str) -> None:
    plan = plan_of(*TINY, on=machine(cores=cores))
    assert plan.numerics.threads == 1
    assert decision(plan, "model.threads").runner_up == runner_up


@pytest.mark.parametrize(
    ("overrides", "executor"),
    [
        (TINY, "local"),
        ((*TINY, "parallel=dp2"), "distributed"),
        ((*TINY, "hardware=virtual"), "simulated"),
        ((*TINY, "executor=simulated"), "simulated"),
    ],
)
def test_executor(plan_of: PlanOf, overrides: tuple[str, ...], executor: str) -> None:
    (node,) = [node for node in plan_of(*overrides).graph if node.name == "executor"]
    assert node.implementation.startswith(f"deepinfer.engine.executor_{executor}:")


@pytest.mark.parametrize(
    ("overrides", "depth", "why"),
    [
        (("hardware=h200",), 1, "hides behind the device's"),
        (("hardware=h200", "speculation=dspark"), 1, "no token changes"),
        (("hardware=h200", "speculation=ngram"), 0, "waits for the tokens"),
        (("hardware=h200", "executor=simulated"), 0, "a virtual clock"),
        (("hardware=cpu",), 0, "the host's own cores"),
        (("hardware=cpu", "speculation=dspark"), 0, "the host's own cores"),
    ],
)
def test_steps_are_scheduled_ahead_where_that_hides_something(
    plan_of: PlanOf, overrides: tuple[str, ...], depth: int, why: str
) -> None:
    plan = plan_of(*TINY, *overrides)
    decided = decision(plan, "scheduler.async_depth")
    assert plan.scheduler.async_depth == depth == int(decided.value)
    assert why in decided.rule and decided.runner_up == str(1 - depth)
    (node,) = [node for node in plan.graph if node.name == "scheduler"]
    assert node.settings["async_depth"] == depth


@pytest.mark.parametrize("hardware", ["cpu", "h200"])
@pytest.mark.parametrize("depth", [0, 1])
def test_a_depth_that_is_asked_for_is_taken(plan_of: PlanOf, hardware: str, depth: int) -> None:
    plan = plan_of(*TINY, f"hardware={hardware}", f"scheduler.async_depth={depth}")
    assert plan.scheduler.async_depth == depth
    assert not [decision for decision in plan.decisions if decision.key == "scheduler.async_depth"]


def test_verification_is_coupled_unless_asked_otherwise(plan_of: PlanOf) -> None:
    ngram = (*TINY, "speculation=ngram")
    assert plan_of(*TINY).numerics.verify == "none"
    assert plan_of(*ngram).numerics.verify == "coupled"
    plan = plan_of(*ngram, "speculation.verify=rejection")
    assert plan.numerics.verify == "rejection"
    assert any("speculation.verify=coupled" in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    ("smi", "option", "kind", "rule"),
    [
        ("", "cpu", "cpu", "no accelerator was found here"),
        (H200 * 8, "h200", "cuda", "the first accelerator here is NVIDIA H200"),
        ("NVIDIA A100, 81920, 81000, 8.0, 580.1\n", "cpu", "cpu", "NVIDIA A100 is none of the known chips"),
    ],
)
def test_hardware(plan_of: PlanOf, machine: type, smi: str, option: str, kind: str, rule: str) -> None:
    files = {"/dev/nvidia0": ""} if smi else {}
    plan = plan_of(*TINY, "hardware=auto", on=machine(files=files, commands={SMI: smi} if smi else {}))
    assert (plan.hardware.option, plan.hardware.kind) == (option, kind)
    assert decision(plan, "hardware").rule == rule


def test_a_device_that_is_here_is_measured(plan_of: PlanOf, machine: type) -> None:
    here = machine(files={"/dev/nvidia0": ""}, commands={SMI: H200})
    plan = plan_of(*TINY, "hardware=auto", on=here)
    assert plan.hardware.measured and plan.hardware.memory_bytes == 143771 * 2**20
    assert plan_of(*TINY, "hardware=h200", on=here).hardware.measured
    assert not plan_of(*TINY, "hardware=b200", on=here).hardware.measured
    busy = machine(files={"/dev/nvidia0": ""}, commands={SMI: "NVIDIA H200, 143771, 40000, 9.0, 580.159.03\n"})
    assert plan_of(*TINY, "hardware=h200", on=busy).hardware.usable_bytes == 40000 * 2**20
    hidden = machine(files={"/dev/nvidia0": ""}, commands={SMI: H200}, foreign=Foreign(cuda_visible_devices=""))
    assert plan_of(*TINY, "hardware=auto", on=hidden).hardware.kind == "cpu"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A folder with the tiny model's config.json, changed in two places."""
    raw = json.loads((shipped_folder("v41_tiny") / "config.json").read_text())
    raw["text_config"]["index_topk"] = 64
    raw["text_config"]["max_position_embeddings"] = 2048
    (tmp_path / "config.json").write_text(json.dumps(raw))
    return tmp_path


def test_a_checkpoints_own_config_wins_and_differences_are_listed(plan_of: PlanOf, checkpoint: Path) -> None:
    plan = plan_of(*TINY, f"model.path={checkpoint}")
    assert plan.model.config.index_topk == 64
    assert plan.model.max_model_len == 2048
    assert plan.model.differences == (
        "text_config.index_topk: 64 in the checkpoint, 128 in v41_tiny",
        "text_config.max_position_embeddings: 2048 in the checkpoint, 4096 in v41_tiny",
    )


def test_a_folder_without_a_name_is_compared_with_nothing(plan_of: PlanOf, checkpoint: Path) -> None:
    plan = plan_of(f"model.path={checkpoint}", "model.weights=dummy")
    assert plan.model.name == checkpoint.name and plan.model.differences == ()


def test_a_folder_without_weights_is_refused(plan_of: PlanOf, checkpoint: Path) -> None:
    with pytest.raises(PlanErrors, match="no safetensors file") as refused:
        plan_of(f"model.path={checkpoint}")
    assert refused.value.exit_code == ExitCode.WEIGHTS
    assert refused.value.problems[0].fix == "model.weights=dummy"


def test_everything_wrong_with_a_config_is_said(plan_of: PlanOf, tmp_path: Path) -> None:
    raw = json.loads((shipped_folder("v41_flash") / "config.json").read_text())
    raw["text_config"]["hidden_act"] = "gelu"
    del raw["text_config"]["head_dim"]
    raw["quantization_config"]["expert_dtype"] = "fp8"
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(PlanErrors) as refused:
        plan_of(f"model.path={tmp_path}")
    assert len(refused.value.problems) == 3
    assert {problem.code for problem in refused.value.problems} == {ExitCode.WEIGHTS}


def test_shards_that_are_not_there_are_noted(plan_of: PlanOf, checkpoint: Path) -> None:
    header = b'{"x": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}'
    (checkpoint / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"x")
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    plan = plan_of(f"model.path={checkpoint}")
    assert any("1 of 2 shards are not in" in note and "b.safetensors" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("said", "temperature"),
    [
        ({"do_sample": False}, 0.0),
        ({"do_sample": True, "temperature": 0.6}, 0.6),
        ({"temperature": 0}, 0.0),
        ({"temperature": "warm"}, 1.0),
        ({"temperature": -1}, 1.0),
        (None, 1.0),
    ],
)
def test_temperature_follows_the_checkpoint(
    plan_of: PlanOf, tmp_path: Path, said: dict[str, object] | None, temperature: float
) -> None:
    (tmp_path / "config.json").write_text((shipped_folder("v41_tiny") / "config.json").read_text())
    if said is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(said))
    dummy = (f"model.path={tmp_path}", "model.weights=dummy")
    assert plan_of(*dummy).sampling.temperature == temperature
    assert decision(plan_of(*dummy), "sampling.temperature").value == str(temperature)
    assert plan_of(*dummy, "sampling.temperature=0.25").sampling.temperature == 0.25


def test_a_broken_generation_config_is_said(plan_of: PlanOf, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((shipped_folder("v41_tiny") / "config.json").read_text())
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(PlanErrors, match=r"generation_config\.json cannot be read"):
        plan_of(f"model.path={tmp_path}", "model.weights=dummy")
