"""The lines that benchmarks/ceilings.py wrote on a device, as facts."""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.paths import user_path

MEASURE = "python benchmarks/ceilings.py --record"
FIGURE = "ceilings"


class Named(Struct):
    """Any line of a benchmark."""

    figure: str = ""


class Line(Struct, frozen=True):
    """What counts of a line: the kind of measurement, and the share of the data sheet that it reached."""

    chip: str  # name of a file in conf/hardware
    what: str
    share: Annotated[float, Meta(gt=0)] | None = None
    bound: str = ""
    dtype: str = ""
    message_bytes: int = 0
    median_us: Annotated[float, Meta(ge=0)] = 0.0
    device: str = ""
    measured_at: str = ""


def read_ceilings(path: str | None) -> tuple[Line, ...]:
    """The ceilings among the JSON lines of a file. Raises Refused where there is no such file or it holds none."""
    if path is None:
        raise refused("cost.path", "nothing given", "the file that your measurement wrote", "cost.path=ceilings.jsonl")
    try:
        texts = user_path(path, "cost.path").read_bytes().splitlines()
    except OSError as error:
        raise refused(f"cost.path={path}", f"it cannot be read: {error.strerror}", "", MEASURE) from error
    found = [_line(text, f"{path}, line {number}") for number, text in enumerate(texts, 1) if text.strip()]
    lines = tuple(line for line in found if line is not None)
    if not lines:
        raise refused(f"cost.path={path}", "no line of it is a ceiling", f"{MEASURE} writes them", "")
    return lines


def _line(text: bytes, where: str) -> Line | None:
    """The ceiling of one line; None for another figure's."""
    try:
        is_ceiling = msgspec.json.decode(text, type=Named).figure == FIGURE
        return msgspec.json.decode(text, type=Line) if is_ceiling else None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise refused(f"cost.path={where}", f"it is no line of a benchmark: {error}", "", MEASURE) from error


def refused(asked: str, found: str, why: str, fix: str) -> Refused:
    """One problem of a plan's cost: exit code 3."""
    return Refused([Problem(asked=asked, found=found, why=why, fix=fix, code=ExitCode.PLAN)])
