"""Numbers as people write them: "64k", "80GiB", "1.5GB", "250ms", "4.5PFLOP/s", "96%".

Decimal prefixes are powers of 1000 and binary ones (Ki, Mi, …) powers of 1024, for tokens as for bytes: 64k is 64,000
and 64Ki is 65,536. Results are exact: a size that is not a whole number of bytes is refused.
"""

import re
from fractions import Fraction

_DECIMAL = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_TIMES = {
    "": Fraction(1),
    "us": Fraction(1, 10**6),
    "ms": Fraction(1, 10**3),
    "s": Fraction(1),
    "min": Fraction(60),
    "h": Fraction(3600),
}


def _suffixes(*ends: str) -> dict[str, Fraction]:
    """Every prefix with every ending; a number without either counts ones."""
    prefixes = _DECIMAL | _BINARY
    return {"": Fraction(1)} | {prefix + end: Fraction(scale) for prefix, scale in prefixes.items() for end in ends}


UNITS: dict[str, dict[str, Fraction]] = {  # a prefix alone means the unit itself: 155T of flop/s are 155TFLOP/s
    "count": _suffixes(""),
    "bytes": _suffixes("", "B"),
    "bytes/s": _suffixes("", "B/s"),
    "flop/s": _suffixes("", "FLOP/s", "FLOPS", "OP/s", "OPS"),
    "s": _TIMES,
    "share": {"": Fraction(1), "%": Fraction(1, 100)},
}
EXAMPLES = {
    "count": "4096, 64k or 64Ki",
    "bytes": "1.5GB, 80GiB or plain bytes",
    "bytes/s": "3.35TB/s or plain bytes per second",
    "flop/s": "4.5PFLOP/s or plain operations per second",
    "s": "250ms, 1.5s, 2min or plain seconds",
    "share": "96% or 0.96",
}
MOST = 10**300  # any more is no float
_WRITTEN = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*([A-Za-z/%]*)\s*")


def parse_quantity(text: str, unit: str) -> int | float:
    """The number that `text` names, in `unit` (a key of UNITS): an int when it is whole, else a float.

    Raises ValueError that says what was found and what would do.
    """
    suffixes = UNITS[unit]
    written = _WRITTEN.fullmatch(text)
    if written is None:
        raise ValueError(f"{text!r} is not a number; write {EXAMPLES[unit]}")
    number, suffix = written.groups()
    scale = suffixes.get(suffix)
    if scale is None:
        raise ValueError(_unknown_suffix(text, suffix, unit))
    value = Fraction(number.replace("_", "")) * scale
    if abs(value) > MOST:
        raise ValueError(f"{text!r} is more than anything there is")
    return int(value) if value.denominator == 1 else float(value)


def _unknown_suffix(text: str, suffix: str, unit: str) -> str:
    folded = [known for known in UNITS[unit] if known.lower() == suffix.lower()]
    if folded:
        return f"the unit of {text!r} is spelled {' or '.join(folded)}"
    return f"{text!r} has no unit that fits; write {EXAMPLES[unit]}"
