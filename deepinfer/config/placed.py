"""Problems of values that no override set: each with the file and the line where the value stands."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import structs

from deepinfer.config.convert import ABSENT, NO_KIND
from deepinfer.config.errors import Problem
from deepinfer.config.site_files import repaired

MAIN = "conf/config.yaml"
if TYPE_CHECKING:
    from deepinfer.config.provenance import Provenance


def placed(
    problems: Sequence[Problem], overrides: Sequence[str], texts: Mapping[str, str], config_dir: str | None
) -> list[Problem]:
    """The problems of a composition, whose arguments follow; those about a value in a file name its place.

    Composes once more to find out, but only where overrides alone do not explain every problem.
    """
    keys = [text.lstrip("+").partition("=")[0] for text in overrides]
    typed = [*(key for key in keys if "." in key and "@" not in key), *texts]  # a choice of options sets no value
    found = [problem.file or problem.asked in overrides for problem in problems]
    if all(there or any(_touches(_key(p), key) for key in typed) for there, p in zip(found, problems, strict=True)):
        return list(problems)
    from deepinfer.config.provenance import trace  # which composes, and so imports what calls this

    provenance = trace(overrides, texts, config_dir)
    return [p if there else _placed(p, provenance) for there, p in zip(found, problems, strict=True)]


def _placed(problem: Problem, provenance: "Provenance") -> Problem:
    key = _key(problem)
    last = provenance.last(key)
    group = key.removesuffix(".kind") if key.endswith(".kind") else key.rpartition(".")[0]
    absent = problem.found in (NO_KIND, ABSENT)
    if last is None and (inside := provenance.below(key) or (provenance.below(group) if absent else {})):
        last = next(iter(inside.values()))[-1]
    if last is None or last.file in ("", MAIN):  # the main file only names the options that everybody starts from
        return problem
    if last.file in problem.why:  # it was said before
        return problem
    return repaired(structs.replace(problem, file=last.file, line=last.line))


def _key(problem: Problem) -> str:
    return re.split(r"[=\[ ]", problem.asked, maxsplit=1)[0]


def _touches(key: str, other: str) -> bool:
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")
