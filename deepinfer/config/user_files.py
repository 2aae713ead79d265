"""Files of the user's own folder: those that YAML cannot even begin to read, and those that speak to Hydra itself."""

from collections.abc import Sequence
from pathlib import Path

import yaml
from hydra.core.config_loader import ConfigLoader
from hydra.types import RunMode
from yaml.reader import ReaderError

from deepinfer.config.config_files import key_lines
from deepinfer.config.errors import Problem
from deepinfer.config.overrides import NO_HYDRA_SETTINGS, WHY_NO_HYDRA_SETTINGS
from deepinfer.config.own_nodes import is_deep

UNREADABLE = (RecursionError, UnicodeDecodeError, ReaderError)  # what reading such a file ends in
_CYCLE = "a defaults list leads back to the file that it stands in"


def why_unreadable(error: Exception, folder: Path | None) -> str:
    """A clause for one of the UNREADABLE, naming the files in `folder` that cause it."""
    faults = [fault for file in sorted(folder.rglob("*.yaml")) if (fault := _fault(file))] if folder else []
    if faults:
        return "; ".join(faults)
    return _CYCLE if isinstance(error, RecursionError) else str(error).strip().splitlines()[0]


def settings_of_hydra(loader: ConfigLoader, folder: Path, overrides: Sequence[str]) -> list[Problem]:
    """A problem for each file in `folder` that is taken and sets something of Hydra's: launcher, sweeper, folders."""
    taken = loader.compute_defaults_list("config", list(overrides), RunMode.RUN).defaults
    problems = []
    for path in dict.fromkeys(default.config_path for default in taken if default.config_path):
        file = folder / f"{path.removesuffix('.yaml')}.yaml"
        if not file.is_file():
            continue
        lines = file.read_text("utf-8").splitlines()
        number = key_lines("\n".join(lines)).get(("hydra",), 0)
        number = number or next((number for number, text in enumerate(lines, 1) if _speaks_to_hydra(text)), 0)
        if number:
            asked = lines[number - 1].strip("- ")
            why = f"{WHY_NO_HYDRA_SETTINGS}; sweeps are typed: -m key=a,b"
            problems.append(Problem(asked=asked, found=NO_HYDRA_SETTINGS, why=why, file=str(file), line=number))
    return problems


def _speaks_to_hydra(line: str) -> bool:
    """Whether a line of a file overrides one of Hydra's own groups."""
    return line.strip("- ").removeprefix("override ").lstrip("/").startswith("hydra/")


def _fault(file: Path) -> str:
    if not file.is_file():
        return ""
    content = file.read_bytes()
    try:
        return f"{file} is nested too deeply" if is_deep(content.decode("utf-8")) else ""
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return f"{file}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8"
    except ReaderError as error:
        return f"{file}, character {error.position}: {error.reason}"
    except yaml.YAMLError:
        return ""  # Hydra says where, if it reads this file at all
