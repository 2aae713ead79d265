"""`plan diff=FILE`: this plan against one that was written earlier by `plan format=json` or `launch`."""

import sys

import msgspec

from deepinfer.config.argv import Invocation
from deepinfer.config.errors import Problem, Refused
from deepinfer.config.json_file import parse_object, printable, shown
from deepinfer.config.paths import user_path
from deepinfer.config.provenance import Provenance, trace
from deepinfer.plan.changes import NOISE, SECTION, lines, notable
from deepinfer.plan.compare import SECTIONS, Change, compare
from deepinfer.plan.quantities import counted
from deepinfer.plan.types import Plan

STDIN = "-"
AGAIN = "deepinfer plan … format=json > plan.json"
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
        told, hidden = notable(self.changes)
        noise = f"; {hidden} by less than {NOISE:.2%}, not shown" if hidden else ""
        head = f"{'diff':<{SECTION}}{self.file} → this plan: {counted(len(told), 'thing')} changed{noise}"
        return "\n".join([head, *lines([_printable(change) for change in told], remarks=self.origins)])


def _printable(change: Change) -> Change:
    """A change as a terminal may show it: what a file holds never speaks to the terminal."""
    before, after = (printable(side) if isinstance(side, str) else side for side in (change.before, change.after))
    return msgspec.structs.replace(change, key=printable(change.key), before=before, after=after)


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
    here = sys.modules["deepinfer"].__version__
    try:
        data = parse_object(content)
        version = data.get("deepinfer")
        if "layout" not in data or not isinstance(version, str):
            raise ValueError("it holds JSON, but no plan")
        if version != here:
            found, why = (
                f"a plan of deepinfer {shown(version)}, and this is {here}",
                "only plans of one version compare",
            )
            raise Refused(
                [Problem(asked=f"diff={file}", found=found, why=why, fix=f"{AGAIN} (once more, with this one)")]
            )
        plan = Plan.from_json(content)
        if lacks := _lacks(plan):
            raise ValueError(f"{lacks} is empty, which no plan has")
    except Refused:
        raise
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        found = "the file is empty" if not content.strip() else printable(str(error).partition("\n")[0])
        why = "a plan is written by format=json, and not edited"
        raise Refused([Problem(asked=f"diff={file}", found=found, why=why, fix=AGAIN)]) from error
    return plan


def _lacks(plan: Plan) -> str:
    """A list that every plan has entries in, where this one has none."""
    costs = {
        "cost.prefill.steps": plan.cost.prefill,
        "cost.decode.point.steps": plan.cost.decode.point if plan.cost.decode else None,
    }
    without = (name for name, cost in costs.items() if cost is not None and not cost.steps)
    return next(without, "") if plan.layout.roles else "layout.roles"


def _content(file: str) -> bytes:
    if file == STDIN:
        if sys.stdin is None:
            raise Refused([Problem(asked="diff=-", found="standard input is closed", fix="diff=FILE")])
        return sys.stdin.buffer.read()
    path = user_path(file, "diff")
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
