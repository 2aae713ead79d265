"""The failures of a first run, F01 to F18, in the order in which a newcomer meets them: each with what is said.

Every message has the same shape: what was asked, what was found, why they clash, what to type. All that needs no device
is told together, by `deepinfer plan`, in seconds. What only shows while an engine runs waits for what runs it: `WAITING`
and `WAITING_PARTS` in test_every_case.py.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.config.facts import shipped_folder

Run = Callable[..., "Outcome"]  # type: ignore[name-defined]  # noqa: F821 — of conftest.py
OwnOptions = Callable[[dict[str, str]], str]
GLOBAL = "# @package _global_\ncluster:\n  kind: none\n"


def test_f01_an_accelerator_that_is_not_supported(deepinfer: Run) -> None:
    """vllm#40851: what the backend is built for, what the chip is, and what would do."""
    done = deepinfer("plan", "hardware=h200", "parallel=ep64", "kernels=deepseek", "model.weights=dummy")
    assert done.code == 3
    assert "deepseek is built for sm100 or sm103, the chip is sm90" in done.err
    assert "NVIDIA H200 SXM can take" in done.err and "type: kernels=auto" in done.err


def test_f01_an_accelerator_that_is_not_here(deepinfer: Run) -> None:
    done = deepinfer("hardware=gb300", "parallel=ep64", "model.weights=dummy", "prompt=x")
    assert done.code == 4 and "This plan needs 64 × NVIDIA GB300" in done.out + done.err


def test_f02_the_toolkit_is_named_before_any_weight_is_read(deepinfer: Run) -> None:
    """DeepGEMM#172: which version, for what, and what this machine has."""
    done = deepinfer("hardware=gb300", "parallel=ep64", "model.weights=dummy", "prompt=x")
    (sentence,) = [line for line in (done.out + done.err).splitlines() if "This plan needs" in line]
    assert "cuda ≥ 13" in sentence and "this machine has" in sentence


def test_f03_kernels_of_another_chip(deepinfer: Run) -> None:
    """sgl-kernel-npu#544."""
    done = deepinfer("plan", "hardware=ascend950", "parallel=ep64", "kernels=deepseek", "model.weights=dummy")
    assert done.code == 3 and "deepseek is for cuda, the chip is ascend" in done.err


def test_f04_an_impossible_layout_is_one_report(deepinfer: Run) -> None:
    """vllm#52435, sglang#3436: every rule that it breaks."""
    layout = ("parallel.attention_dp=6", "parallel.expert=4", "parallel.redundant_experts=2")
    done = deepinfer("plan", "hardware=gb300", "model.weights=dummy", *layout, "executor=local")
    assert done.code == 3 and done.err.startswith("deepinfer: 2 problems:")
    assert "6 ranks are not divisible by 4" in done.err
    assert "384 experts + 2 redundant of v41_flash are not divisible by 4" in done.err
    assert "the layout has 6 ranks; one process runs one rank" in done.err


def test_f05_not_enough_memory(deepinfer: Run) -> None:
    """vllm#2418: what would be held, of how much, and the layout that holds it, reckoned from the configuration."""
    done = deepinfer("plan", "hardware=h200", "model.weights=dummy")
    assert done.code == 6
    assert (
        "would hold 301.7 GB before the first cache block (GB: experts 288.8, dense 7.3, workspace 2.1, head"
        in done.err
    )
    assert "129.7 GB of each device may be used, so no token fits" in done.err
    settings = re.findall(r"(\S+) \(-([0-9.]+) GB\)", done.err)  # what they save: tests/plan/test_memory_levers.py
    keys = [key.partition("=")[0] for key, _ in settings]
    assert keys[0] == "parallel" and {*keys[1:]} == {"scheduler.max_num_batched_tokens", "scheduler.max_num_seqs"}
    assert "type: parallel=ep4" in done.err
    assert deepinfer("plan", "hardware=h200", "model.weights=dummy", "parallel=ep4").code == 0


def test_f05_a_sequence_too_long_for_the_cache(deepinfer: Run) -> None:
    done = deepinfer("plan", "model=v41_tiny", "model.weights=dummy", "cache.num_blocks=2", "model.max_model_len=1024")
    assert done.code == 6 and "the cache holds 256 tokens" in done.err and "type: model.max_model_len=256" in done.err


def test_f06_weights_that_are_not_the_models(deepinfer: Run, tmp_path: Path) -> None:
    """vllm-ascend#12675: one message for a whole checkpoint, before it is read. (More: the tests of checkpoints.)"""
    config = (shipped_folder("v41_tiny") / "config.json").read_text()
    (tmp_path / "config.json").write_text(config)
    done = deepinfer("plan", f"model.path={tmp_path}")
    assert done.code == 5 and done.err.count("\n") <= 4
    assert f"no safetensors file lies in {tmp_path}" in done.err and "type: model.weights=dummy" in done.err


@pytest.mark.parametrize(
    ("lines", "number", "says", "fix"),
    [
        ("kernels:\n  kind: tritton\n", 5, "known are auto, reference, native, triton or deepseek", "kernels=triton"),
        ("model:\n  numerics: ful\n", 5, "did you mean full?", "model.numerics=full"),
        ("scheduler:\n  max_num_sequences: 4\n", 5, "has no key 'max_num_sequences'", "scheduler.max_num_seqs=4"),
    ],
)
def test_f07_what_this_version_does_not_know(
    deepinfer: Run, own_options: OwnOptions, lines: str, number: int, says: str, fix: str
) -> None:
    """vllm-ascend#8997, vllm#8273: what there is, where it was written, what was meant."""
    folder = own_options({"cluster/a": GLOBAL + lines})
    done = deepinfer("plan", "--config-dir", folder, "cluster=a")
    assert done.code == 2 and says in done.err
    assert f"set in {folder}/cluster/a.yaml:{number}" in done.err
    assert f"type: {fix}" in done.err


@pytest.mark.parametrize(
    ("typed", "symbol", "fix"),
    [
        ("sampling.stop=a:=b", "at '='", "'sampling.stop=[\"a:=b\"]'"),
        ("sampling.temperature=(1", "at '('", "'sampling.temperature=\"(1\"'"),
        ("model.dtype=[", "at '['", "'model.dtype=\"[\"'"),
    ],
)
def test_f08_an_override_that_cannot_be_read(deepinfer: Run, typed: str, symbol: str, fix: str) -> None:
    """hydra#962, #1074, #2705: the symbol, never a token class, and the form quoted for the shell and for Hydra."""
    done = deepinfer("plan", typed)
    assert done.code == 2 and f"cannot be read {symbol}" in done.err
    assert f"type: {fix}" in done.err and "Lexer" not in done.err


def test_f09_the_wrong_option(deepinfer: Run, own_options: OwnOptions) -> None:
    """hydra#620, #1233: all options and the near one; in a file with its line."""
    done = deepinfer("plan", "parallel=ep46")
    assert done.code == 2 and "no option 'ep46' in group parallel; there are cp2, dp2, ep128" in done.err
    assert "type: parallel=ep64" in done.err
    folder = own_options({"cluster/a": GLOBAL + "defaults:\n  - override /parallel: ep46\n"})
    done = deepinfer("plan", "--config-dir", folder, "cluster=a")
    assert done.code == 2 and f"set in {folder}/cluster/a.yaml:5" in done.err and "type: parallel=ep64" in done.err


def test_f10_mandatory_values(deepinfer: Run, own_options: OwnOptions) -> None:
    """fairseq#5048: all at once, each with its file."""
    text = "defaults: [default, _self_]\nmax_tokens: ???\nseed: ???\n"
    done = deepinfer("plan", "--config-dir", own_options({"sampling/mine": text}), "sampling=mine")
    assert done.code == 2 and done.err.startswith("deepinfer: 2 problems:")
    assert "type: sampling.max_tokens=…" in done.err and "type: sampling.seed=…" in done.err
    assert done.err.count("sampling/mine.yaml") == 2


def test_f11_a_folder_that_is_not_there(deepinfer: Run, tmp_path: Path) -> None:
    """hydra#2125: our own tree ships with the package; of the user's the whole path is told."""
    done = deepinfer("plan", "--config-dir", f"{tmp_path}/nowhere")
    assert done.code == 2 and f"{tmp_path}/nowhere is not a folder" in done.err


def test_a_second_backend_of_a_device_is_planned_only(deepinfer: Run) -> None:
    """N05 waits: a plan names a chip's other packages, and says that no run takes them."""
    done = deepinfer("plan", "hardware=gb300", "parallel=ep8", "model.weights=dummy", "kernels=deepseek")
    (line,) = [line for line in done.out.splitlines() if line.startswith("graph    ops.deepseek")]
    assert done.code == 0 and line.endswith("(planned)")


def test_f16_codec_and_model_are_one(deepinfer: Run) -> None:
    """sglang PR#17141: no key mixes a template with another version's parser."""
    done = deepinfer("plan", "codec.template=v31", "codec.tool_parser=v32")
    assert done.code == 2 and done.err.count("picks chat format, thinking and tool parser together") == 2


def test_f17_drafts_deeper_than_the_checkpoint(deepinfer: Run) -> None:
    """vllm PR#41834: both numbers, at plan time."""
    done = deepinfer("plan", "model=v41_tiny", "speculation=dspark", "speculation.depth=7")
    assert done.code == 3 and "trained for blocks of 5" in done.err and "type: speculation.depth=5" in done.err


def test_f18_the_granularity_of_the_cache(deepinfer: Run) -> None:
    """1Cat-vLLM#205: the plan says how long what two prompts share must be."""
    done = deepinfer("plan", "model=v41_tiny", "model.weights=dummy", "cache=prefix")
    granularity = "cache=prefix shares whole blocks: a hit is a multiple of 128 tokens"
    assert done.code == 0 and granularity in done.out
    assert granularity not in deepinfer("plan", "model=v41_tiny", "model.weights=dummy", "cache=paged").out


def test_every_message_has_the_shape(deepinfer: Run) -> None:
    """Asked, found, why, what to type; one report; one exit code, of the lowest class."""
    done = deepinfer("plan", "parallel=ep46", "sampling.n=0", "speculation.depth=3", "tp=8")
    assert done.code == 2 and done.err.startswith("deepinfer: 4 problems:\n")
    assert done.out == "" and "Traceback" not in done.err
