"""The leaf types of the configuration tree: what a number measures, its range, and how text reaches it.

A leaf's `extra` says how people may write it: `unit` names the unit table of `units.py`, `like` shows an example, and
`verbatim` text is taken from the command line as it stands, never parsed by Hydra.
"""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

Auto = Literal["auto"]

Text = Annotated[str, Meta(extra={"verbatim": True})]

Count = Annotated[int, Meta(ge=0, extra={"unit": "count"})]
Positive = Annotated[int, Meta(ge=1, extra={"unit": "count"})]
Bytes = Annotated[int, Meta(ge=1, extra={"unit": "bytes"})]
BytesPerSecond = Annotated[float, Meta(ge=1, le=1e18, extra={"unit": "bytes/s"})]
FlopsPerSecond = Annotated[float, Meta(ge=1, le=1e24, extra={"unit": "flop/s"})]
Seconds = Annotated[float, Meta(ge=0, extra={"unit": "s"})]

Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
TokenId = Annotated[int, Meta(ge=0)]


class Component(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Data of one exchangeable part. Its tag is what YAML calls `kind`; `implementation` is read, never imported, here."""

    implementation: ClassVar[str] = ""  # "module:attribute"; empty where there is nothing to build

    @property
    def kind(self) -> str:
        return str(type(self).__struct_config__.tag)
