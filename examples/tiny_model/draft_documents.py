"""What the drafter learns from and is measured on: the target's own continuations of the data mixture's prompts.

Legend: N documents · B rows of a batch · P tokens of all documents, end to end · D hidden · F features.
"""

import multiprocessing
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from examples.tiny_model.data.mixture import FAMILIES, Document, evaluation_family, training_documents
from examples.tiny_model.draft_decode import decode
from examples.tiny_model.draft_target import Target
from examples.tiny_model.packing import PAD_ID, encode

TEMPERATURES = (0.0, 0.7, 1.0)  # one third of the documents each
DOCUMENTS_PER_TASK = 2048
MAX_TOKENS = 2048
SPARE_TOKENS = 24  # an answer may run so much longer than the reference, and half as long again
BATCH_ROWS = 12_288
RECALL_SHARE = 10
BATCH_TOKENS = 3_000_000  # bounds the buffers of a batch of long documents
FAMILY_NAMES = sorted([*FAMILIES, *(name + "/think" for name in FAMILIES)])


class Prompt(NamedTuple):
    ids: np.ndarray  # int64
    limit: int  # tokens, prompt and continuation
    family: int  # index into FAMILY_NAMES


class Pool(NamedTuple):
    """Continuations end to end. `starts_N`, `prompts_N`, `lengths_N` in tokens; states are the target's at each token."""

    ids_P: Tensor
    hidden_PD: Tensor
    features_PF: Tensor
    starts_N: Tensor
    prompts_N: Tensor
    lengths_N: Tensor
    ended_N: Tensor  # bool: the last token is the end of sentence
    temperatures_N: Tensor
    seeds_N: Tensor
    families_N: Tensor


def prompts_of(tokenizer: Tokenizer, documents: list[Document]) -> list[Prompt]:
    found = []
    for document, item in zip(documents, encode(tokenizer, documents), strict=True):
        name = document.family + ("/think" if document.is_thinking else "")
        answer = len(item.ids) - item.prompt_tokens
        limit = item.prompt_tokens + answer + answer // 2 + SPARE_TOKENS
        if limit <= MAX_TOKENS:
            found.append(Prompt(item.ids[: item.prompt_tokens], limit, FAMILY_NAMES.index(name)))
    return found


def _training_task(task: tuple[Path, int, bool, int]) -> list[Prompt]:
    tokenizer_path, seed, long_context, count = task
    documents = list(islice(training_documents(seed, long_context), count))
    return prompts_of(Tokenizer.from_file(str(tokenizer_path)), documents)


def _held_out_task(task: tuple[Path, int, str, int]) -> list[Prompt]:
    tokenizer_path, seed, family, count = task
    modes = evaluation_family(family, count, seed)
    return prompts_of(Tokenizer.from_file(str(tokenizer_path)), [d for documents in modes.values() for d in documents])


def training_prompts(tokenizer_path: Path, seed: int, count: int, long_count: int, processes: int) -> list[Prompt]:
    """Prompts of `count` documents of the short mixture and `long_count` of the long one."""
    tasks: list[tuple[Path, int, bool, int]] = []
    for long_context, wanted in ((False, count), (True, long_count)):
        for first in range(0, wanted, DOCUMENTS_PER_TASK):
            size = min(DOCUMENTS_PER_TASK, wanted - first)
            tasks.append((tokenizer_path, seed * 100_003 + 2 * len(tasks) + long_context, long_context, size))
    return _gather(_training_task, tasks, processes)


def held_out_prompts(tokenizer_path: Path, seed: int, count: int, processes: int) -> list[Prompt]:
    """Prompts with held-out values, `count` per family and mode, fewer of the slow long recalls. Facts, small talk and stories
    have no values to hold out: their prompts are new draws."""
    tasks = []
    for family in sorted(FAMILIES, key=lambda name: "recall" not in name):
        share = RECALL_SHARE if family.startswith("recall") else 1
        tasks.append((tokenizer_path, seed, family, count // share))
    return _gather(_held_out_task, tasks, processes)


def _gather(function, tasks: list, processes: int) -> list[Prompt]:  # type: ignore[no-untyped-def]
    if processes <= 1:
        parts = [function(task) for task in tasks]
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            parts = pool.map(function, tasks, chunksize=1)
    return [prompt for part in parts for prompt in part]


def batches(prompts: list[Prompt]) -> Iterator[list[int]]:
    """Indices of prompts that are decoded together: of like length, so that few steps are wasted; the longest first."""
    order = sorted(range(len(prompts)), key=lambda i: prompts[i].limit)
    while order:
        rows = 1
        while rows < min(len(order), BATCH_ROWS) and (rows + 1) * prompts[order[-1]].limit <= BATCH_TOKENS:
            rows += 1
        yield order[-rows:]
        del order[-rows:]


def continuations(target: Target, prompts: list[Prompt], seed: int) -> Pool:
    """Decode every prompt at one of TEMPERATURES, in turn."""
    device, parts = target.model.device, []
    for indices in batches(prompts):
        width = max(prompts[i].limit for i in indices)
        ids = np.full((len(indices), width), PAD_ID)
        for row, i in enumerate(indices):
            ids[row, : len(prompts[i].ids)] = prompts[i].ids

        def column(values: list, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        heads = column([len(prompts[i].ids) for i in indices])
        temperatures = column([TEMPERATURES[i % len(TEMPERATURES)] for i in indices], torch.float32)
        seeds = column([seed * 10_000_019 + i for i in indices])
        out = decode(target, torch.from_numpy(ids).to(device), heads, temperatures, seeds)
        limits = column([prompts[i].limit for i in indices])
        lengths = torch.minimum(out.lengths_B, limits)
        kept = torch.arange(width, device=device) < lengths.unsqueeze(1)
        families = column([prompts[i].family for i in indices])
        ended = out.ended_B & (out.lengths_B <= limits)
        states = (out.ids_BT[kept], out.hidden_BTD[kept], out.features_BTF[kept])
        parts.append((*states, lengths, heads, lengths, ended, temperatures, seeds, families))
    joined = [torch.cat(column) for column in zip(*parts, strict=True)]
    joined[3] = joined[3].cumsum(0) - joined[3]
    return Pool(*joined)
