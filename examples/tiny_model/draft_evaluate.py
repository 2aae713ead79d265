"""Greedy accepted lengths with the engine's own modules on the CPU, beside what draft_eval.json says.

    python -m examples.tiny_model.draft_evaluate --checkpoint deepinfer/assets/v41_tiny --count 4

The model answers held-out prompts greedily, token by token; then rounds follow each other over each answer, every block drafted
greedily and verified whole.

Legend: T tokens · F features · V vocabulary · W window · K head dim.
"""

import argparse
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.interfaces import StepInput
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.checkpoint.reader import open_checkpoint
from deepinfer.model.checkpoint.weights import load_weights
from deepinfer.model.dspark import BlockDrafts, DSparkModel
from deepinfer.model.v41 import V41Model
from deepinfer.ops.reference import reference
from examples.tiny_model.data.mixture import FAMILIES, evaluation_family
from examples.tiny_model.draft_calibrate import REPORT_FILE
from examples.tiny_model.packing import EOS_ID, encode

EVALUATION_SEED = 31_337
ANSWER_TOKENS = 200
FEW_FAMILIES = (
    "json_request",
    "json_schema",
    "tool_call",
    "story_chat",
    "list_sort",
    "dates",
    "definition",
    "smalltalk",
)


class Round(NamedTuple):
    accepted: int
    exists: int  # proposed positions that the answer has


class EngineDrafter:
    """Trunk and drafter of a checkpoint, float32, full numerics."""

    def __init__(self, checkpoint: Path) -> None:
        opened = open_checkpoint(checkpoint)
        weights = load_weights(opened)
        self.config, self.layout = opened.config, CacheLayout.of(opened.config)
        options: dict[str, Any] = {"numerics": "full", "dtype": "float32"}
        self.model = V41Model(
            self.config, weights, reference(), layout=self.layout, token_classes=opened.engram_classes, **options
        )
        self.drafter = DSparkModel(self.config, weights, reference(), **options)

    def step(self, cache: ModelCache, ids_T: np.ndarray, first: int) -> tuple[Tensor, int]:
        """Features of positions `first` … of a sequence, and the most likely token after the last."""
        positions = np.arange(first, len(ids_T))
        back = positions[:, None] - np.arange(max(1, self.config.engram_max_ngram_size))
        step = StepInput(
            token_ids=ids_T[first:],
            positions=positions,
            ngram_ids=np.where(back >= 0, ids_T[np.maximum(back, 0)], -1),
            row_starts=np.array([0, len(positions)]),
            state_slots=np.zeros(1, dtype=np.int64),
            block_tables=np.arange(cache.num_blocks)[None],
            sample_rows=np.array([len(positions) - 1]),
        )
        hidden_TD, features_TF = self.model.forward_with_features(step, cache)
        return features_TF, int(self.model.logits(hidden_TD[-1:]).argmax())

    def answer(self, prompt_T: np.ndarray, limit: int) -> tuple[np.ndarray, Tensor]:
        """The prompt with its greedy continuation of up to `limit` tokens, and the features of all of it but the last token."""
        blocks = -(-(len(prompt_T) + limit) // self.layout.block_tokens)
        cache = ModelCache(self.config, self.layout, num_blocks=blocks, num_slots=1)
        ids_T, features = prompt_T, []
        while len(ids_T) < len(prompt_T) + limit and ids_T[-1] != EOS_ID:
            first = sum(len(part) for part in features)
            part_TF, token = self.step(cache, ids_T, first)
            features.append(part_TF)
            ids_T = np.append(ids_T, token)
        return ids_T, torch.cat(features)

    @torch.inference_mode()
    def drafts(self, newest: int, position: int, keys: list[Tensor]) -> BlockDrafts:
        """Greedy drafts of one block; `keys` as DSparkModel.context_keys gives them, at least up to `position` - 1."""
        window = self.config.sliding_window
        mask_1W = (torch.arange(position - window, position) >= 0).unsqueeze(0)
        rings = []
        for layer, key_TK in zip(self.drafter.layers, keys, strict=True):
            ring_1WK = torch.zeros(1, window, key_TK.shape[1])
            recent = key_TK[max(0, position - window) : position]
            ring_1WK[0, window - len(recent) :] = layer.attention.quantise_window(recent)
            rings.append(ring_1WK)
        readers = [lambda at, ring=ring: ring[at] for ring in rings]
        newest_S = torch.tensor([newest])
        hidden_SQD = self.drafter.block(newest_S, torch.tensor([position]), readers, mask_1W)
        return self.drafter.draft(hidden_SQD, newest_S, lambda slot, logits_SV: logits_SV.argmax(-1))

    @torch.inference_mode()
    def rounds(self, prompt_T: np.ndarray, limit: int) -> list[Round]:
        """Rounds over the greedy answer; those that a limit reached too early cuts short are left out."""
        ids_T, features_TF = self.answer(prompt_T, limit)
        keys = self.drafter.context_keys(features_TF, torch.arange(len(features_TF)))
        found, anchor = [], len(prompt_T)
        while anchor < len(ids_T) - 1:
            proposed = self.drafts(int(ids_T[anchor]), anchor, keys).tokens_SQ[0].numpy()
            wanted = ids_T[anchor + 1 : anchor + 1 + len(proposed)]
            accepted = int((proposed[: len(wanted)] == wanted).cumprod().sum())
            if ids_T[-1] == EOS_ID or len(wanted) == len(proposed):
                found.append(Round(accepted, len(wanted)))
            anchor += accepted + 1
        return found


def evaluate(engine: EngineDrafter, tokenizer: Tokenizer, name: str, count: int) -> dict[str, dict[str, float]]:
    """By mode of family `name`: documents, rounds, tokens a round, accepted length of rounds with room for a whole block."""
    result = {}
    slots = engine.config.dspark_block_size
    for key, documents in evaluation_family(name, count, EVALUATION_SEED).items():
        if key.endswith("/think") and not documents[0].is_thinking:
            continue  # plain text has one mode
        encoded = encode(tokenizer, documents)
        flat = [one for item in encoded for one in engine.rounds(item.ids[: item.prompt_tokens], ANSWER_TOKENS)]
        full = [one.accepted + 1 for one in flat if one.exists == slots]
        result[key] = {
            "documents": len(encoded),
            "rounds": len(flat),
            "tokens_per_round": round(float(np.mean([min(r.accepted + 1, r.exists) for r in flat])), 3)
            if flat
            else 0.0,
            "full_rounds": len(full),
            "accepted_length_of_full_rounds": round(float(np.mean(full)), 3) if full else 0.0,
        }
    return result


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--count", type=int, default=4, help="documents per family and mode")
    parser.add_argument("--families", nargs="+", choices=sorted(FAMILIES), default=FEW_FAMILIES)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args(list(argv) if argv is not None else None)
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    engine = EngineDrafter(arguments.checkpoint)
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    reported = json.loads((arguments.checkpoint / REPORT_FILE).read_text())["pairs"]["coupled, temperature 0"][
        "families"
    ]
    results = {}
    for family in arguments.families:
        for key, found in evaluate(engine, tokenizer, family, arguments.count).items():
            results[key] = found
            other = reported.get(key, {})
            said = f"{other.get('tokens_per_round')} and {other.get('accepted_length_of_full_rounds')}"
            print(f"{key}: {found['tokens_per_round']} tokens a round over {found['rounds']}, "
                  f"{found['accepted_length_of_full_rounds']} over {found['full_rounds']} full ones; reported {said}",
                  flush=True)  # fmt: skip
    if arguments.output is not None:
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
