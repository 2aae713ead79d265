"""Files of the user's own folder that YAML cannot even begin to read: which, and why."""

from pathlib import Path

import yaml
from yaml.reader import ReaderError

UNREADABLE = (RecursionError, UnicodeDecodeError, ReaderError)  # what reading such a file ends in
_CYCLE = "a defaults list leads back to the file that it stands in"
MAX_DEPTH = 32  # levels; our own files have four


def why_unreadable(error: Exception, folder: Path | None) -> str:
    """A clause for one of the UNREADABLE, naming the files in `folder` that cause it."""
    faults = [fault for file in sorted(folder.rglob("*.yaml")) if (fault := _fault(file))] if folder else []
    if faults:
        return "; ".join(faults)
    return _CYCLE if isinstance(error, RecursionError) else str(error).strip().splitlines()[0]


def _fault(file: Path) -> str:
    if not file.is_file():
        return ""
    content = file.read_bytes()
    try:
        return f"{file} is nested too deeply" if _depth(content.decode("utf-8")) > MAX_DEPTH else ""
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return f"{file}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8"
    except ReaderError as error:
        return f"{file}, character {error.position}: {error.reason}"
    except yaml.YAMLError:
        return ""  # Hydra says where, if it reads this file at all


def _depth(text: str) -> int:
    """Levels of nesting, counted without going down into them, and no further than is needed."""
    depth = deepest = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        deepest = max(deepest, depth)
        if deepest > MAX_DEPTH:
            break
    return deepest
