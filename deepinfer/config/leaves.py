"""The leaf types of the configuration tree: what a number measures, its range, and how text reaches it.

A leaf's `extra` says how people may write it: `unit` names the unit table of `units.py`, `like` shows an example, `why` is
said of what lies beyond its range, and `verbatim` text is taken from the command line as it stands, never parsed by Hydra.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

from deepinfer.config.ranges import MOST_BYTES, MOST_COUNT

Auto = Literal["auto"]

Text = Annotated[str, Meta(extra={"verbatim": True})]

Count = Annotated[int, Meta(ge=0, le=MOST_COUNT, extra={"unit": "count"})]
Positive = Annotated[int, Meta(ge=1, le=MOST_COUNT, extra={"unit": "count"})]
Bytes = Annotated[int, Meta(ge=1, le=MOST_BYTES, extra={"unit": "bytes"})]
_TOO_DEEP = "drafts that deep are practically never accepted, and each takes a row of every step"
Depth = Annotated[int, Meta(ge=1, le=32, extra={"why": _TOO_DEEP})]  # tokens drafted
_NO_TEXT = "a text of no characters says nothing, and is found everywhere"
SomeText = Annotated[str, Meta(min_length=1, extra={"why": _NO_TEXT})]
BytesPerSecond = Annotated[float, Meta(ge=1, le=1e18, extra={"unit": "bytes/s"})]
FlopsPerSecond = Annotated[float, Meta(ge=1, le=1e24, extra={"unit": "flop/s"})]
Seconds = Annotated[float, Meta(ge=0, extra={"unit": "s"})]
Interval = Annotated[float, Meta(ge=0.01, extra={"unit": "s"})]

Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenId = Annotated[int, Meta(ge=0)]


class Component(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Data of one exchangeable part. Its tag is what YAML calls `kind`; `implementation` is read, never imported, here."""

    implementation: ClassVar[str] = ""  # "module:attribute"; empty where there is nothing to build

    @property
    def kind(self) -> str:
        return str(type(self).__struct_config__.tag)
