"""What a user means who types a key that is not here: one of another engine's, or an option written as a key.

Read only where something is refused already.
"""

import json
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, get_origin

from deepinfer.config.coerce import coerce, union_members
from deepinfer.config.keys import leaf_keys, places, text_keys
from deepinfer.config.misnamed_serving import (
    SERVER_INSTEAD,
    SERVER_NOT_HERE,
    SERVER_OURS,
    meant_by_server,
    model_of,
)
from deepinfer.config.nearest_legal import legal, nearest_legal
from deepinfer.config.quoting import listed_value, quoted, shell, typed
from deepinfer.config.specs import Spec

_DEGREES = "the degrees are parallel.attention_dp, parallel.context and parallel.expert"
_TENSOR = f"there is no tensor parallelism, a rank keeps its matrices and heads whole; {_DEGREES}"
_PIPELINE = f"there is no pipeline parallelism, a rank keeps all layers; {_DEGREES}"
_CODEC = "the checkpoint's model version picks chat format, thinking and tool parser together"
_LATER = "this version has none of it"
_CHAT = "it belongs to one conversation: a line of prompts=FILE has it, and LLM.chat; sampling.regex and its like hold for all"
NOT_HERE = {  # last name of a key → why there is no such key
    **dict.fromkeys(("response_format", "tools", "tool_choice", "structural_tag", "json_object"), _CHAT),
    "template": _CODEC,
    "chat_template": _CODEC,
    "tool_parser": _CODEC,
    "tool_call_parser": _CODEC,
    "reasoning_parser": _CODEC,
    "router": f"a router spreads requests over ranks; {_LATER}",
    "eplb": "EPLB is an option of the group that says who moves experts: balancer=eplb",
    "quantization": "weights stay as the checkpoint has them, FP8 and FP4; model.dtype is what the rest computes in",
    "kv_cache_dtype": "the cache holds what the release's numerics say; model.numerics picks among numerics as a whole",
    "enforce_eager": "nothing is captured or compiled as a graph",
    "trust_remote_code": "no code of a checkpoint is ever run",
    **SERVER_NOT_HERE,
    "enable_chunked_prefill": "prompts are always computed in pieces, of at most scheduler.max_prefill_tokens",
}
SPREAD = {  # degrees of a kind that is not here → why; experts over as many ranks hold the model instead
    **dict.fromkeys(("tp", "tp_size", "tensor_parallel_size", "tensor_parallel"), _TENSOR),
    **dict.fromkeys(("pp", "pp_size", "pipeline_parallel_size", "pipeline_parallel"), _PIPELINE),
}
_FILLED = "a plan gives all that a device may use to the cache (explain=usable); a smaller cache is given in bytes"
_PREFIXES = "who keeps prefixes is an option of cache"
_EXPERTS = "attention is data-parallel and experts are spread by the degrees of parallel, with no switch for it"
_DRAFTS = "the checkpoint brings its drafter; the option of speculation says how it is used"
INSTEAD = {  # last name of a key elsewhere → why it is not here, and what to type
    "gpu_memory_utilization": (_FILLED, "cache.memory_bytes=40GB"),
    "mem_fraction_static": (_FILLED, "cache.memory_bytes=40GB"),
    "enable_prefix_caching": (_PREFIXES, "cache=prefix"),
    "no_enable_prefix_caching": (_PREFIXES, "cache=paged"),
    "disable_radix_cache": (_PREFIXES, "cache=paged"),
    "enable_expert_parallel": (_EXPERTS, "parallel=ep8"),
    "enable_dp_attention": (_EXPERTS, "parallel=ep8"),
    "enable_eplb": ("who moves experts is an option of balancer", "balancer=eplb"),
    "speculative_config": (_DRAFTS, "speculation=dspark"),
    "speculative_algorithm": (_DRAFTS, "speculation=dspark"),
    "speculative_model": (_DRAFTS, "speculation=dspark"),
    "grammar": ("here each form has a key: sampling.json_schema, regex, ebnf and choice", "sampling.choice=[yes,no]"),
    **dict.fromkeys(("choice", "guided_choice"), ("it is called sampling.choice here", "sampling.choice=[yes,no]")),
    **dict.fromkeys(
        ("async_scheduling", "enable_overlap_schedule", "enable_zos"),
        ("steps may be scheduled ahead of their predecessor's results", "scheduler.async_depth=1"),
    ),
    **dict.fromkeys(
        ("structured_outputs_config", "guided_decoding_backend", "grammar_backend"),
        ("grammars are checked by a backend, and a request brings its own", "grammar=llguidance"),
    ),
    "disaggregation_mode": ("one plan has both sides", "deploy=disaggregated"),
    "kv_transfer_config": ("one plan has both sides", "deploy=disaggregated"),
    "cpu_offload_gb": ("of the weights only the n-gram tables can lie on the host", "parallel.engram=host"),
    "distributed_executor_backend": ("the number of ranks decides it", "executor=auto"),
    "attention_backend": ("each op has its own; the chip's list decides where nobody does", "kernels=auto"),
    **SERVER_INSTEAD,
    "config": ("a file of yours is an option: DIR/cluster/NAME.yaml", "--config-dir DIR cluster=NAME"),
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
    "num_gpu_blocks_override": "cache.num_blocks",
    "page_size": "cache.block_tokens",
    "kv_cache_memory_bytes": "cache.memory_bytes",
    "max_running_requests": "scheduler.max_num_seqs",
    "max_batch_size": "scheduler.max_num_seqs",
    "chunked_prefill_size": "scheduler.max_prefill_tokens",
    "data_parallel_size": "parallel.attention_dp",
    "expert_parallel_size": "parallel.expert",
    "ep_num_redundant_experts": "parallel.redundant_experts",
    "decode_context_parallel_size": "parallel.context",
    "context_parallel_size": "parallel.context",
    "speculative_num_steps": "speculation.depth",
    "speculative_num_draft_tokens": "speculation.depth",
    "model_path": "model.path",
    "random_seed": "sampling.seed",
    "json_schema": "sampling.json_schema",
    "guided_json": "sampling.json_schema",
    "regex": "sampling.regex",
    "guided_regex": "sampling.regex",
    "ebnf": "sampling.ebnf",
    "guided_grammar": "sampling.ebnf",
    **SERVER_OURS,
}
LIKE = {  # a chip, or a kind of chip, of which there is no sheet → the sheet that is nearest
    **dict.fromkeys(("gpu", "cuda", "nvidia", "npu"), "auto"),
    **dict.fromkeys(("mps", "metal", "apple", "x86", "arm"), "cpu"),
    **dict.fromkeys(("a100", "a800", "h800", "l40s", "l20", "rtx4090", "rtx5090"), "h100"),
    **dict.fromkeys(("h20", "mi300", "mi300x", "mi325x", "tpu", "gaudi3", "trainium2"), "h200"),
    **dict.fromkeys(("mi350x", "mi355x", "b300"), "b200"),
    **dict.fromkeys(("910", "910b", "910c", "ascend", "ascend910b", "ascend910c"), "ascend950"),
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
    if (server := meant_by_server(name, value)) != ("", ""):
        return server
    if why := NOT_HERE.get(name):
        return why, ""
    if why := SPREAD.get(name):
        spread = {"1": "single"}.get(value, f"ep{value}")
        return why, f"parallel={spread if spread in options_of('parallel') else 'ep8'}"
    if name in INSTEAD:
        return INSTEAD[name]
    if fix := next(_as_group(path, name, value), ""):
        group = fix.partition("=")[0].partition("@")[0]
        return f"{group} is a group, whose options are chosen by name", fix
    if name in OURS:
        return f"it is called {OURS[name]} here", typed_legal(OURS[name], value) if value else typed(OURS[name], value)
    return "", ""


def typed_legal(key: str, value: Any) -> str:
    """An override of `key` with this value, or with the nearest one that the key takes: what is offered must be legal."""
    kind = leaf_keys().get(key)
    if kind is None or key in text_keys() or get_origin(kind) in (dict, tuple):
        return typed(key, value)
    found = legal(value, kind)
    return f"{key}=…" if found is None else typed(key, found)


def fitting(kind: Any, value: Any, path: str) -> str:
    """The override that was probably meant by a value that does not fit, or one with the nearest value that does."""
    if fix := as_percent(path, value, kind):
        return fix
    if str in union_members(kind) and isinstance(value, bool | float):
        return shell(quoted(path, json.dumps(value)))  # as text
    if path in text_keys() and isinstance(value, dict):
        return shell(
            f"{path}={json.dumps(value, ensure_ascii=False, default=str)}"
        )  # JSON, which these keys take as it stands
    close = nearest_legal(value, kind) if path in leaf_keys() else None  # no item of a list or name of a mapping
    return "" if close is None else typed(path, close)


def fitting_list(kind: Any, values: list[Any], path: str) -> str:
    """The override with each item of a list that does not fit replaced by the nearest that does; empty where there is none."""
    if path not in leaf_keys() or not all(isinstance(value, str | int | float) for value in values):
        return ""
    found = [legal(value, kind) for value in values]
    return "" if None in found else listed_value(path, *dict.fromkeys(found))


def explainable(word: str) -> tuple[str, str]:
    """Why a word of another engine is not here, and the key or group that has to do with it; each may be empty."""
    name = word.rpartition(".")[2].lstrip("-").replace("-", "_")
    why, fix = meant(name, "")
    return (why, OURS.get(name) or fix.rpartition(" ")[2].partition("=")[0]) if why else ("", "")


def like(group: str, word: str) -> tuple[str, str]:
    """For a chip of which there is no sheet: how to bring one, and the nearest option. For a model as a hub names it: the
    option. Both empty for another group."""
    if group == "model":
        return "", model_of(word)
    if group.partition("@")[0] != "hardware":
        return "", ""
    return f"a sheet of your own is DIR/hardware/{word}.yaml with --config-dir DIR", LIKE.get(word.lower(), "auto")


def as_percent(path: str, value: Any, kind: Any) -> str:
    """The override that was meant by 60 where a share of at most 1 belongs; empty for anything else, and for numbers so
    small that they may be slips of another kind."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 10 <= value <= 100:
        return ""
    try:
        return typed(path, f"{value:g}%") if 0 <= coerce(f"{value:g}%", kind) <= 1 else ""
    except (ValueError, TypeError):
        return ""


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
    if len(groups) == 1 and groups[0] != "task" and not any(key.endswith(f".{name}") for key in leaf_keys()):
        yield f"{groups[0]}={value}"
