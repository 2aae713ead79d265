"""Files of the user's own: everything that is wrong with them at once, each with its line, and fixes that work."""

from collections.abc import Callable

import pytest

from deepinfer.config.compose import load
from deepinfer.config.errors import Problem, Refused
from deepinfer.config.own_nodes import MAX_KEYS

WriteConf = Callable[[dict[str, str]], str]
HEAD = "# @package _global_\n"
SITE = "cluster: {kind: none}\n"


def refuse(folder: str, *overrides: str) -> tuple[Problem, ...]:
    with pytest.raises(Refused) as refused:
        load(*overrides, config_dir=folder)
    assert refused.value.exit_code == 2
    return refused.value.problems


def defaults(line: str) -> str:
    return f"{HEAD}defaults:\n  - {line}\n{SITE}"


ONE_FAULT = [  # text of cluster/a.yaml, its line, what is asked, what is found
    (HEAD + SITE + "~: 2\n", 3, "~:", "reads this key as null"),
    (HEAD + SITE + "yes: 2\n", 3, "yes:", "reads this key as true or false"),
    (HEAD + SITE + "launcher: {env: {ON: '1'}}\n", 3, "ON:", "reads this key as true or false"),
    ("3\n", 1, "a.yaml", "one bare value"),
    (HEAD + "- a\n- b\n", 2, "a.yaml", "a list"),
    ("", 1, "a.yaml", "no keys"),
    (HEAD, 1, "a.yaml", "no keys"),
    (HEAD + SITE + "scheduler: [1]\n", 3, "scheduler: […]", "scheduler is a group"),
    (HEAD + SITE + "scheduler: null\n", 3, "scheduler: null", "scheduler is a group"),
    (HEAD + SITE + "scheduler: continuos\n", 3, "scheduler: continuos", "scheduler is a group"),
    (HEAD + SITE + "scheduler: {max_num_seqs: 010}\n", 3, "scheduler.max_num_seqs=010", "reads it as 8"),
    (HEAD + SITE + "scheduler: {max_num_seqs: 1:30}\n", 3, "scheduler.max_num_seqs=1:30", "reads it as 90"),
    (HEAD + SITE + '"hydra": {run: {dir: x}}\n', 3, '"hydra": {run: {dir: x}}', "Hydra's own settings"),
    ("\ufeff" + HEAD + SITE, 1, "a.yaml", "byte order mark"),
    (defaults("override /hardware: h2000"), 3, "hardware=h2000", "no option 'h2000'"),
    (defaults("override /hardware: ???"), 3, "hardware=???", "no option is named"),
    (defaults("override /speculation: off"), 3, "speculation=off", "no option 'off'"),
    (defaults("override /cluster: h200_node"), 3, "override /cluster: h200_node", "cannot choose another cluster"),
    (defaults("/hardware: h200"), 3, "/hardware: h200", "chosen already"),
    (defaults("override /hardwre: h200"), 3, "override /hardwre: h200", "no group 'hardwre'"),
]


@pytest.mark.sample(8)
@pytest.mark.parametrize(("text", "line", "asked", "found"), ONE_FAULT)
def test_a_fault_has_its_file_and_line(config_dir: WriteConf, text: str, line: int, asked: str, found: str) -> None:
    folder = config_dir({"cluster/a": text})
    (problem,) = refuse(folder, "cluster=a")
    assert (problem.asked, problem.file, problem.line) == (asked, f"{folder}/cluster/a.yaml", line)
    assert found in problem.found and problem.fix != problem.asked


@pytest.mark.sample(3)
@pytest.mark.parametrize("text", [text for text, *_ in ONE_FAULT if "override /" in text or "- /" in text])
def test_the_fix_of_a_defaults_list_resolves_it(config_dir: WriteConf, text: str) -> None:
    """Typed on the command line, or put in place of the line that it is about."""
    (problem,) = refuse(config_dir({"cluster/a": text}), "cluster=a")
    if "off" in problem.asked or not problem.fix.startswith("-"):
        mended, typed = text.replace(" off", ' "off"'), [problem.fix]
    else:
        lines = text.splitlines()
        lines[problem.line - 1] = f"  {problem.fix}"
        kept = [
            line for line in lines if line not in SITE or problem.fix != "- h200_node"
        ]  # which has a kind of its own
        mended, typed = "\n".join(kept), []
    assert load("cluster=a", *typed, config_dir=config_dir({"cluster/a": mended})).task.kind == "generate"


def test_all_at_once(config_dir: WriteConf) -> None:
    """Two options and two keys: the options that do not exist hide nothing, and each has its own line."""
    head = f"{HEAD}defaults:\n  - override /hardware: h2000\n  - override /parallel: ep9\n{SITE}"
    folder = config_dir({"cluster/a": head + "schedulr: {a: 1}\ncache: {num_block: 3}\n"})
    problems = refuse(folder, "cluster=a")
    assert {problem.asked: problem.line for problem in problems} == {
        "hardware=h2000": 3,
        "parallel=ep9": 4,
        "schedulr.a=1": 6,
        "cache.num_block=3": 7,
    }


def test_the_command_line_wins_over_a_wrong_option(config_dir: WriteConf) -> None:
    folder = config_dir({"cluster/a": defaults("override /parallel: ep9")})
    assert load("cluster=a", "parallel=ep8", config_dir=folder).parallel.expert == 8


def test_a_name_that_ships_with_deepinfer(config_dir: WriteConf) -> None:
    folder = config_dir({"hardware/h200": "defaults: [h100]\nname: mine\n"})
    (problem,) = refuse(folder, "hardware=h200")
    assert (problem.asked, problem.file) == ("hardware=h200", f"{folder}/hardware/h200.yaml")
    assert load("hardware=h100", config_dir=folder).hardware.kind == "cuda"


@pytest.mark.parametrize("name", ["inf", "2024", "null"])
def test_names_of_files_that_are_read_as_something_else(config_dir: WriteConf, name: str) -> None:
    folder = config_dir({f"cluster/{name}": "kind: none\n"})
    (problem,) = refuse(folder, f"cluster={name}")
    assert problem.fix == f"'cluster=\"{name}\"'"
    assert load(problem.fix.strip("'"), config_dir=folder).cluster.kind == "none"


def test_a_file_of_many_keys(config_dir: WriteConf) -> None:
    keys = "".join(f"k{number}: 1\n" for number in range(MAX_KEYS))
    (problem,) = refuse(config_dir({"cluster/a": HEAD + SITE + keys}), "cluster=a")
    assert "keys and items" in problem.found


def test_dates_are_days(config_dir: WriteConf) -> None:
    text = HEAD + (
        "cluster: {kind: site, name: x, nodes: 1, hosts: [], interface: null, "
        'verified: {date: "2026-13-45", hardware: x, commit: "1234567", what: y}}\n'
    )
    (problem,) = refuse(config_dir({"cluster/a": text}), "cluster=a")
    assert "no day of the calendar" in problem.found
