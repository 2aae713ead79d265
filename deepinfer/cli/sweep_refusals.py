"""-m: what cannot be asked of many runs, and what a comma does not do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from deepinfer.config.argv import PATH_WORDS, VERBS, CommandLine
from deepinfer.config.errors import ExitCode, Problem, Refused, listed
from deepinfer.config.runnable import NOT_BUILT

TABLED = ("plan", "bench")  # verbs whose runs answer with figures: told in a table instead of one after the other
_NOT_SWEPT = {
    "tune": "a search makes runs of its own",
    "launch": "it writes the files of one plan",
    "rank": "it runs one rank of a plan that is there",
    "serve": "a server runs until it is told to stop",
    "chat": "somebody talks with it",
    "run_batch": "it answers one file into one file",
}
_OF_ONE = {
    "explain": "it is about one plan",
    "diff": "it compares one plan",
    "output": "all runs would write to one file",
}


def refuse_many(verb: str, words: dict[str, str]) -> None:
    """Raise Refused where a verb or its strings make no sense for several runs."""
    problems = [
        Problem(asked=f"{word}={words[word]}", found="-m makes many runs", why=why)
        for word, why in _OF_ONE.items()
        if word in words
    ]
    if verb in _NOT_SWEPT:
        problems.append(
            Problem(asked=f"{verb} -m", found="one run makes it", why=_NOT_SWEPT[verb], fix=f"deepinfer {verb} …")
        )
    if verb in NOT_BUILT["task.kind"]:
        built = listed(name for name in VERBS if name not in (*NOT_BUILT["task.kind"], *_NOT_SWEPT))
        found = "this version has no such verb yet"
        problems.append(Problem(asked=f"{verb} -m", found=found, why=f"-m takes {built}", code=ExitCode.OTHER))
    if words.get("prompt") == "-":
        problems.append(Problem(asked="prompt=-", found="-m makes many runs", why="stdin can be read once"))
    if verb in TABLED and words.get("format", "text") not in ("text", "json"):
        form = words["format"]
        problems.append(Problem(asked=f"format={form}", found="-m gives a table or JSON lines", fix="format=json"))
    if problems:
        raise Refused(problems)


def not_swept(line: CommandLine) -> Iterator[str]:
    """Sentences about texts and paths that look like several: they may hold commas, so they are never taken apart."""
    for key, text in (line.words | line.texts).items():
        several = re.fullmatch(r"[^\s,]+(,[^\s,]+)+", text)
        if several and not ((key in line.texts or key in PATH_WORDS) and Path(text).exists()):
            each = " and ".join(f"{key}={part}" for part in text.split(",")[:2])
            yield f"{key}={text} is one text: -m takes no texts and paths apart; for several type one command for each, {each}"
