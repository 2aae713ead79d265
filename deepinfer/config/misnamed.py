"""What a user means who types a key that is not here: one of another engine's, or an option written as a key.

Read only where something is refused already.
"""

from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from deepinfer.config.keys import places
from deepinfer.config.quoting import typed
from deepinfer.config.specs import Spec

_DEGREES = "the degrees are parallel.attention_dp, parallel.context and parallel.expert"
_TENSOR = f"there is no tensor parallelism, a rank keeps its matrices and heads whole; {_DEGREES}"
_PIPELINE = f"there is no pipeline parallelism, a rank keeps all layers; {_DEGREES}"
_CODEC = "the checkpoint's model version picks chat format, thinking and tool parser together"
_LATER = "this version has none of it"
NOT_HERE = {  # last name of a key → why there is no such key
    "tp": _TENSOR,
    "tp_size": _TENSOR,
    "tensor_parallel_size": _TENSOR,
    "pp": _PIPELINE,
    "pp_size": _PIPELINE,
    "pipeline_parallel_size": _PIPELINE,
    "template": _CODEC,
    "chat_template": _CODEC,
    "tool_parser": _CODEC,
    "tool_call_parser": _CODEC,
    "reasoning_parser": _CODEC,
    "router": f"a router spreads requests over ranks; {_LATER}",
    "eplb": f"EPLB moves experts while requests run; {_LATER}",
    "regex": "a request brings its own schema (response_format); the option of grammar says who compiles it",
}
OURS = {  # last name of a key elsewhere → the key it has here
    "ep": "parallel.expert",
    "ep_size": "parallel.expert",
    "dp": "parallel.attention_dp",
    "dp_size": "parallel.attention_dp",
    "cp": "parallel.context",
    "num_redundant_experts": "parallel.redundant_experts",
    "redundant": "parallel.redundant_experts",
    "num_speculative_tokens": "speculation.depth",
    "k": "speculation.depth",
    "max_new_tokens": "sampling.max_tokens",
    "context_length": "model.max_model_len",
    "max_seq_len": "model.max_model_len",
    "block_size": "cache.block_tokens",
    "num_gpu_blocks": "cache.num_blocks",
}


@cache
def options_of(group: str) -> tuple[str, ...]:
    """Names of our own option files of a group, sorted; empty for a word that is no group."""
    if group not in Spec.__struct_fields__:
        return ()
    entries = (files("deepinfer.conf") / group).iterdir()
    return tuple(sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml")))


def groups_with(option: str) -> list[str]:
    """Groups that have an option of this name, in the order of the configuration."""
    return [group for group in Spec.__struct_fields__ if option in options_of(group)]


def meant(key: str, value: str) -> tuple[str, str]:
    """For an unknown dotted `key` with its value as typed: why it is not there and what to type; each may be empty."""
    *path, name = key.split(".")
    if why := NOT_HERE.get(name):
        return why, ""
    if fix := next(_as_group(path, name, value), ""):
        group = fix.partition("=")[0].partition("@")[0]
        return f"{group} is a group, whose options are chosen by name", fix
    if name in OURS:
        return f"it is called {OURS[name]} here", typed(OURS[name], value)
    return "", ""


def _as_group(path: list[str], name: str, value: str) -> Iterator[str]:
    """Overrides that choose the option which a key seems to name: `speculation.dspark=…`, `engine.spec=dspark`."""
    if len(path) == 1 and name in options_of(path[0]):
        yield f"{path[0]}={name}"
    if len(path) == 2 and path[1] in options_of(path[0]):
        yield f"{path[0]}={path[1]} {typed(f'{path[0]}.{name}', value)}"
    if value in options_of(name):
        place = f"{name}@{'.'.join([*path, name])}"
        yield f"{place if place in places() else name}={value}"
    groups = groups_with(value)
    if len(groups) == 1 and groups[0] != "task":
        yield f"{groups[0]}={value}"
