"""The plan that a rank was handed: read, and held against this version, its own digests and the weights that are here."""

import sys
from pathlib import Path
from typing import Any

import msgspec

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.facts import shipped_folder
from deepinfer.config.headers import read_checkpoint
from deepinfer.plan.digest import numerics_digest, rank_digest, seal
from deepinfer.plan.types import SEAL, Plan

AGAIN = "deepinfer launch … out=DIR"
MAX_BYTES = 256 * 2**20
EDITED = "a plan is not edited: its parts depend on each other"


def read_plan(file: str) -> Plan:
    """The plan in `file`. Raises Refused for what is no plan, another version's, or not as launch wrote it."""
    asked = f"plan={file}"
    try:
        written = _written(asked, _content(asked, file))
        plan = Plan.from_json(msgspec.json.encode(written))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        found = f"it holds no plan: {what}"
        raise Refused([_not_taken(asked, found, "launch writes plan.json")]) from error
    said = {"rank": (plan.rank_digest, rank_digest(plan)), "numerics": (plan.numerics_digest, numerics_digest(plan))}
    problems = [
        _not_taken(asked, f"{name} digest {digest}, its content {found}", EDITED)
        for name, (digest, found) in said.items()
        if digest != found
    ]
    if problems:
        raise Refused(problems)
    return plan


def _content(asked: str, file: str) -> bytes:
    path = Path(file).expanduser()
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Refused([Problem(asked=asked, found=f"no plan has {path.stat().st_size:,} bytes", fix=AGAIN)])
        return path.read_bytes()
    except OSError as error:
        raise Refused([Problem(asked=asked, found=f"it cannot be read: {error.strerror}", fix=AGAIN)]) from error


def _written(asked: str, content: bytes) -> dict[str, Any]:
    """The keys of a plan's file, of this version and with its seal unbroken: what they hold is as launch wrote it."""
    written = msgspec.json.decode(content)
    if not isinstance(written, dict) or not isinstance(version := written.get("deepinfer"), str):
        raise Refused([_not_taken(asked, "it holds no plan: no version of deepinfer stands in it", "")])
    here = sys.modules["deepinfer"].__version__
    if version != here:
        raise Refused(
            [_not_taken(asked, f"deepinfer {version} made it, and this is {here}", "all ranks run one version")]
        )
    if SEAL not in written:
        raise Refused([_not_taken(asked, "it has no seal", "ranks take the plan.json of launch, as it was written")])
    if written[SEAL] != seal(written):
        found = f"it was edited: its seal is {written[SEAL]}, its content gives {seal(written)}"
        raise Refused([_not_taken(asked, found, EDITED)])
    return written


def _not_taken(asked: str, found: str, why: str) -> Problem:
    return Problem(asked=asked, found=found, why=why, fix=AGAIN, code=ExitCode.PLAN)


def weight_problems(plan: Plan) -> list[Problem]:
    """Whether the checkpoint on this node is the planned one. What the hub has is checked when it is fetched."""
    model = plan.model
    if model.source not in ("folder", "package"):
        return []
    folder = Path(model.location) if model.source == "folder" else shipped_folder(model.name)
    found = read_checkpoint(folder)
    if found.digest == model.weights_digest and not found.problems:
        return []
    what = "; ".join(found.problems) or f"weights {found.digest or 'of none'}, planned {model.weights_digest}"
    why, fix = "every node needs the planned checkpoint at the planned path", AGAIN
    return [Problem(asked=str(folder), found=what, why=why, fix=fix, code=ExitCode.WEIGHTS)]
