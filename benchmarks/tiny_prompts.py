"""Held-out prompts of the tiny model's task families, as token ids, for benchmarks that run it on what it can do."""

import functools

import numpy as np
from tokenizers import Tokenizer

from deepinfer.config.facts import shipped_folder
from examples.tiny_model.data.mixture import evaluation_family
from examples.tiny_model.packing import encode

SEED = 990_077  # not the seed that the drafter was calibrated with
FAMILIES = {
    "json": "json_request/think",
    "tool": "tool_call",
    "prose": "story_chat",
    "arithmetic": "arithmetic/think",
    "list": "list_sort/think",
    "recall": "recall_170/think",
    "chat": "smalltalk/think",
}
ALSO = {"long recall": "recall_600/think", "plain json": "json_request"}  # six hundred tokens each; without thinking


def prompts(family: str, count: int) -> list[np.ndarray]:
    """`count` prompts, int64; of "mixed" in turn of every family but those with long prompts."""
    if family == "mixed":
        names = [name for name in FAMILIES if name not in ("tool", "recall")]
        each = [prompts(name, -(-count // len(names))) for name in names]
        return [one for turn in zip(*each) for one in turn][:count]
    return _prompts((FAMILIES | ALSO)[family])[:count]


@functools.cache
def _prompts(name: str) -> list[np.ndarray]:
    tokenizer = Tokenizer.from_file(str(shipped_folder("v41_tiny") / "tokenizer.json"))
    documents = evaluation_family(name.partition("/")[0], 64, SEED)[name]
    return [np.asarray(item.ids[: item.prompt_tokens], np.int64) for item in encode(tokenizer, documents)]
