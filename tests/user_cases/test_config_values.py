"""C13 to C22: numbers, references, lists, folders, callables, time, and mixes that cannot be; see test_config_cases.py."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import hydra
import pytest
import yaml
from own_options import refused

from deepinfer.config.compose import compose_data, load
from deepinfer.config.convert import convert
from deepinfer.config.facts import probe
from deepinfer.config.registry import BUILT_IN
from deepinfer.plan.resolve import resolve

Run = Callable[..., "Outcome"]  # type: ignore[name-defined]  # noqa: F821 — of conftest.py
OwnOptions = Callable[[dict[str, str]], str]
GLOBAL = "# @package _global_\ncluster:\n  kind: none\n"


def test_c13_floats_without_a_dot(own_options: OwnOptions) -> None:
    """ArcticTraining#165, spras#484: 5e8 is a number of bytes and 1e-3 a share, in a file as on the command line."""
    folder = own_options({"cluster/a": GLOBAL + "cache:\n  memory_bytes: 5e8\nsampling:\n  min_p: 1e-3\n"})
    for spec in (load("cluster=a", config_dir=folder), load("cache.memory_bytes=5e8", "sampling.min_p=1e-3")):
        assert (spec.cache.memory_bytes, spec.sampling.min_p) == (500_000_000, 0.001)
    assert "cache.num_blocks=1.5" in refused("cache.num_blocks=1.5")


def test_c14_auto_or_a_number() -> None:
    """omegaconf#1271: the third is refused with the choices."""
    assert load("cache.num_blocks=auto").cache.num_blocks == "auto"
    assert load("cache.num_blocks=1024").cache.num_blocks == 1024
    said = refused("cache.num_blocks=atuo")
    assert "a whole number of at least 1" in said and "or auto; did you mean auto?" in said


def test_c15_the_order_of_keys_does_not_matter(own_options: OwnOptions) -> None:
    """omegaconf#1112: there are no resolvers with a memory, and every order of keys and overrides is one Spec."""
    lines = ["  n: 2", "  seed: 3", "  top_k: ${sampling.seed}"]
    texts = ["\n".join([GLOBAL + "sampling:", *order, ""]) for order in permutations(lines)]
    folder = own_options({f"cluster/a{index}": text for index, text in enumerate(texts)})
    specs = [load(f"cluster=a{index}", config_dir=folder) for index in range(len(texts))]
    overrides = ("sampling.n=2", "sampling.seed=3", "sampling.top_k=${sampling.seed}")
    specs += [load(*order) for order in (overrides, overrides[::-1])]
    assert all(spec == specs[0] for spec in specs)


def test_c16_one_value_behind_two_references() -> None:
    """omegaconf PR#1244: a resolver that is asked twice; ours are none, so both references are one value."""
    spec = load("sampling.seed=9", "sampling.top_k=${sampling.seed}", "sampling.max_tokens=${sampling.top_k}")
    assert spec.sampling.top_k == spec.sampling.max_tokens == 9
    assert "rand" in refused("sampling.seed=${rand:}")


def test_c17_lists_are_replaced(own_options: OwnOptions, deepinfer: Run) -> None:
    """omegaconf#1175: never joined, and `explain` shows what was replaced."""
    folder = own_options({"cluster/a": GLOBAL + "sampling:\n  stop: [a, b]\n"})
    assert load("cluster=a", "sampling.stop=[c]", config_dir=folder).sampling.stop == ("c",)
    arguments = ("--config-dir", folder, "cluster=a", "sampling.stop=[c]", "explain=sampling.stop")
    told = deepinfer("plan", *arguments, "model.weights=dummy")
    assert told.code == 0 and "sampling.stop=[c]" in told.out and f"{folder}/cluster/a.yaml:5" in told.out


@pytest.mark.parametrize("folder", ["/", "empty"])
def test_c18_from_any_folder(tmp_path: Path, folder: str) -> None:
    """hydra#2125, #1788: the tree is part of the package. (From a wheel: the packaging tests.)"""
    where = Path("/") if folder == "/" else tmp_path
    done = subprocess.run(
        [sys.executable, "-m", "deepinfer", "--cfg", "job", "--resolve", "--package", "cache"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=where,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert yaml.safe_load(done.stdout)["block_tokens"] == 128


@pytest.mark.parametrize(
    "key", ["sampler._target_", "sampling._target_", "executor._target_", "sampling.stop._target_"]
)
def test_c19_no_callable_from_the_configuration(key: str) -> None:
    """hydra PR#3409, GHSA-37p2-j732-x8pj: a name is looked up among registered Structs; nothing is imported."""
    imported = set(sys.modules)
    said = refused(f"{key}=logging.config")
    assert f"{key}=logging.config" in said and ("no key" in said or key == "sampling.stop._target_")
    assert "logging.config" not in set(sys.modules) - imported
    implementations = [struct.implementation for structs in BUILT_IN.values() for struct in structs]
    assert all(text.startswith("deepinfer.") for text in implementations if text)  # code, not configuration, says so


def test_c20_a_thousand_plans(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """hydra#2077: 1,000 objects took 23 s, each instantiated by Hydra. Composition happens once; a plan from its data
    needs neither Hydra nor OmegaConf. (A sample of them by default, as the long suites are.)"""
    compositions = []

    def counted(*arguments: Any, **more: Any) -> Any:
        compositions.append(arguments)
        return hydra.compose(*arguments, **more)

    monkeypatch.setattr("deepinfer.config.compose.compose", counted)
    data = compose_data(["model=v41_tiny", "model.weights=dummy"]).data
    facts = probe(convert(data))
    digests = {resolve(convert(data), facts).rank_digest for _ in range(1000 if full else 50)}
    assert (len(compositions), len(digests)) == (1, 1)
    assert all(type(value) in (dict, list, str, int, float, bool, type(None)) for value in inside(data))


def inside(value: Any) -> Iterator[Any]:
    """A value and everything in it."""
    yield value
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in items:
        yield from inside(item)


def test_c21_a_renamed_key_in_a_checked_in_file(own_options: OwnOptions) -> None:
    """vllm-ascend#16983: key, file, line, and the key it probably became."""
    folder = own_options({"cluster/a": GLOBAL + "scheduler:\n  max_num_sequences: 3\n"})
    said = refused("cluster=a", config_dir=folder)
    assert "scheduler.max_num_sequences=3" in said and "has no key 'max_num_sequences'" in said
    assert f"set in {folder}/cluster/a.yaml:5" in said and "type: scheduler.max_num_seqs=3" in said


@pytest.mark.parametrize("key", ["codec.template", "codec.tool_parser", "serving.tool_call_parser"])
def test_c22_template_and_parser_cannot_be_mixed(key: str) -> None:
    """sglang#14690: the version of the checkpoint picks both; there is no key for either."""
    assert "picks chat format, thinking and tool parser together" in refused(f"{key}=v32")
