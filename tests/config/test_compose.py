"""Hydra's side: overrides that surprise, files that are broken, and the data that comes out."""

import shlex
from collections.abc import Callable

import pytest
from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra

from deepinfer.config import compose as composing
from deepinfer.config.argv import parse
from deepinfer.config.compose import compose_data, load, read
from deepinfer.config.errors import Problem, Refused
from deepinfer.config.specs import Disaggregated, DSpark

WriteConf = Callable[[dict[str, str]], str]


def refuse(*overrides: str, config_dir: str | None = None) -> tuple[Problem, ...]:
    with pytest.raises(Refused) as refused:
        load(*overrides, config_dir=config_dir)
    return refused.value.problems


def test_overrides_reach_the_spec() -> None:
    spec = load("speculation=dspark", "speculation.depth=3", "sampling.max_tokens=7", "cache.memory_bytes=1.5GB")
    assert spec.speculation == DSpark(depth=3, verify="auto", back_off=True, cost_curve="measured")
    assert spec.sampling.max_tokens == 7
    assert spec.cache.memory_bytes == 1_500_000_000


@pytest.mark.parametrize("overrides", [("model=v41_flash", "model=v41_tiny"), ("sampling.n=2", "++sampling.n=3")])
def test_what_is_given_twice_is_refused(overrides: tuple[str, str]) -> None:
    with pytest.raises(Refused, match="is given twice"):
        load(*overrides)


def test_one_group_in_two_places() -> None:
    deploy = load("deploy=disaggregated", "parallel@deploy.decode.parallel=ep4", "deploy.prefill.replicas=3").deploy
    assert isinstance(deploy, Disaggregated)
    assert (deploy.prefill.parallel.expert, deploy.decode.parallel.expert, deploy.prefill.replicas) == (1, 4, 3)


def test_choices_name_every_group() -> None:
    _, choices = read(parse(["sampling=greedy", "deploy=disaggregated"]))
    assert choices["sampling"] == "greedy"
    assert choices["hardware"] == "cpu"
    assert choices["parallel@deploy.prefill.parallel"] == "single"
    assert not [group for group in choices if group.startswith("hydra")]


def test_free_text_passes_untouched() -> None:
    text = 'It\'s ${x}, a=b | "q" \\'
    assert load(f"model.path={text}").model.path == text
    assert load("model.revision=12E34").model.revision == "12E34"


def test_open_mappings_take_new_names() -> None:
    assert load("sampling.logit_bias={5: 1.5}", "sampling.logit_bias.6=2").sampling.logit_bias == {5: 1.5, 6: 2.0}
    assert load("kernels.ops.linear_fp8=reference").kernels.ops == {"linear_fp8": "reference"}


def test_quoted_items_keep_their_backslash() -> None:
    assert load(r"sampling.stop=['end\\', 'b']").sampling.stop == ("end\\", "b")


def test_lists_are_replaced_not_joined(config_dir: WriteConf) -> None:
    folder = config_dir({"cluster/a": "# @package _global_\nsampling:\n  stop: [a, b]\ncluster:\n  kind: none\n"})
    assert load("cluster=a", config_dir=folder).sampling.stop == ("a", "b")
    assert load("cluster=a", "sampling.stop=[c]", config_dir=folder).sampling.stop == ("c",)


def test_interpolation_is_resolved_once_and_plain() -> None:
    assert load("parallel.expert=${parallel.context}", "parallel.context=2").parallel.expert == 2


def test_prefixes_of_hydra_are_accepted() -> None:
    """`+` and `++` mean the same as nothing, where a key or a group exists."""
    assert load("+parallel=ep2", "++sampling.n=2", "+sampling.seed=5").parallel.expert == 2


BAD = [
    ("parallel=ep46", "no option 'ep46' in group parallel", "parallel=ep64"),
    ("hardware=h2000", "no option 'h2000' in group hardware", "hardware=h200"),
    ("cluster=nowhere", "no option 'nowhere' in group cluster", ""),
    ("speculation=null", "no option 'null' in group speculation", "speculation=none"),
    ("speculation=off", "no option 'off' in group speculation", "speculation=none"),
    ("parallel=2", "no option '2' in group parallel", ""),
    ("speculation=", "no option is named", ""),
    ("parallel=[ep2,ep4]", "several options for one group", "parallel=ep2"),
    ("parallel=[ep2]", "several options for one group", "parallel=ep2"),
    ("parallel=ep2,ep4", "a comma or a range means a sweep", "deepinfer -m parallel=ep2,ep4"),
    ("hardware=mi300x", "no option 'mi300x' in group hardware", "hardware=h200"),
    ("hardware=nonsense", "no option 'nonsense' in group hardware", "hardware=auto"),
    ("sampling={n: 3}", "a mapping for a group", "sampling.n=3"),
    ("scheduler.max_num_seqs=3,4", "a comma or a range means a sweep", "deepinfer -m scheduler.max_num_seqs=3,4"),
    ("sampling.stop=a,b", "a comma or a range means a sweep", "sampling.stop=[a,b]"),
    ("sampling.n=range(1,5)", "a comma or a range means a sweep", "deepinfer -m 'sampling.n=range(1,5)'"),
    ("~sampling", "nothing can be taken away", ""),
    ("~speculation", "nothing can be taken away", "speculation=none"),
    ("~sampling.n", "nothing can be taken away", ""),
    ("=x", "nothing before the '='", ""),
    ("sampling.stop=a:=b", "cannot be read at '='", "'sampling.stop=[\"a:=b\"]'"),
    ("sampling.stop=[a", "cannot be read at '[a'", "'sampling.stop=[\"[a\"]'"),
    ("sampling.temperature=Ä)", "wanted a number", "sampling.temperature=auto"),
    ("paralel=ep2", "no key 'paralel'", "parallel=ep2"),
    ("+foo/bar=1", "no group 'foo/bar'", ""),
    ("max_tokens=3", "no key 'max_tokens'", "sampling.max_tokens=3"),
    ("sampling.max_token=3", "no key 'max_token'", "sampling.max_tokens=3"),
    ("+sampling.max_token=3", "no key 'max_token'", "sampling.max_tokens=3"),
    ("deploy.decode=ep2", "no key 'decode'", "deploy=disaggregated deploy.decode=ep2"),
    ("parallel.expert.x=3", "wanted a whole number", ""),
    ("parallel.expert=abc", "'abc' is", ""),
    ("sampling.stop.a.b=1", "no such place: Index 'a' (str) is not an int", ""),
    ("parallel.expert=${nope}", "'nope' not found", ""),
    ("parallel.expert=${oc.env:NOT_SET_ANYWHERE}", "NOT_SET_ANYWHERE", ""),
    ("executor._target_=logging.os.system", "no key '_target_'", ""),
    (
        "parallel@deploy.decode.parallel=ep2",
        "this place does not exist",
        "deploy=disaggregated parallel@deploy.decode.parallel=ep2",
    ),
    ("hydra/launcher=submarine", "Hydra's own settings would do nothing here", ""),
]


@pytest.mark.sample(15)
@pytest.mark.parametrize(("override", "found", "fix"), BAD, ids=[override for override, *_ in BAD])
def test_refuses(override: str, found: str, fix: str) -> None:
    (problem,) = refuse(override)
    if override != "parallel.expert=abc":
        assert found in problem.found
    assert problem.fix == fix


def test_what_is_offered_can_be_typed() -> None:
    """Every fix of the table that is a plain override is taken without complaint, but for the value it carries."""
    for _, _, fix in BAD:
        if fix and not fix.startswith(("deepinfer", "deploy=disaggregated deploy.")):
            load(*shlex.split(fix))


def test_all_faults_at_once() -> None:
    """Faults that Hydra would report one by one, and values that it would not check, in one go."""
    overrides = [
        "parallel=ep46",
        "hydra/launcher=submarine",
        "hardware=null",
        "sampling.temperature=a=b",
        "scheduler.max_num_seqs=3,4",
        "cache.num_blocks=atuo",
        "sampling.max_token=3",
        "depth=3",
    ]
    problems = refuse(*overrides)
    assert sorted(problem.asked for problem in problems) == sorted(overrides)


def test_several_broken_interpolations() -> None:
    asked = [problem.asked for problem in refuse("parallel.expert=${nope}", "sampling.n=${sampling.m}")]
    assert sorted(asked) == ["parallel.expert=${nope}", "sampling.n=${sampling.m}"]


def test_no_follow_up_complaints() -> None:
    """Keys of an option that was mistyped are not checked against the default option."""
    problems = refuse("speculation=dsparc", "speculation.depth=3", "sampling.n=0")
    assert [problem.asked for problem in problems] == ["speculation=dsparc", "sampling.n=0"]


GLOBAL = "# @package _global_\n"
FILES = [
    ("cluster:\n  a: [\n  b: 3", "line 3, column 7", "not valid YAML"),
    ("a: 1\na: 2\n", "found duplicate key a", "not valid YAML"),
    (GLOBAL + "defaults:\n  - override parallel: ep64\n", "cluster/a.yaml overrides", "needs a leading slash"),
]


@pytest.mark.parametrize(("text", "found", "why"), FILES)
def test_broken_files_of_the_user(config_dir: WriteConf, text: str, found: str, why: str) -> None:
    (problem,) = refuse("cluster=a", config_dir=config_dir({"cluster/a": text}))
    assert problem.asked == "cluster=a"
    assert found in problem.found
    assert why in problem.why


def test_file_that_lists_options_for_one_group(config_dir: WriteConf) -> None:
    text = GLOBAL + "defaults:\n  - override /parallel: [ep2, ep4]\ncluster:\n  kind: none\n"
    (problem,) = refuse("cluster=a", config_dir=config_dir({"cluster/a": text}))
    assert problem.asked == "parallel"


def test_file_with_a_renamed_key(config_dir: WriteConf) -> None:
    text = GLOBAL + "scheduler:\n  max_num_sequences: 3\ncluster:\n  kind: none\n"
    (problem,) = refuse("cluster=a", config_dir=config_dir({"cluster/a": text}))
    assert problem.fix == "scheduler.max_num_seqs=3"


def test_several_mandatory_values_are_all_named(config_dir: WriteConf) -> None:
    """Also those that the command line fills in are not asked for again."""
    text = "defaults: [chat, _self_]\nprompt_tokens: ???\noutput_tokens: ???\ncached_share: ???\n"
    folder = config_dir({"workload/mine": text})
    problems = refuse("workload=mine", "workload.cached_share=0", config_dir=folder)
    assert [problem.asked for problem in problems] == ["workload.prompt_tokens", "workload.output_tokens"]


def test_numbers_in_files(config_dir: WriteConf) -> None:
    text = GLOBAL + "cache:\n  memory_bytes: 5e8\nsampling:\n  min_p: 1e-3\ncluster:\n  kind: none\n"
    spec = load("cluster=a", config_dir=config_dir({"cluster/a": text}))
    assert (spec.cache.memory_bytes, spec.sampling.min_p) == (500_000_000, 0.001)


def test_own_options_join_ours(config_dir: WriteConf) -> None:
    text = GLOBAL + "defaults:\n  - override /parallel: ep64\ncluster:\n  kind: none\nsampling:\n  n: 4\n"
    folder = config_dir({"cluster/site": text, "sampling/mine": "defaults: [default, _self_]\nmax_tokens: 9\n"})
    spec = load("+cluster=site", "sampling=mine", config_dir=folder)
    assert (spec.parallel.expert, spec.sampling.max_tokens, spec.sampling.n) == (64, 9, 4)
    assert load("cluster=site", "parallel=ep4", config_dir=folder).parallel.expert == 4  # the command line wins


def test_near_misses_know_own_options(config_dir: WriteConf) -> None:
    (problem,) = refuse("cluster=stie", config_dir=config_dir({"cluster/site": "kind: none\n"}))
    assert problem.fix == "cluster=site"


def test_missing_config_dir() -> None:
    (problem,) = refuse(config_dir="/no/such/folder")
    assert "/no/such/folder" in problem.found


def test_library_door_refuses_words_and_flags() -> None:
    asked = [problem.asked for problem in refuse("plan", "prompt=x", "-m")]
    assert asked == ["-m", "prompt=…", "plan"]


def test_inside_a_hydra_application() -> None:
    """A caller who uses Hydra finds it as it was."""
    with initialize_config_module(version_base="1.3", config_module="deepinfer.conf"):
        theirs = GlobalHydra.instance().hydra
        assert load("sampling.n=2").sampling.n == 2
        assert GlobalHydra.instance().hydra is theirs
        assert compose("config").sampling.n == 1
    assert not GlobalHydra.instance().is_initialized()


def test_hydra_is_left_uninitialised_after_a_refusal() -> None:
    refuse("parallel=ep46")
    assert not GlobalHydra.instance().is_initialized()


def test_composing_costs_one_composition(monkeypatch: pytest.MonkeyPatch) -> None:
    """The good path asks Hydra once, whatever the number of overrides."""
    calls = []
    once = composing._compose
    monkeypatch.setattr(composing, "_compose", lambda overrides: calls.append(overrides) or once(overrides))
    compose_data(["parallel=ep2", "sampling.n=2", "cache=prefix"])
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("v41_tiny", "model=v41_tiny"),
        ("V41_Flsh", "model=v41_flash"),
        ("h200", "hardware=h200"),
        ("a/b", "model.path=a/b"),
    ],
)
def test_a_bare_word_is_no_override_and_the_likely_one_is_named(word: str, fix: str) -> None:
    with pytest.raises(Refused) as caught:
        load(word, "sampling.n=0")
    asked = {problem.asked: problem.fix for problem in caught.value.problems}
    assert asked[word] == fix and len(asked) == 2


def test_text_below_a_word(config_dir: WriteConf) -> None:
    """`cluster.verified` is a word or a mapping; a key of the mapping, set as free text, takes the word's place."""
    problems = refuse("cluster=h200_node", "cluster.verified.what=x")
    assert problems and all(problem.asked.startswith("cluster.verified") for problem in problems)
