"""A command line on its way to a verb: the verb becomes an override, and the whole is composed and checked."""

from collections.abc import Iterator

from msgspec import structs

from deepinfer.config.argv import VERBS, WORDS_OF_VERB, CommandLine
from deepinfer.config.errors import Problem, Refused, listed
from deepinfer.config.specs import Spec


def with_verb(line: CommandLine) -> CommandLine:
    """The same line with its verb as an override: `serve x=y` is `x=y task=serve`."""
    if line.verb is None:
        return line
    problems = [
        Problem(asked=f"{line.verb} {text}", found="two tasks", why="the verb is the task", fix=text.partition("=")[2])
        for text in line.overrides
        if text.lstrip("+").startswith("task=") and text.partition("=")[2] != line.verb
    ]
    overrides = (*(text for text in line.overrides if not text.startswith("task=")), f"task={line.verb}")
    return structs.replace(line, overrides=overrides, problems=(*line.problems, *problems))


def checked(line: CommandLine) -> tuple[Spec, dict[str, str]]:
    """The Spec of a line and the chosen options. Raises Refused with all that is wrong with it."""
    from deepinfer.cli.generate_file import path_problems
    from deepinfer.config.compose import read  # Hydra takes a quarter of a second to import

    verb = line.verb or next((text[5:] for text in line.overrides if text.startswith("task=")), "generate")
    try:
        return read(line, list(misplaced_words(verb, line)), config_dir=line.flag_value("--config-dir", "-cd"))
    except Refused as refused:
        words = line.words if verb == "generate" else {}
        raise Refused([*refused.problems, *path_problems(words.get("prompts"), words.get("output"))]) from refused


def misplaced_words(verb: str, line: CommandLine) -> Iterator[Problem]:
    """Strings of other verbs, and strings that exclude each other."""
    for word, value in line.words.items():
        takers = [taker for taker, words in WORDS_OF_VERB.items() if word in words]
        if verb in VERBS and verb not in takers:
            why, fix = f"it belongs to {listed(takers)}", f"{takers[0]} {word}={value}"
            yield Problem(asked=f"{word}={value}", found=f"{verb} takes no {word}=", why=why, fix=fix)
    if line.words and line.has_flag("--cfg", "-c", "--info", "-i"):
        asked = " ".join(f"{word}=" for word in line.words)
        yield Problem(
            asked=asked, found="--cfg and --info only show the configuration", why=f"nothing would read {asked}"
        )
    if {"prompt", "prompts"} <= line.words.keys():
        yield Problem(asked="prompt= and prompts=", found="two sources of prompts", why="one would be lost")
