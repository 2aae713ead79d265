"""The command line taken apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deepinfer.config.argv import VERBS, parse

PROMPTS = [
    "It's 5, right?",
    "Add 17, 25",
    "a=b",
    "Ä",
    "你好",
    "12",
    "null",
    "${x}",
    "yes|no",
    'say "hi"',
    "ends with a backslash \\",
    "[1, 2",
    "{a: b}",
    "two\nlines",
    "-m",
    "",
]


@pytest.mark.parametrize("text", PROMPTS)
def test_free_text_is_verbatim(text: str) -> None:
    line = parse([f"prompt={text}", f"model.path={text or '.'}", f"++model.revision={text or '.'}"])
    assert line.words == {"prompt": text}
    assert line.texts == {"model.path": text or ".", "model.revision": text or "."}
    assert line.overrides == ()
    assert line.problems == ()


@given(st.text())
def test_any_text_is_verbatim(text: str) -> None:
    assert parse(["generate", f"prompt={text}"]).words == {"prompt": text}


@pytest.mark.parametrize("verb", VERBS)
def test_verb_is_the_first_word(verb: str) -> None:
    line = parse(["--cfg", "job", verb, "parallel=ep2", "~sweep"])
    assert (line.verb, line.overrides, line.problems) == (verb, ("parallel=ep2", "~sweep"), ())
    assert parse(["parallel=ep2"]).verb is None


def test_flags_are_taken_out_wherever_they_stand() -> None:
    line = parse(
        ["hardware=h200", "-m", "parallel=ep2,ep4", "--config-dir", "a b", "--package=cache", "-c", "job", "-i"]
    )
    assert line.overrides == ("hardware=h200", "parallel=ep2,ep4")
    assert line.has_flag("--multirun", "-m")
    assert line.flag_value("--config-dir") == "a b"
    assert line.flag_value("--package") == "cache"
    assert line.flag_value("--cfg", "-c") == "job"
    assert line.flag_value("--info", "-i") == "all"
    assert line.problems == ()


def test_optional_flag_value_does_not_swallow_an_override() -> None:
    line = parse(["--info", "parallel=ep2"])
    assert (line.flag_value("--info"), line.overrides) == ("all", ("parallel=ep2",))
    assert parse(["--info", "defaults"]).flag_value("--info") == "defaults"


@pytest.mark.parametrize(
    ("argv", "found", "fix"),
    [
        (["serv"], "no such verb", "serve"),
        (["pln", "parallel=ep2"], "no such verb", "plan parallel=ep2"),
        (["hello world"], "no such verb", "prompt='hello world'"),
        (["parallel=ep2", "plan"], "a verb stands first", "deepinfer plan …"),
        (["plan", "parallel"], "no '=' in it", "parallel=…"),
        (["plan", ""], "an empty argument", "key=…"),
        (["--tp", "8"], "no such flag", "parallel=ep8"),
        (["-tp", "8"], "no such flag", "parallel=ep8"),
        (["--max-num-seqs", "64"], "no such flag", "scheduler.max_num_seqs=64"),
        (["--gpu-memory-utilization=0.9"], "no such flag", "cache.memory_bytes=40GB"),
        (["--enable-prefix-caching", "plan"], "no such flag", "cache=prefix"),
        (["--max-num-batched-tokens"], "no such flag", "scheduler.max_num_batched_tokens=…"),
        (["--max-tokens=8"], "no such flag", "sampling.max_tokens=8"),
        (["--max-new-tokens=8"], "no such flag", "sampling.max_tokens=8"),
        (["--ep-size=8"], "no such flag", "parallel.expert=8"),
        (["--hlep"], "no such flag", "--help"),
        (["--multirun=3"], "no such flag", "--multirun"),
        (["-x"], "no such flag", ""),
        (["--cfg"], "no value follows it", "--cfg …"),
        (["--cfg", "jb"], "no such view", ""),
        (["--resolve"], "nothing is shown", "--cfg job --resolve"),
        (["format=jsn"], "no such format", "format=json"),
        (["format="], "no such format", ""),
        (["prompt=a", "prompt=b"], "prompt= is given twice", "prompt=b"),
        (["output="], "nothing after the '='", "output=…"),
        (["model.path="], "nothing after the '='", "model.path=…"),
        (["sampling.seed=1", "sampling.seed=2"], "sampling.seed= is given twice", "sampling.seed=2"),
        (["parallel=ep2", "+parallel=ep4"], "parallel= is given twice", "+parallel=ep4"),
        (["model.path=a", "model.path=b"], "model.path= is given twice", "model.path=b"),
        (["prompt=\udcff"], "it holds bytes that are not UTF-8", ""),
        (["sampling.seed=\udcff"], "it holds bytes that are not UTF-8", ""),
    ],
)
def test_mistakes(argv: list[str], found: str, fix: str) -> None:
    problem = parse(argv).problems[0]
    assert (problem.found, problem.fix) == (found, fix)


def test_flags_of_other_engines_are_explained() -> None:
    (problem,) = parse(["--tensor-parallel-size=8"]).problems
    assert "there is no tensor parallelism" in problem.why and "parallel.attention_dp" in problem.why


def test_a_prompt_without_quotes_is_one_problem() -> None:
    line = parse(["prompt=What", "is", "1", "+", "1?", "sampling.n=2"])
    (problem,) = line.problems
    assert problem.asked == "prompt=What is 1 + 1?" and problem.fix == "prompt='What is 1 + 1?'"
    assert line.overrides == ("sampling.n=2",)


@pytest.mark.parametrize(("argv", "flag", "verb"), [(["help"], "--help", None), (["help", "plan"], "--help", "plan")])
def test_help_and_version_are_words_too(argv: list[str], flag: str, verb: str | None) -> None:
    line = parse(argv)
    assert line.has_flag(flag) and (line.verb, line.problems) == (verb, ())
    assert parse(["version"]).has_flag("--version") and parse(["prompt=help"]).flags == ()


def test_all_mistakes_are_collected() -> None:
    line = parse(["serv", "--tp=8", "format=jsn", "parallel", "cache=prefix"])
    assert [problem.asked for problem in line.problems] == ["--tp", "serv", "format=jsn", "parallel"]
    assert line.overrides == ("cache=prefix",)


def test_names_of_files_may_be_any_bytes() -> None:
    line = parse(["prompts=\udcff", "output=\udcfe"])
    assert (line.words, line.problems) == ({"prompts": "\udcff", "output": "\udcfe"}, ())


@pytest.mark.parametrize("text", ["launcher.cpus_per_rank=<#]@", "spe/ulation.cost_curve=measured", "sampling.n=[1"])
def test_what_cannot_be_read_is_not_offered_again(text: str) -> None:
    twice = [problem for problem in parse([text, text]).problems if "given twice" in problem.found]
    assert twice and not twice[0].fix
    assert [problem.fix for problem in parse(["sampling.n=2", "sampling.n=2"]).problems] == ["sampling.n=2"]
