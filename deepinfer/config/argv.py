"""The command line before Hydra sees it: verb, flags, free text, overrides.

Free text and paths are cut out here and never parsed: Hydra's grammar refuses about half of ordinary prompts and
changes others. What is left is handed to Hydra, flags first, since its argparse splits positionals at a flag.
"""

import re
import shlex
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct

from deepinfer.config.errors import Problem, listed, nearest
from deepinfer.config.keys import leaf_keys, text_keys
from deepinfer.config.misnamed import meant
from deepinfer.config.misnamed_serving import model_of, word_of_flag
from deepinfer.config.quoting import shell, typed

VERBS = ("generate", "plan", "serve", "chat", "bench", "simulate", "tune", "doctor", "launch", "rank", "run_batch")
WORDS = {  # strings of a verb, not of the configuration → the values they may have; () for free text
    "prompt": (),
    "prompts": (),
    "output": (),
    "input": (),
    "errors": (),
    "format": ("text", "json", "mermaid", "ranks"),
    "explain": (),
    "diff": (),
    "out": (),
    "plan": (),
    "role": (),
    "replica": (),
    "new_key": (),
}
WORDS_OF_VERB = {
    "generate": ("prompt", "prompts", "output"),
    "plan": ("format", "explain", "diff", "out"),
    "doctor": ("format",),
    "launch": ("out",),
    "bench": ("format", "out"),
    "tune": ("format", "out"),
    "rank": ("plan", "role", "replica"),
    "serve": ("new_key",),
    "run_batch": ("input", "output", "errors"),
}
FLAGS = {  # flag → whether a value follows it; "?" where it may
    "--help": "",
    "-h": "",
    "--version": "",
    "--cfg": "value",
    "-c": "value",
    "--resolve": "",
    "--package": "value",
    "-p": "value",
    "--info": "?",
    "-i": "?",
    "--shell-completion": "",
    "-sc": "",
    "--config-dir": "value",
    "-cd": "value",
    "--multirun": "",
    "-m": "",
}
PATH_WORDS = ("prompts", "output", "input", "errors", "diff", "out", "plan")  # names of files, which may be any bytes
WORD_FLAGS = {"help": "--help", "version": "--version"}  # as a first word
CFGS = ("job", "hydra", "all")
INFOS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")


class Invocation(Struct, frozen=True, kw_only=True):
    """What a verb gets beside the Spec: its own strings exactly as typed, and how the Spec came about."""

    verb: str
    prompt: str | None = None
    prompts: str | None = None
    output: str | None = None
    input: str | None = None  # file of API requests
    errors: str | None = None  # file for those that failed
    format: str = "text"
    explain: str | None = None
    diff: str | None = None  # file with a plan to compare with
    out: str | None = None  # folder for what the verb writes
    plan: str | None = None  # file with a plan to run
    role: str | None = None
    replica: str | None = None
    new_key: str | None = None  # who an API key is made for
    overrides: tuple[str, ...] = ()  # as typed, without verb, flags and the strings above
    choices: dict[str, str] = {}  # group (or group@package) → chosen option
    texts: dict[str, str] = {}  # free-text keys of the configuration, dotted, as typed
    config_dir: str | None = None  # folder with options of the user's own


class CommandLine(Struct, frozen=True, kw_only=True):
    """One command line, taken apart. `texts` are the free-text keys of the configuration, dotted."""

    verb: str | None
    flags: tuple[str, ...]
    words: dict[str, str]
    texts: dict[str, str]
    overrides: tuple[str, ...]
    problems: tuple[Problem, ...]

    def has_flag(self, *names: str) -> bool:
        return any(flag in names for flag in self.flags)

    def flag_value(self, *names: str) -> str | None:
        """What follows a flag; of several the last."""
        found = [value for flag, value in pairwise(self.flags) if flag in names]
        return found[-1] if found else None


def parse(argv: Sequence[str]) -> CommandLine:
    """Take a command line apart. Never raises: what is wrong with it is in `problems`."""
    flags, rest, problems = _split_flags(argv)
    if rest and rest[0] in WORD_FLAGS:
        flags.append(WORD_FLAGS[rest.pop(0)])
    verb, rest = _take_verb(rest, problems)
    rest = _joined_prompt(rest, problems)
    words: dict[str, str] = {}
    texts: dict[str, str] = {}
    overrides = []
    given: set[str] = set()  # keys so far
    for argument in rest:
        key, equals, value = argument.partition("=")
        problems.extend(_argument_problems(key, argument, given))
        given |= {key.lstrip("+")} if equals else set()
        if not equals and not argument.startswith("~"):
            problems.append(_no_equals(argument))
        elif key in WORDS:
            problems.extend(_word_problems(key, value))
            words[key] = value
        elif key.lstrip("+") in text_keys():
            texts[key.lstrip("+")] = value
        else:
            overrides.append(argument)
    return CommandLine(
        verb=verb, flags=tuple(flags), words=words, texts=texts, overrides=tuple(overrides), problems=tuple(problems)
    )


def _split_flags(argv: Sequence[str]) -> tuple[list[str], list[str], list[Problem]]:
    """Flags with their values, everything else, and what is wrong with the flags."""
    flags: list[str] = []
    rest: list[str] = []
    problems: list[Problem] = []
    waiting = deque(argv)
    while waiting:
        argument = waiting.popleft()
        name, equals, value = argument.partition("=")
        if not argument.startswith("-") or argument == "-":
            rest.append(argument)
        elif name not in FLAGS or (equals and not FLAGS[name]):
            problems.append(_unknown_flag(name, value or _next_value(waiting)))
        else:
            if equals:
                waiting.appendleft(value)
            flags += [name, *_flag_value(name, waiting, problems)]
    return flags, rest, [*problems, *_flag_problems(flags)]


def _flag_value(name: str, waiting: deque[str], problems: list[Problem]) -> list[str]:
    """The value that follows a flag; where it may be left out, only a word that fits is taken for one."""
    if FLAGS[name] == "?":
        return [waiting.popleft() if waiting and waiting[0] in INFOS else "all"]
    if not FLAGS[name]:
        return []
    if waiting:
        return [waiting.popleft()]
    problems.append(Problem(asked=name, found="no value follows it", fix=f"{name} …"))
    return []


def _next_value(waiting: deque[str]) -> str:
    """What follows an unknown flag and can only be its value; it is no argument then."""
    follows = waiting[0] if waiting else "="
    return "" if "=" in follows or follows.startswith("-") or follows in VERBS else waiting.popleft()


def _flag_problems(flags: Sequence[str]) -> Iterator[Problem]:
    """Flags that make no sense as they stand."""
    for name, value in pairwise(flags):
        if name in ("--cfg", "-c") and value not in CFGS:
            yield Problem(asked=f"{name} {value}", found="no such view", why=f"there are {listed(CFGS)}")
    folders = [value for name, value in pairwise(flags) if name in ("--config-dir", "-cd")]
    if len(folders) > 1:
        found, why = f"--config-dir is given {len(folders)} times", "one folder holds the options of your own"
        yield Problem(asked=f"--config-dir {folders[1]}", found=found, why=why, fix=f"--config-dir {folders[0]}")
    for name in ("--resolve", "--package", "-p"):
        if name in flags and not {"--cfg", "-c", "--info", "-i"} & set(flags):
            fix = f"--cfg job {name}"
            yield Problem(asked=name, found="nothing is shown", why=f"{name} is for --cfg", fix=fix)


def _unknown_flag(name: str, value: str) -> Problem:
    key = name.lstrip("-").replace("-", "_")
    homes = [full for full in leaf_keys() if key in (full, full.rsplit(".", 1)[-1])]
    known, renamed = meant(key, value or "…")
    close = "" if known else nearest(name, FLAGS, cutoff=0.75)
    fix = (typed(homes[0], value) if value else f"{homes[0]}=…") if homes else word_of_flag(name, value) or close or ""
    why = known or "options are written key=value, without dashes"
    return Problem(asked=name, found="no such flag", why=why, fix=renamed or fix)


def _take_verb(rest: list[str], problems: list[Problem]) -> tuple[str | None, list[str]]:
    """The first word, when it is one. A word that is nearly a verb is not taken for anything else."""
    if not rest or not rest[0] or "=" in rest[0] or rest[0].startswith("~"):
        return None, rest
    if rest[0] in VERBS:
        return rest[0], rest[1:]
    if rest[0] in ("explain", "diff"):
        return None, _word_as_verb(rest, "plan", problems)
    close = nearest(rest[0], VERBS)
    fix = " ".join([close, *map(shell, rest[1:])]) if close else f"prompt={shlex.quote(rest[0])}"
    problems.append(Problem(asked=rest[0], found="no such verb", why=f"there are {listed(VERBS)}", fix=fix))
    return None, rest[1:]


def _word_as_verb(rest: list[str], home: str, problems: list[Problem]) -> list[str]:
    """`explain KEY`: a word of the verb `home`, written like a verb. Gives what is left of the line."""
    word, value = rest[0], rest[1] if len(rest) > 1 and "=" not in rest[1] else ""
    others = rest[2:] if value else rest[1:]
    fix = " ".join([home, *map(shell, others), shell(f"{word}={value or '…'}")])
    why = f"it is a word of {home}, written {word}=…"
    problems.append(Problem(asked=f"{word} {value}".strip(), found="no such verb", why=why, fix=fix))
    return others


def _joined_prompt(rest: list[str], problems: list[Problem]) -> list[str]:
    """A prompt that was not quoted comes in pieces: one problem for all of them, and the arguments without the pieces."""
    start = next((i for i, argument in enumerate(rest) if argument.startswith("prompt=")), len(rest))
    end = next((i for i in range(start + 1, len(rest)) if "=" in rest[i]), len(rest))
    if end - start < 2:
        return rest
    text = " ".join(rest[start:end])
    found = f"the shell took it apart into {end - start} words"
    fix = f"prompt={shlex.quote(text.removeprefix('prompt='))}"
    problems.append(Problem(asked=text, found=found, why="quote the prompt", fix=fix))
    return [*rest[: start + 1], *rest[end:]]


def _no_equals(argument: str) -> Problem:
    if argument in VERBS:
        return Problem(asked=argument, found="a verb stands first", fix=f"deepinfer {argument} …")
    found = "no '=' in it" if argument else "an empty argument"
    fix = f"model={model_of(argument)}" if model_of(argument) else f"{argument or 'key'}=…"
    if argument.endswith(".jsonl"):  # what run_batch reads, and generate
        fix = shell(f"input={argument}") + " or " + shell(f"prompts={argument}")
    return Problem(asked=argument or "''", found=found, why="options are written key=value", fix=fix)


def _argument_problems(key: str, argument: str, given: set[str]) -> Iterator[Problem]:
    """What may be wrong with any `key=value`, after the keys that were `given`."""
    name, value = key.lstrip("+"), argument[len(key) + 1 :]
    if name in given and "=" in argument:
        fix = shell(argument) if value and (name in text_keys() or name in WORDS or _is_readable(name, value)) else ""
        yield Problem(asked=argument, found=f"{name}= is given twice", why="one of them would be lost", fix=fix)
    if name not in PATH_WORDS and any("\ud800" <= character <= "\udfff" for character in argument):
        yield Problem(asked=argument, found="it holds bytes that are not UTF-8", why="options and prompts are text")
    if name in text_keys() and "=" in argument and not value:
        yield Problem(asked=argument, found="nothing after the '='", fix=f"{name}=…")


def _is_readable(key: str, value: str) -> bool:
    """Whether Hydra can read an override, as far as that shows from its characters: what is offered must be legal."""
    balanced = all(value.count(left) == value.count(right) for left, right in ("[]", "{}", "()"))
    return not {"/", "."} <= set(key) and balanced and re.fullmatch(r"[\w\s.,:/|%+*@\[\]{}()\"'-]*", value) is not None


def _word_problems(key: str, value: str) -> Iterator[Problem]:
    if WORDS[key] and value not in WORDS[key]:
        close = nearest(value, WORDS[key])
        known = listed(WORDS[key])
        fix = f"{key}={close}" if close else ""
        yield Problem(asked=f"{key}={value}", found=f"no such {key}", why=f"there are {known}", fix=fix)
    if not WORDS[key] and not value and key != "prompt":
        yield Problem(asked=f"{key}=", found="nothing after the '='", fix=f"{key}=…")
