"""What happened to each value while files and overrides were laid over each other, by OmegaConf's own rules.

Mappings merge; everything else, lists included, is replaced as a whole.
"""

from collections.abc import Callable
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
        if isinstance(value, dict) and (value or not key or self._below(key)):
            before = self._origins.pop(key, ())  # a scalar, or an empty mapping, that becomes a mapping with keys
            for name, item in value.items():
                child = f"{key}.{name}" if key else str(name)
                if before:
                    self._origins.setdefault(child, before)
                self._add(child, (*names, str(name)), item, origin)
            return
        before = self._origins.get(key, ()) or self._collapsed(key)
        self._origins[key] = (*before, origin(names, value))

    def _below(self, key: str) -> list[str]:
        return [other for other in self._origins if other.startswith(f"{key}.")]

    def _collapsed(self, key: str) -> tuple[Origin, ...]:
        """A mapping that something else replaces: one origin, at the first of its keys."""
        names = self._below(key)
        last = {name: self._origins.pop(name)[-1] for name in names}
        if not last:
            return ()
        first = next(iter(last.values()))
        value = {name.removeprefix(f"{key}."): origin.value for name, origin in last.items()}
        return (Origin(value=value, file=first.file, line=first.line, override=first.override),)


def _at(value: Any, file: str, line: int) -> Origin:
    return Origin(value=value, file=file, line=line)
