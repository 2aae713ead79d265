"""Plain data becomes a `Spec`: group by group, leaf by leaf, collecting everything that is wrong."""

import json
from collections.abc import Mapping
from typing import Any, get_args, get_origin

import msgspec

from deepinfer.config.chips import Fact
from deepinfer.config.coerce import coerce, reason, say, union_members
from deepinfer.config.errors import Problem, Refused, listed, nearest
from deepinfer.config.keys import is_group, is_key, is_struct, leaf_keys, struct_of
from deepinfer.config.kinds import options_of_kind
from deepinfer.config.leaves import Component
from deepinfer.config.misnamed import fitting, fitting_list, meant, options_of, typed_legal
from deepinfer.config.open_names import unread_names
from deepinfer.config.quoting import listed_value, typed
from deepinfer.config.registry import BUILT_IN, find_struct, known_tags
from deepinfer.config.specs import Spec

MANY = 8  # unknown keys below one that are told one by one
MANDATORY = "???"  # how YAML says "must be given"
NO_KIND, ABSENT = "no kind is given", "missing from the composed configuration"


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
    elif (struct := struct_of(kind)) is not None:
        return _struct_or_word(struct, kind, value, path, problems)
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
        found = NO_KIND if tag is None else f"found {say(tag)}, wanted the name of a kind"
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
        options = options_of_kind(path.rpartition(".")[2], close) if close else ()
        problems.append(
            Problem(
                asked=f"{path}.kind={tag}",
                found=f"no such kind of {path.rsplit('.', 1)[-1]}",
                why=f"known are {listed(known)}",
                fix=f"{_chosen(path)}={options[0]}" if options else "",
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
            branches = _branches(value)
            branches = branches if len(branches) <= MANY else [value]
            problems += [_unknown(struct, list(fields), str(key), branch, path) for branch in branches]
        else:
            values[key] = _value(fields[key].type, value, _join(path, key), problems)
    for name, field in fields.items():
        if name not in data and field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
            problems.append(Problem(asked=_join(path, name), found=ABSENT))
    return None if len(problems) > before else struct(**values)


def _plain_struct(kind: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    if isinstance(value, dict):
        return _fields(kind, value, path, problems)
    if get_origin(kind) is Fact:  # a bare value in place of a sourced one
        return _fields(kind, {"value": value, "source": "as given", "date": ""}, path, problems)
    problems.append(Problem(asked=f"{path}={show(value)}", found=f"found {say(value)}, wanted a mapping of keys"))
    return None


def _struct_or_word(struct: Any, kind: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    """A union of one Struct and words: a mapping is the Struct, text is one of the words."""
    if isinstance(value, dict):
        return _fields(struct, value, path, problems)
    words = [word for member in union_members(kind) if member is not struct for word in get_args(member)]
    if isinstance(value, str) and value in words:
        return value
    wanted = f"{listed(words)}, or a mapping of {', '.join(struct.__struct_fields__)}"
    problems.append(Problem(asked=f"{path}={show(value)}", found=f"found {say(value)}, wanted {wanted}"))
    return None


def _mapping(kind: Any, value: Any, path: str, problems: list[Problem]) -> dict[Any, Any]:
    key_kind, value_kind = get_args(kind)
    if not isinstance(value, dict):
        why = "write {name: value}"
        problems.append(Problem(asked=f"{path}={show(value)}", found=f"found {say(value)}, wanted a mapping", why=why))
        return {}
    problems += unread_names(path, value)
    result = {}
    for key, item in value.items():
        key = int(key) if isinstance(key, str) and key.isdecimal() and key_kind is not str else key
        here = _join(path, str(key))
        result[_leaf(key_kind, key, here, problems)] = _value(value_kind, item, here, problems)
    return result


def _sequence(kind: Any, value: Any, path: str, problems: list[Problem]) -> tuple[Any, ...]:
    (item_kind, _) = get_args(kind)
    if not isinstance(value, list):
        fix = listed_value(path, value) if isinstance(value, str | int | float) else ""
        problems.append(Problem(asked=f"{path}={show(value)}", found=f"found {say(value)}, wanted a list", fix=fix))
        return ()
    wrong: list[Problem] = []
    items = tuple(_value(item_kind, item, f"{path}[{index}]", wrong) for index, item in enumerate(value))
    whole = fitting_list(item_kind, value, path) if wrong else ""
    problems += [msgspec.structs.replace(problem, fix=problem.fix or whole) for problem in wrong]
    return items


def _leaf(kind: Any, value: Any, path: str, problems: list[Problem]) -> Any:
    try:
        return coerce(value, kind)
    except ValueError as error:
        problems.append(
            Problem(
                asked=f"{path}={show(value)}", found=str(error), why=reason(value, kind), fix=fitting(kind, value, path)
            )
        )
    return None


def _unknown(struct: Any, known: list[str], key: str, value: Any, path: str) -> Problem:
    """An unknown key: one that is never here, a near miss, a key of another kind of the group, or of another group."""
    whole, leaf = _chain(key, value)
    full, text = _join(path, whole), show(leaf)
    asked, name = f"{full}={text}", whole.rpartition(".")[2]
    close, others = nearest(key, known), _kinds_with(struct, key)
    near = _join(path, f"{close}{whole[len(key) :]}") if close else ""
    elsewhere = [home for home in leaf_keys() if home.rsplit(".", 1)[-1] == name and name != "kind"]
    why, fix = meant(full, "" if isinstance(leaf, dict) else text)
    if not why or fix:  # there is such a key somewhere
        if near and not others and not isinstance(leaf, dict) and (whole == key or is_key(near)):
            why, fix = "", typed_legal(near, leaf)
        elif others:
            options = [option for kind in others for option in options_of_kind(path.rpartition(".")[2], kind)]
            why = f"it belongs to {path}={listed(options or others)}"
            key_too = "" if isinstance(leaf, dict) else f" {_choosing(full, text) or typed_legal(full, leaf)}"
            fix = f"{_chosen(path)}={options[0]}{key_too}" if options else ""
            fix = f"deepinfer {options[0]}{key_too} …" if path == "task" else fix  # the verb chooses it
        elif elsewhere and not why:
            why, fix = "the key lives in a group", "" if isinstance(leaf, dict) else typed_legal(elsewhere[0], leaf)
    tag = _tag(struct)
    owner = f"{path} (kind {tag})" if tag else path or "the configuration"
    why = why or (f"it has {listed(known)}" if known else "it has no keys")
    return Problem(asked=asked, found=f"{owner} has no key {key!r}", why=why, fix=fix)


def _branches(value: Any) -> list[Any]:
    """A mapping as one chain of single keys for each of its leaves."""
    if not isinstance(value, dict) or not value:
        return [value]
    return [{name: branch} for name, item in value.items() for branch in _branches(item)]


def _chain(key: str, value: Any) -> tuple[str, Any]:
    """Mappings of one key each as one dotted key: what `a.b.c=1` on a command line has become."""
    while isinstance(value, dict) and len(value) == 1:
        ((name, value),) = value.items()
        key = f"{key}.{name}"
    return key, value


def _chosen(path: str) -> str:
    """How an option of the group at a path is chosen: speculation, or parallel@deploy.prefill.parallel."""
    return path if "." not in path else f"{path.rpartition('.')[2]}@{path}"


def _choosing(path: str, option: str) -> str:
    """The override that chooses an option for a group inside another one; empty where `path` is no such place."""
    group = path.rpartition(".")[2]
    return f"{group}@{path}={option}" if option in options_of(group) and path != group else ""


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
        fix=typed(choose, value) if isinstance(value, str) else "",
    )


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def show(value: Any) -> str:
    """A value as it would be typed in an override."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
