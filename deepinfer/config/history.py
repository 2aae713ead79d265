"""What happened to each value while files and overrides were laid over each other, by OmegaConf's own rules.

Mappings merge; everything else, lists included, is replaced as a whole.
"""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

Place = Callable[[tuple[str, ...]], tuple[str, int]]  # path of names within a file → file and line


class Origin(Struct, frozen=True, kw_only=True):
    """Somebody who gave a value: a line of a file, or an override. `value` is as written, `${…}` unresolved."""

    value: Any
    file: str = ""  # conf/… for ours, the absolute path of a user's own
    line: int = 0
    override: str = ""  # as typed

    def __str__(self) -> str:
        return f"command line: {self.override}" if self.override else f"{self.file}:{self.line}"


class History:
    """Dotted key → everybody who set it so far, oldest first."""

    def __init__(self) -> None:
        self._origins: dict[str, tuple[Origin, ...]] = {}
        self._keys_below: dict[str, dict[str, None]] = {}  # mapping → keys inside it, however deep; oldest first

    def origins(self) -> dict[str, tuple[Origin, ...]]:
        return dict(self._origins)

    def add(self, package: str, data: Any, place: Place) -> None:
        """Lay the contents of a file over what is there, under a dotted package ("" for the top)."""
        self._add(package, (), data, lambda names, value: _at(value, *place(names)))

    def add_override(self, key: str, value: Any, override: str) -> None:
        self._add(key, (), value, lambda _, value: Origin(value=value, override=override))

    def _add(
        self, key: str, names: tuple[str, ...], value: Any, origin: Callable[[tuple[str, ...], Any], Origin]
    ) -> None:
        if isinstance(value, dict) and (value or not key or self._keys_below.get(key)):
            before = self._take(key)  # a scalar, or an empty mapping, that becomes a mapping with keys
            for name, item in value.items():
                child = f"{key}.{name}" if key else str(name)
                if before and child not in self._origins:
                    self._put(child, before)
                self._add(child, (*names, str(name)), item, origin)
            return
        before = self._origins.get(key, ()) or self._collapsed(key)
        self._put(key, (*before, origin(names, value)))

    def _put(self, key: str, origins: tuple[Origin, ...]) -> None:
        self._origins[key] = origins
        for mapping in _around(key):
            self._keys_below.setdefault(mapping, {})[key] = None

    def _take(self, key: str) -> tuple[Origin, ...]:
        origins = self._origins.pop(key, ())
        for mapping in _around(key) if origins else ():
            del self._keys_below[mapping][key]
        return origins

    def _collapsed(self, key: str) -> tuple[Origin, ...]:
        """A mapping that something else replaces: one origin, at the first of its keys."""
        last = {name: self._take(name)[-1] for name in list(self._keys_below.get(key, ()))}
        if not last:
            return ()
        first = next(iter(last.values()))
        value = {name.removeprefix(f"{key}."): origin.value for name, origin in last.items()}
        return (Origin(value=value, file=first.file, line=first.line, override=first.override),)


def _around(key: str) -> Iterator[str]:
    """The mappings that a dotted key lies in, the outermost first."""
    return (key[:at] for at, character in enumerate(key) if character == ".")


def _at(value: Any, file: str, line: int) -> Origin:
    return Origin(value=value, file=file, line=line)
