"""The only other door: components that an installed package declares."""

from importlib.metadata import EntryPoint, EntryPoints
from types import ModuleType
from typing import Any

import msgspec
import pytest

from deepinfer.config import registry
from deepinfer.config.convert import convert
from deepinfer.config.errors import Refused
from deepinfer.config.leaves import Component, Positive
from deepinfer.config.specs import Cache, Speculation


class Oracle(Speculation, frozen=True, kw_only=True, tag="oracle"):
    implementation = "somebody.drafts:Oracle"
    depth: Positive
    book: str


class OracleCache(Cache, frozen=True, kw_only=True, tag="oracle"):
    pass


class Renamed(Speculation, frozen=True, kw_only=True, tag="other"):
    pass


class Stranger(Component, frozen=True, kw_only=True, tag="stranger"):
    pass


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install a package, as far as anyone can tell, that declares components {tag: (attribute, …)}."""
    module = ModuleType("somebody_elses_package")
    for struct in (Oracle, OracleCache, Renamed, Stranger):
        setattr(module, struct.__name__, struct)
    module.number = 5  # type: ignore[attr-defined]
    monkeypatch.setitem(__import__("sys").modules, module.__name__, module)

    def install(**tags: tuple[str, ...]) -> None:
        entries = [
            EntryPoint(tag, f"{module.__name__}:{name}", registry.ENTRY_POINTS)
            for tag, names in tags.items()
            for name in names
        ]
        monkeypatch.setattr(registry, "entry_points", lambda group: EntryPoints(entries).select(group=group))

    return install


def refuse(data: dict[str, Any]) -> str:
    with pytest.raises(Refused) as refused:
        convert(data)
    (problem,) = refused.value.problems
    return str(problem)


def test_declared_component_is_checked_like_ours(data: dict[str, Any], declare: Any) -> None:
    declare(oracle=("Oracle",))
    data["speculation"] = {"kind": "oracle", "depth": "4", "book": "x"}
    spec = convert(data)
    assert spec.speculation == Oracle(depth=4, book="x")
    assert spec.speculation.implementation == "somebody.drafts:Oracle"
    assert convert(msgspec.json.decode(msgspec.json.encode(spec))) == spec
    data["speculation"] = {"kind": "oracle", "depth": 4, "bok": "x", "book": "y"}
    assert "speculation.book=x" in refuse(data)


def test_one_tag_in_two_groups(data: dict[str, Any], declare: Any) -> None:
    declare(oracle=("Oracle", "OracleCache"))
    data["cache"]["kind"] = "oracle"
    data["speculation"] = {"kind": "oracle", "depth": 1, "book": "x"}
    spec = convert(data)
    assert (type(spec.cache), type(spec.speculation)) == (OracleCache, Oracle)


@pytest.mark.parametrize(
    ("tags", "kind", "says"),
    [
        ({"oracle": ("Oracle",)}, "oracel", "ngram or oracle"),
        ({"oracle": ("OracleCache",)}, "oracle", "no such kind of speculation"),
        ({"oracle": ("Oracle", "Oracle")}, "oracle", "both claim the kind 'oracle'"),
        ({"gone": ("NotThere",)}, "gone", "does not load"),
        ({"renamed": ("Renamed",)}, "renamed", "has tag='other'"),
        ({"stranger": ("Stranger",)}, "stranger", "not derived from a group's base"),
        ({"number": ("number",)}, "number", "not derived from a group's base"),
    ],
)
def test_broken_declarations(data: dict[str, Any], declare: Any, tags: Any, kind: str, says: str) -> None:
    declare(**tags)
    data["speculation"] = {"kind": kind}
    assert says in refuse(data)


def test_ours_cannot_be_replaced(data: dict[str, Any], declare: Any) -> None:
    declare(none=("Oracle",), dspark=("Oracle",))
    assert convert(data).speculation.kind == "none"


def test_nobody_is_asked_for_our_own(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking through installed packages costs time, and an unchosen one need not even load."""

    def never(group: str) -> EntryPoints:
        raise AssertionError(f"{group} was looked up")

    monkeypatch.setattr(registry, "entry_points", never)
    convert(data)
