"""Who set what: the last origin of every value is the value that Hydra composes, and every line says it."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf, open_dict

from deepinfer.config.compose import compose_data, load, search_path
from deepinfer.config.errors import Refused
from deepinfer.config.history import Origin
from deepinfer.config.overrides import Groups, prepare
from deepinfer.config.provenance import Provenance, trace
from deepinfer.config.specs import Spec

Write = Callable[[dict[str, str]], str]
CONF = Path(__file__).parents[2] / "conf"
SITE = """# @package _global_
defaults:
  - override /parallel: ep8
  - override /hardware: h200
  - _self_

scheduler:
  max_num_seqs: 64
sampling:
  stop: [END]
  logit_bias: {7: -1.0}
cluster:
  kind: none
"""
BASED = """# @package _global_
defaults:
  - site
  - override /parallel: ep4
  - _self_

scheduler:
  max_num_seqs: 16
  max_num_batched_tokens: ${scheduler.max_prefill_tokens}
"""
GLOBAL = "# @package _global_\n"
FILES = {"cluster/site": SITE, "cluster/based": BASED, "cache/mine": "defaults: [prefix]\nnum_blocks: 9\n"}
GROUPS = [group for group in Spec.__struct_fields__ if group not in ("task", "cluster")]
VALUES = (
    "scheduler.max_num_seqs=8",
    "sampling.stop=[a, b]",
    "sampling.stop=[]",
    "sampling.logit_bias={5: 1.5}",
    "sampling.bad_words=['${model.name}']",
    "kernels.ops={linear: reference}",
    "cache.memory_bytes=80GiB",
    "sampling.max_tokens=${scheduler.max_num_seqs}",
    "sampling.seed=3",
    "model.threads=2",
)
DISAGGREGATED = ("deploy=disaggregated", "parallel@deploy.decode.parallel=ep64", "deploy.prefill.replicas=3")


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Dotted key → leaf; an empty mapping is a leaf."""
    if not (isinstance(value, dict) and value):
        return {path: value}
    return {
        key: leaf
        for name, item in value.items()
        for key, leaf in leaves(item, f"{path}.{name}" if path else str(name)).items()
    }


def as_written(overrides: list[str], config_dir: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What Hydra itself composes, interpolations as written, and the options it took."""
    folder = Path(config_dir) if config_dir else None
    with initialize_config_module(version_base="1.3", config_module="deepinfer.conf"):
        config = compose("config", overrides=[*search_path(folder), *overrides], return_hydra_config=True)
    choices = {key: value for key, value in config.hydra.runtime.choices.items() if not key.startswith("hydra/")}
    with open_dict(config):
        del config["hydra"]
    data = OmegaConf.to_container(config, resolve=False)
    assert isinstance(data, dict)
    return leaves(data), choices


def forced(overrides: list[str]) -> list[str]:
    return [
        text if "@" in text or text.partition("=")[0] in Spec.__struct_fields__ else f"++{text}" for text in overrides
    ]


def said_at(origin: Origin, config_dir: str | None) -> str:
    """The line of the file that an origin names."""
    file = CONF.parent / origin.file if origin.file.startswith("conf/") else Path(origin.file)
    assert config_dir is None or origin.file.startswith("conf/") or file.is_relative_to(config_dir)
    return file.read_text(encoding="utf-8").splitlines()[origin.line - 1]


def check(overrides: list[str], config_dir: str | None = None) -> Provenance:
    """Provenance against Hydra: same keys, same values, same choices; each line names what it set."""
    provenance = trace(overrides, config_dir=config_dir)
    values, choices = as_written(forced(overrides), config_dir)
    assert {key: origins[-1].value for key, origins in provenance.values.items()} == values
    chosen = {key: origins[-1].value for key, origins in provenance.choices.items()}
    assert {key: value for key, value in chosen.items() if value is not None} == choices
    for key, origins in (provenance.values | provenance.choices).items():
        for origin in origins:
            if origin.override:
                assert origin.override in overrides
            elif key in provenance.choices:
                assert key.partition("@")[0] in said_at(origin, config_dir)
            else:
                names = key.split(".")
                assert any(name in said_at(origin, config_dir) for name in reversed(names))
    return provenance


@pytest.mark.parametrize("case", range(60))
@pytest.mark.sample(4)
def test_the_last_origin_is_what_hydra_composes(case: int, config_dir: Write) -> None:
    draw = random.Random(case)
    folder = config_dir(FILES) if draw.random() < 0.6 else None
    options = {group: sorted(file.stem for file in (CONF / group).glob("*.yaml")) for group in GROUPS}
    picked = draw.sample([group for group in GROUPS if group != "deploy"], draw.randint(0, 4))
    overrides = [f"{group}={draw.choice(options[group])}" for group in picked]
    if draw.random() < 0.4:
        overrides += [*draw.sample(DISAGGREGATED[1:], 1), "deploy=disaggregated"]
    if folder:
        overrides += [f"cluster={draw.choice(['site', 'based', 'none'])}"]
        overrides = [text for text in overrides if not text.startswith("cache=")] + ["cache=mine"]
    keys = {text.partition("=")[0]: text for text in draw.sample(VALUES, draw.randint(0, 5))}
    overrides += keys.values()
    draw.shuffle(overrides)
    check(overrides, folder)


def test_the_default_and_a_disaggregated_configuration() -> None:
    check([])
    provenance = check([*DISAGGREGATED, "hardware=b200"])
    decode = provenance.choices["parallel@deploy.decode.parallel"]
    assert [origin.value for origin in decode] == ["single", "ep64"]
    assert decode[0].file == "conf/deploy/disaggregated.yaml"
    assert str(decode[1]) == "command line: parallel@deploy.decode.parallel=ep64"
    assert provenance.values["deploy.decode.parallel.expert"][-1].file == "conf/parallel/ep64.yaml"
    assert provenance.values["deploy.prefill.parallel.expert"][-1].file == "conf/parallel/single.yaml"
    replicas = provenance.values["deploy.prefill.replicas"]
    assert [str(origin) for origin in replicas][1:] == ["command line: deploy.prefill.replicas=3"]
    assert replicas[0].value == 1


def test_a_cluster_file_and_its_line(config_dir: Write) -> None:
    folder = config_dir(FILES)
    provenance = check(["cluster=site", "scheduler.max_num_seqs=8"], folder)
    file = f"{folder}/cluster/site.yaml"
    first, second, third = provenance.values["scheduler.max_num_seqs"]
    assert (first.value, first.file) == (32, "conf/scheduler/continuous.yaml")
    assert (second.value, str(second)) == (64, f"{file}:8")
    assert (third.value, str(third)) == (8, "command line: scheduler.max_num_seqs=8")
    assert [str(origin) for origin in provenance.choices["parallel"]][1:] == [f"{file}:3"]


def test_an_appended_file_beats_an_earlier_override(config_dir: Write) -> None:
    """The last file in depth-first order wins (hydra#3229), a file beats the one that it builds on, and a command line
    beats both; whoever lost is still named."""
    files = FILES | {"sweep/mine": GLOBAL + "defaults:\n  - override /parallel: ep32\nsweep: {kind: none}\n"}
    files["parallel/ep32"] = (CONF / "parallel/ep4.yaml").read_text().replace("4", "32")
    folder = config_dir(files)
    for overrides, winner, losers in (
        (["+cluster=site", "sweep=mine"], "ep8", ["single", "ep32"]),
        (["cluster=based", "parallel=dp2"], "dp2", ["single", "ep8", "ep4"]),
    ):
        *lost, won = trace(overrides, config_dir=folder).choices["parallel"]
        assert ([origin.value for origin in lost], won.value) == (losers, winner)
        assert compose_data(overrides, config_dir=folder).choices["parallel"] == winner


def test_a_group_that_only_the_user_has(config_dir: Write) -> None:
    folder = config_dir(FILES | {"site/x": "# @package _global_\ndefaults:\n  - override /parallel: ep2\n"})
    won = trace(["cluster=site", "+site=x"], config_dir=folder).choices["parallel"][-1]
    assert (won.value, str(won)) == ("ep2", f"{folder}/site/x.yaml:3")


def test_a_list_is_replaced_as_a_whole(config_dir: Write) -> None:
    """OmegaConf replaces lists (omegaconf#1175); the list that went is still told."""
    folder = config_dir(FILES)
    values = trace(["cluster=site", "sampling.stop=[a, b]"], config_dir=folder).values
    assert [origin.value for origin in values["sampling.stop"]] == [[], ["END"], ["a", "b"]]
    assert compose_data(["cluster=site", "sampling.stop=[a, b]"], config_dir=folder).data["sampling"]["stop"] == [
        "a",
        "b",
    ]


def test_texts_are_told_as_typed() -> None:
    provenance = trace(["model=v41_flash"], {"model.path": "/models/x y", "model.revision": "12E34"})
    assert str(provenance.last("model.path")) == "command line: model.path=/models/x y"
    assert provenance.values["model.revision"][-1].value == "12E34"
    assert provenance.values["model.revision"][0].file == "conf/model/v41_flash.yaml"


def test_overrides_that_cannot_be_taken_leave_the_rest(config_dir: Write) -> None:
    provenance = trace(["parallel=ep46", "scheduler.max_num_seqs=8", "x y", "cluster=none"])
    assert provenance.values["scheduler.max_num_seqs"][-1].override == "scheduler.max_num_seqs=8"
    assert provenance.choices["parallel"][-1].value == "single"
    folder = config_dir({"cluster/a": "defaults:\n  - override parallel: ep64\n", "cluster/b": "x: [\n"})
    for broken in ("a", "b"):
        kept = trace([f"cluster={broken}", "scheduler.max_num_seqs=8"], config_dir=folder)
        assert kept.choices["cluster"][-1].value == "none"
        assert kept.last("scheduler.max_num_seqs") is not None
    assert trace(["seed=1"], config_dir="/no/such/folder").values


def test_a_group_without_a_leading_slash_is_refused_with_its_file(config_dir: Write) -> None:
    """hydra#1365: the file, the slash and the package are named."""
    folder = config_dir({"cluster/a": "defaults:\n  - override parallel: ep64\n  - _self_\n\nkind: none\n"})
    with pytest.raises(Refused) as refused:
        load("cluster=a", config_dir=folder)
    text = str(refused.value)
    assert "cluster/a.yaml" in text and "/parallel" in text and "# @package _global_" in text


def test_merged_in_keys_have_the_line_of_the_merge(config_dir: Write) -> None:
    text = GLOBAL + "cluster: {kind: none}\nsampling:\n  top_k: 5\nkernels:\n  ops:\n    <<: {linear: triton}\n"
    folder = config_dir({"cluster/m": text})
    values = trace(["cluster=m"], config_dir=folder).values
    assert str(values["sampling.top_k"][-1]) == f"{folder}/cluster/m.yaml:4"
    merged = values["kernels.ops.linear"][-1]
    assert (merged.value, str(merged)) == ("triton", f"{folder}/cluster/m.yaml:6")


def test_the_order_of_keys_does_not_matter(config_dir: Write) -> None:
    """omegaconf#1112: nothing in a configuration has a state that an order could disclose."""
    site = yaml.safe_load(SITE.partition("_self_\n")[2])
    turned = {group: dict(reversed(keys.items())) for group, keys in reversed(site.items())}
    head = SITE.partition("\n\n")[0] + "\n"
    folder = config_dir({"cluster/a": head + yaml.safe_dump(site, sort_keys=False)})
    config_dir({"cluster/b": head + yaml.safe_dump(turned, sort_keys=False)})
    assert load("cluster=a", config_dir=folder) == load("cluster=b", config_dir=folder)
    overrides = ["sampling.seed=3", "scheduler.max_num_seqs=${sampling.seed}", "parallel=single"]
    assert load("cluster=a", *overrides, config_dir=folder) == load("cluster=a", *overrides[::-1], config_dir=folder)


def test_a_value_referenced_twice_is_one_value(config_dir: Write) -> None:
    """omegaconf PR#1244: two references to a resolver may disagree; references to keys cannot, and resolvers of one's
    own are refused."""
    spec = load("sampling.seed=7", "sampling.top_k=${sampling.seed}", "sampling.max_tokens=${sampling.seed}")
    assert (spec.sampling.top_k, spec.sampling.max_tokens) == (7, 7)
    assert trace(["sampling.top_k=${sampling.seed}"]).values["sampling.top_k"][-1].value == "${sampling.seed}"
    with pytest.raises(Refused, match="rand"):
        load("sampling.seed=${rand:}")


def test_every_open_value_is_named_with_its_file_and_line(config_dir: Write) -> None:
    """hydra#2193: all of them, before anything is read."""
    text = (
        GLOBAL + "scheduler:\n  max_num_seqs: ???\nsampling:\n  seed: ???\n  stop:\n    - ???\ncluster: {kind: none}\n"
    )
    folder = config_dir({"cluster/open": text})
    with pytest.raises(Refused) as refused:
        load("cluster=open", config_dir=folder)
    asked = {problem.asked: problem for problem in refused.value.problems}
    provenance = trace(["cluster=open"], config_dir=folder)
    assert list(asked) == ["scheduler.max_num_seqs", "sampling.seed", "sampling.stop[0]"]
    for (key, problem), line in zip(asked.items(), (3, 5, 6), strict=True):
        assert problem.why == f"{folder}/cluster/open.yaml leaves it open"
        assert str(provenance.last(key)) == f"{folder}/cluster/open.yaml:{line}"
        assert problem.fix.startswith(key.partition("[")[0])
    load("cluster=open", "scheduler.max_num_seqs=3", "sampling.seed=1", "sampling.stop=[]", config_dir=folder)


def test_prepare_agrees_with_forced() -> None:
    """The test's own forcing is the product's."""
    from deepinfer.config.compose import hydra_of_our_own

    with hydra_of_our_own() as loader:
        assert prepare(VALUES, Groups(loader))[0] == forced(list(VALUES))
