"""`plan diff=FILE`: this plan against one that was written earlier by `plan format=json` or `launch`."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from deepinfer.config.argv import Invocation
from deepinfer.config.errors import Problem, Refused
from deepinfer.config.provenance import Provenance, trace
from deepinfer.plan.changes import SECTION, lines
from deepinfer.plan.compare import SECTIONS, Change, compare
from deepinfer.plan.types import Plan

STDIN = "-"
MAX_BYTES = 256 * 2**20  # of a plan file; a plan of 10,000 ranks has a few


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """From the plan in `file` to this one. `origins` says who chose what changed: path of a change → file or override."""

    file: str
    same: bool
    changes: tuple[Change, ...]
    origins: dict[str, str]

    def text(self) -> str:
        """The differences for people."""
        if self.same:
            return f"{'same':<{SECTION}}{self.file} is this plan"
        count = f"{len(self.changes)} thing{'s' * (len(self.changes) > 1)}"
        head = f"{'diff':<{SECTION}}{self.file} → this plan: {count} changed"
        return "\n".join([head, *lines(self.changes, remarks=self.origins)])


def difference(file: str, invocation: Invocation, plan: Plan) -> Difference:
    """How `plan` differs from the one in `file` ("-" is standard input). Raises Refused where that holds no plan."""
    name = "standard input" if file == STDIN else file
    changes = compare(_read(file), plan)
    provenance = trace(invocation.overrides, invocation.texts, invocation.config_dir) if changes else Provenance()
    origins = {}
    for change in changes:
        key = change.key if change.section == SECTIONS["choices"] else change.path
        if origin := provenance.last(key):
            origins[change.path] = str(origin)
    return Difference(file=name, same=not changes, changes=changes, origins=origins)


def _read(file: str) -> Plan:
    content = _content(file)
    try:
        return Plan.from_json(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused([_no_plan(file, content, str(error))]) from error


def _content(file: str) -> bytes:
    if file == STDIN:
        return sys.stdin.buffer.read()
    path = Path(file).expanduser()
    fix = f"deepinfer plan … format=json > {file}"
    try:
        if path.is_dir():
            inside = path / "plan.json"
            fix = f"diff={inside}" if inside.is_file() else ""
            raise Refused([Problem(asked=f"diff={file}", found="it is a folder, not a file", fix=fix)])
        if path.stat().st_size > MAX_BYTES:
            raise Refused([Problem(asked=f"diff={file}", found=f"no plan has {path.stat().st_size:,} bytes")])
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, Refused):
            raise
        found = f"the file cannot be read: {getattr(error, 'strerror', None) or error}"
        raise Refused([Problem(asked=f"diff={file}", found=found, fix=fix)]) from error


def _no_plan(file: str, content: bytes, error: str) -> Problem:
    """Why a file is no plan: another version's, no JSON at all, or something else."""
    asked, fix = f"diff={file}", "deepinfer plan … format=json > plan.json"
    try:
        data: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = "the file is empty" if not content.strip() else "the file is not JSON"
        return Problem(asked=asked, found=found, why="a plan is written by format=json", fix=fix)
    if not (isinstance(data, dict) and "deepinfer" in data and "layout" in data):
        return Problem(asked=asked, found="it holds JSON, but no plan", why="a plan is written by format=json", fix=fix)
    here = sys.modules["deepinfer"].__version__
    found = f"a plan of deepinfer {data['deepinfer']}, and this is {here}"
    why = f"the two describe a plan differently: {error.splitlines()[0]}"
    return Problem(asked=asked, found=found, why=why, fix=f"{fix} (once more, with this version)")
