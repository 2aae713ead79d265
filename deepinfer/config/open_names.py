"""Names in mappings that are open, and yet only some of them are ever read: a typo in one would do nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

from deepinfer.config.errors import Problem, listed, nearest
from deepinfer.config.quoting import typed

DTYPES = ("f4_e2m1", "f6_e2m3", "f6_e3m2", "f8_e4m3", "f8_e5m2", "bf16", "f16", "tf32", "f32", "f64", "i8", "u8")
TRAFFIC = ("weights", "cache", "tables", "streams")  # what a kernel moves
_OPEN = {  # last name of a mapping → the names in it; behind a slash where a part of the model stands before it
    "peak_flops_by_dtype": ("hardware", DTYPES),
    "flops": ("cost", DTYPES),
    "bandwidth": ("cost", TRAFFIC),
}


def unread_names(path: str, mapping: Mapping[Any, Any]) -> Iterator[Problem]:
    """A problem for each name in the `mapping` at a dotted path that nothing reads."""
    *around, last = path.split(".")
    group, known = _OPEN.get(last, ("", ()))
    if group not in around:
        return
    for name, value in mapping.items():
        part, slash, what = str(name).rpartition("/")
        if what not in known:
            close = nearest(what, known) or next((other for other in known if what and other.startswith(what)), None)
            plain = value.get("value", value) if isinstance(value, dict) else value  # of a sourced one the value
            fix = typed(f"{path}.{part}{slash}{close}", plain) if close else ""
            yield Problem(
                asked=f"{path}.{name}", found=f"nothing reads {what!r}", why=f"read are {listed(known)}", fix=fix
            )
