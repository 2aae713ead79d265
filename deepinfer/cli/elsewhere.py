"""Keys that can be explained only with another option of their group."""

from collections.abc import Sequence

import msgspec

from deepinfer.config.errors import Problem, listed
from deepinfer.config.keys import leaf_keys
from deepinfer.config.kinds import options_of_kind
from deepinfer.config.quoting import plan_line
from deepinfer.config.registry import BUILT_IN
from deepinfer.config.specs import Spec


def of_another_option(key: str, overrides: Sequence[str] = ()) -> Problem | None:
    """The refusal of a key, or its last name, that only other options of its group have; None where no option has it.
    `overrides` as typed."""
    home = next((home for home in leaf_keys() if key in (home, home.rpartition(".")[2])), "")
    group, _, name = home.partition(".")
    fields = {field.name: field.type for field in msgspec.structs.fields(Spec)}
    if "." in name or group not in fields:
        return None
    kinds = [struct.__struct_config__.tag for struct in BUILT_IN[fields[group]] if name in struct.__struct_fields__]
    options = [option for kind in kinds for option in options_of_kind(group, str(kind))]
    if not options:
        return None
    found, why = "no such key with the options that are chosen", f"it belongs to {group}={listed(options)}"
    fix = plan_line(overrides, f"{group}={options[0]}", f"explain={home}").removeprefix("deepinfer ")
    if group == "task":  # the verb chooses it, and only plan explains
        why, fix = (
            f"it is a key of deepinfer {listed(options)}, whose help tells of it",
            f"deepinfer {options[0]} --help",
        )
    return Problem(asked=f"explain={key}", found=found, why=why, fix=fix)
