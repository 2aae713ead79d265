"""Schemas of operators, read from a compiled torch library: their text lies in it as it was registered."""

import re
from collections.abc import Iterable
from pathlib import Path

Argument = dict[str, str]


def registered(library: Path, names: Iterable[str]) -> dict[str, list[Argument]]:
    """Function → its arguments, of each named operator without an overload name. Raises ValueError for one that is absent."""
    content = library.read_bytes()
    found = {}
    for name in names:
        match = re.search(rb"(?<![\\w.])" + name.encode() + rb"\(([ -~]*?)\) -> [ -~]", content)
        if match is None:
            raise ValueError(f"{library.name} registers no operator {name}")
        found[name] = arguments(match[1].decode())
    return found


def arguments(schema: str) -> list[Argument]:
    """Of "Tensor x, *, int[]? sizes=None, str mode='a'": what stands behind the star can only be named."""
    parts = [part.strip() for part in re.split(r",(?![^\[(]*[\])])", schema) if part.strip()]
    star = parts.index("*") if "*" in parts else len(parts)
    return [_argument(part) for part in parts[:star]] + [
        {**_argument(part), "keyword": "only"} for part in parts[star + 1 :]
    ]


def constants(source: Path) -> dict[str, int]:
    """Numbers that stand for dtypes which torch lacks, from the table of their names: 293: "torch_npu.float8_e8m0fnu"."""
    return {name: int(number) for number, name in re.findall(r"(\d+): \"torch_npu\.(\w+)\"", source.read_text())}


def _argument(text: str) -> Argument:
    match = re.fullmatch(r"(\S+) (\w+)(?:=(.*))?", text)
    assert match, text
    found = {"name": match[2], "annotation": match[1]}
    if match[3] is not None:
        found["default"] = {"false": "False", "true": "True"}.get(match[3], match[3])
    return found
