"""The plan that a rank was handed: read, and held against this version, its own digests and the weights that are here."""

import sys
from pathlib import Path

import msgspec

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.facts import shipped_folder
from deepinfer.config.headers import read_checkpoint
from deepinfer.plan.digest import numerics_digest, rank_digest
from deepinfer.plan.types import Plan

AGAIN = "deepinfer launch … out=DIR"
MAX_BYTES = 256 * 2**20


class _Version(msgspec.Struct):
    """The one field that every version's plan has."""

    deepinfer: str


def read_plan(file: str) -> Plan:
    """The plan in `file`. Raises Refused for what is no plan, another version's, or not as it was written."""
    asked = f"plan={file}"
    path = Path(file).expanduser()
    try:
        if path.stat().st_size > MAX_BYTES:
            raise Refused([Problem(asked=asked, found=f"no plan has {path.stat().st_size:,} bytes", fix=AGAIN)])
        data = path.read_bytes()
    except OSError as error:
        raise Refused([Problem(asked=asked, found=f"it cannot be read: {error.strerror}", fix=AGAIN)]) from error
    try:
        version = msgspec.json.decode(data, type=_Version).deepinfer
        here = sys.modules["deepinfer"].__version__
        if version != here:
            found, why = f"deepinfer {version} made it, and this is {here}", "all ranks run one version"
            raise Refused([Problem(asked=asked, found=found, why=why, fix=AGAIN, code=ExitCode.PLAN)])
        plan = Plan.from_json(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        found = f"it holds no plan: {error}"
        raise Refused([Problem(asked=asked, found=found, fix=AGAIN, code=ExitCode.PLAN)]) from error
    if problems := _edited(asked, plan):
        raise Refused(problems)
    return plan


def _edited(asked: str, plan: Plan) -> list[Problem]:
    """What the plan says of itself and no longer holds."""
    said = {"rank": (plan.rank_digest, rank_digest(plan)), "numerics": (plan.numerics_digest, numerics_digest(plan))}
    why = "a plan is not edited: its parts depend on each other"
    return [
        Problem(
            asked=asked, found=f"{name} digest {written}, its content {found}", why=why, fix=AGAIN, code=ExitCode.PLAN
        )
        for name, (written, found) in said.items()
        if written != found
    ]


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
