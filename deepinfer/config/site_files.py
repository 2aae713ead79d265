"""Files of the user's own that describe a site (cluster/NAME.yaml): what they forget, and what to write into them."""

import re
from pathlib import Path

from msgspec import structs

from deepinfer.config.convert import ABSENT, NO_KIND
from deepinfer.config.errors import Problem
from deepinfer.config.specs import Spec

BASE = "blank"  # the option of cluster that such a file builds on
_OTHER = re.compile(r"it belongs to launcher=(.+)")
_HEADER = re.compile(r"^\s*#\s*@package\s+_global_\b", re.MULTILINE)


def is_global(file: Path) -> bool:
    """Whether a file has the line by which it reaches all groups."""
    return _HEADER.search(file.read_text("utf-8")) is not None


def write_global(file: str) -> str:
    """What to do about a file without that line."""
    return f"write '# @package _global_' as the first line of {file}"


def repaired(problem: Problem) -> Problem:
    """A problem about a site's file, told by what is missing from the file; any other as it is.

    `problem.file` is known already.
    """
    file, names = problem.file, re.split(r"[.=\[]", problem.asked)
    if not file or not Path(file).is_file():
        return problem
    other = _OTHER.fullmatch(problem.why)
    if names[0] == "launcher" and other and Path(file).parent.name == "cluster":
        own = f"{Path(file).parents[1] / 'launcher' / 'NAME.yaml'}"
        why = f"it belongs to launcher={other[1]}, and this site is used with another one, too"
        fix = f"move it to {own}, below 'defaults: [{other[1].split(',')[0]}, _self_]', and write '- override /launcher: NAME'"
        return structs.replace(problem, why=why, fix=fix)
    if names[0] != "cluster":
        return problem
    if names[1] in Spec.__struct_fields__ and not is_global(Path(file)):
        found, why = f"{file} sets keys of {names[1]} inside cluster", "its names begin in its own group"
        return structs.replace(problem, found=found, why=why, fix=write_global(file))
    if problem.found in (NO_KIND, ABSENT):
        base = f"'- {BASE}' as the first entry of"
        fix = f"write {base} the defaults list of {file}"
        if not is_global(Path(file)):
            fix = f"{write_global(file)}, and {base} its defaults list"
        return structs.replace(problem, why=f"cluster/{BASE}.yaml has what a site's file leaves out", fix=fix)
    return problem
