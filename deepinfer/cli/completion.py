"""What may come next on a command line that is being typed: verbs, their words, flags, groups, options, keys and values.

Hydra's plugins know the shells and write the functions to install; what they then ask for is answered here, from the
configuration's types alone: nothing is composed, and a verb is no error.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from deepinfer.config.argv import CFGS, FLAGS, INFOS, VERBS, WORDS, WORDS_OF_VERB
from deepinfer.config.coerce import union_members
from deepinfer.config.errors import Refused
from deepinfer.config.keys import ANY, leaf_keys, places
from deepinfer.config.misnamed import options_of
from deepinfer.config.paths import user_path
from deepinfer.config.specs import Spec

GROUPS = tuple(group for group in Spec.__struct_fields__ if group != "task")  # the verb is the task
COMMAND = "deepinfer"


def candidates(typed: str) -> list[str]:
    """Everything that the last word of a line may become, sorted. `typed` is the line up to the cursor, with the command."""
    words = typed.split(" ")
    before, word = [text for text in words[:-1] if text], words[-1]
    named = [index for index, text in enumerate(before) if text.rpartition("/")[2].startswith(COMMAND)]
    before = before[named[0] + 1 :] if named else []  # also behind python -m
    verb = next((text for text in before[:1] if text in VERBS), None)
    return sorted(text for text in _offered(before, verb, word) if text.startswith(word) and text != word)


def _offered(before: Sequence[str], verb: str | None, word: str) -> Iterator[str]:
    flag = before[-1] if before else ""
    if flag in ("--cfg", "-c", "--info", "-i"):
        yield from CFGS if flag in ("--cfg", "-c") else INFOS
    elif word.startswith("-"):
        yield from FLAGS
    elif "=" in word:
        yield from _values(word, verb, _folder(before))
    else:
        if not before:
            yield from VERBS
        yield from (f"{name}=" for name in (WORDS_OF_VERB.get(verb, ()) if verb else WORDS))
        yield from _names(word)


def _names(word: str) -> Iterator[str]:
    """Groups, and behind a dot their keys."""
    if "@" in word:
        yield from (f"{place}=" for place in places())
    elif "." in word:
        yield from (f"{key}=" for key in leaf_keys() if ANY not in key)
    else:
        yield from (f"{group}{sign}" for group in GROUPS for sign in "=.")
        yield from (f"{group}@" for group in dict.fromkeys(place.partition("@")[0] for place in places()))


def _values(word: str, verb: str | None, folder: Path | None) -> Iterator[str]:
    """What may stand behind the sign; of several values with commas, the last one is completed."""
    key, _, value = word.partition("=")
    done, comma, _ = value.rpartition(",")
    name = key.lstrip("+")
    if name in WORDS:
        taken = verb is None or name in WORDS_OF_VERB.get(verb, ())
        values = (tuple(_explained()) if name == "explain" else WORDS[name]) if taken else ()
    elif name.partition("@")[0] in Spec.__struct_fields__:
        group = name.partition("@")[0]
        own = sorted(path.stem for path in (folder / group).glob("*.yaml")) if folder else []
        values = (*options_of(group), *own)
    else:
        values = tuple(_words_of(leaf_keys().get(name)))
    yield from (f"{key}={done}{comma}{value}" for value in values)


def _explained() -> Iterator[str]:
    """Groups and keys: what `explain=` takes in any plan."""
    yield from GROUPS
    yield from (key for key in leaf_keys() if ANY not in key)


def _words_of(kind: Any) -> Iterator[str]:
    """The words that a key may be set to, where its type names any."""
    for member in union_members(kind):
        if get_origin(member) is Literal:
            yield from (str(word) for word in get_args(member))
        elif member is bool:
            yield from ("true", "false")
        elif member is type(None) and kind is not None:
            yield "null"


def _folder(before: Sequence[str]) -> Path | None:
    """The folder of the user's own options, where the line names one."""
    for flag, value in pairwise(before):
        if flag in ("--config-dir", "-cd"):
            try:
                return user_path(value, flag)
            except Refused:  # Tab says nothing
                return None
    return None
