"""Plain data becomes a `Spec`: group by group, leaf by leaf, collecting everything that is wrong."""

import json
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import msgspec

from deepinfer.config.chips import Fact
from deepinfer.config.coerce import coerce, say
from deepinfer.config.errors import Problem, Refused, listed, nearest
from deepinfer.config.keys import is_group, is_struct, leaf_keys
from deepinfer.config.leaves import Component
from deepinfer.config.registry import BUILT_IN, find_struct, known_tags
from deepinfer.config.specs import Spec

MANDATORY = "???"  # how YAML says "must be given"


def convert(data: Mapping[str, Any]) -> Spec:
    """The Spec that `data` (one mapping per group) describes.

    Raises Refused with every unknown, missing or misfit key at once.
    """
    problems: list[Problem] = []
    spec = _fields(Spec, data, "", problems)
    if problems:
        raise Refused(problems)
    return spec


def _value(kind: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    if value == MANDATORY and isinstance(value, str):
        problems.append(Problem(asked=path, found="nothing given: it is mandatory", fix=f"{path}=…"))
    elif is_group(kind):
        return _component(kind, value, path, problems)
    elif is_struct(kind):
        return _plain_struct(kind, value, path, problems)
    elif get_origin(kind) is dict:
        return _mapping(kind, value, path, problems)
    elif get_origin(kind) is tuple:
        return _sequence(kind, value, path, problems)
    else:
        return _leaf(kind, value, path, problems)
    return None


def _component(base: type[Component], value: Any, path: str, problems: list[Problem]) -> Any:
    """One group: its `kind` names the Struct, the Struct names the keys."""
    if not isinstance(value, dict):
        problems.append(_not_an_option(value, path))
        return None
    tag = value.get("kind")
    if not isinstance(tag, str):
        found = "no kind is given" if tag is None else f"found {say(tag)}, wanted the name of a kind"
        problems.append(Problem(asked=f"{path}.kind", found=found, why=f"known are {listed(known_tags(base))}"))
        return None
    try:
        struct = find_struct(base, tag)
    except ValueError as error:
        problems.append(Problem(asked=f"{path}.kind={tag}", found=str(error)))
        return None
    if struct is None:
        known = known_tags(base)
        close = nearest(tag, known)
        problems.append(
            Problem(
                asked=f"{path}.kind={tag}",
                found=f"no such kind of {path.rsplit('.', 1)[-1]}",
                why=f"known are {listed(known)}",
                fix=f"{path}={close}" if close else "",
            )
        )
        return None
    rest = {key: item for key, item in value.items() if key != "kind"}
    return _fields(struct, rest, path, problems)


def _fields(struct: Any, data: Mapping[str, Any], path: str, problems: list[Problem]) -> Any:
    """A Struct from a mapping; None (and problems) when a key is unknown, missing or misfit."""
    before = len(problems)
    fields = {field.encode_name: field for field in msgspec.structs.fields(struct)}
    values = {}
    for key, value in data.items():
        if key not in fields:
            problems.append(_unknown(struct, list(fields), key, value, path))
        else:
            values[key] = _value(fields[key].type, value, _join(path, key), problems)
    for name, field in fields.items():
        if name not in data and field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
            problems.append(Problem(asked=_join(path, name), found="missing from the composed configuration"))
    return None if len(problems) > before else struct(**values)


def _plain_struct(kind: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    if isinstance(value, dict):
        return _fields(kind, value, path, problems)
    if get_origin(kind) is Fact:  # a bare value in place of a sourced one
        return _fields(kind, {"value": value, "source": "as given", "date": ""}, path, problems)
    problems.append(Problem(asked=f"{path}={show(value)}", found=f"found {say(value)}, wanted a mapping of keys"))
    return None


def _mapping(kind: Any, value: Any, path: str, problems: list[Problem]) -> dict[Any, Any]:
    key_kind, value_kind = get_args(kind)
    if not isinstance(value, dict):
        why = "write {name: value}"
        problems.append(Problem(asked=f"{path}={show(value)}", found=f"found {say(value)}, wanted a mapping", why=why))
        return {}
    result = {}
    for key, item in value.items():
        key = int(key) if isinstance(key, str) and key.isdecimal() and key_kind is not str else key
        here = _join(path, str(key))
        result[_leaf(key_kind, key, here, problems)] = _value(value_kind, item, here, problems)
    return result


def _sequence(kind: Any, value: Any, path: str, problems: list[Problem]) -> tuple[Any, ...]:
    (item_kind, _) = get_args(kind)
    if not isinstance(value, list):
        fix = f"{path}=[{show(value)}]" if isinstance(value, str | int | float) else ""
        problems.append(Problem(asked=f"{path}={show(value)}", found=f"found {say(value)}, wanted a list", fix=fix))
        return ()
    return tuple(_value(item_kind, item, f"{path}[{index}]", problems) for index, item in enumerate(value))


def _leaf(kind: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    try:
        return coerce(value, kind)
    except ValueError as error:
        problems.append(Problem(asked=f"{path}={show(value)}", found=str(error)))
    return None


def _unknown(struct: Any, known: list[str], key: str, value: Any, path: str) -> Problem:
    """An unknown key: a near miss, a key of another kind of the same group, or a key that lives elsewhere."""
    asked = f"{_join(path, key)}={show(value)}"
    close = nearest(key, known)
    fix = f"{_join(path, close)}={show(value)}" if close and not isinstance(value, dict) else ""
    elsewhere = [full for full in leaf_keys() if full.rsplit(".", 1)[-1] == key and key != "kind"]
    others = _kinds_with(struct, key)
    if others and not fix:
        why, fix = f"it belongs to {path}={listed(others)}", f"{path}={others[0]} {asked}"
    elif elsewhere and not fix:
        why, fix = "the key lives in a group", f"{elsewhere[0]}={show(value)}"
    else:
        why = f"it has {listed(known)}" if known else "it has no keys"
    tag = _tag(struct)
    owner = f"{path} (kind {tag})" if tag else path or "the configuration"
    return Problem(asked=asked, found=f"{owner} has no key {key!r}", why=why, fix=fix)


def _tag(struct: Any) -> str | None:
    return str(struct.__struct_config__.tag) if isinstance(struct, type) and issubclass(struct, Component) else None


def _kinds_with(struct: Any, key: str) -> list[str]:
    """Tags of the same group whose Struct has this key."""
    for structs in BUILT_IN.values():
        if struct in structs:
            return [str(other.__struct_config__.tag) for other in structs if key in other.__struct_fields__]
    return []


def _not_an_option(value: Any, path: str) -> Problem:
    """A bare value where a group's mapping belongs, as in deploy.prefill.parallel=ep2 for parallel@deploy.…"""
    group = path.rsplit(".", 1)[-1]
    choose = path if path == group else f"{group}@{path}"
    why = f"{path} is a group" if isinstance(value, str) else "a group is a mapping of keys"
    return Problem(
        asked=f"{path}={show(value)}",
        found=f"found {say(value)} where the keys of a {group} belong",
        why=why,
        fix=f"{choose}={value}" if isinstance(value, str) else "",
    )


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def show(value: Any) -> str:
    """A value as it would be typed in an override."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
