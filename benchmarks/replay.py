"""What bounded replay saves and what it costs, on the shipped tiny model: FLOPs, prefill time, task accuracy, log loss.

    python benchmarks/replay.py --lengths 512 1024 2048 --documents 20

Prefill of one prompt in one step with every row and with the last `--keep` rows in the later layers, alternating; beside the
ratio of times stands the one of FLOPs as the plan reckons them, the limit of what there is to save. Quality is that of held-out
documents of examples/tiny_model: the log loss of the right answer's tokens, and the share of documents whose every token is the
likeliest (which is what greedy decoding would write). `--documents 0` leaves it out.
"""

import math
import sys
import time
from pathlib import Path

import numpy as np
import torch
from record import options, record
from tokenizers import Tokenizer

from deepinfer.arch.cache import CacheLayout
from deepinfer.interfaces import StepInput
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.checkpoint.reader import open_checkpoint
from deepinfer.model.checkpoint.weights import load_weights
from deepinfer.model.v41 import V41Model
from deepinfer.ops import native
from deepinfer.plan.cost.v41 import shape_of

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # examples are not installed

from examples.tiny_model.data.mixture import evaluation_family  # noqa: E402
from examples.tiny_model.score import EVALUATION_SEED  # noqa: E402

CHECKPOINT = ROOT / "deepinfer" / "assets" / "v41_tiny"
FAMILIES = ("recall_170", "recall_350", "recall_600", "recall_1200", "recall_1800", "tool_call", "json_schema")
BACKTRACK = 6
MAX_TOKENS = 2048


class Prefill:
    """The tiny model with one sequence's caches, with and without the dropped rows of bounded replay."""

    def __init__(self) -> None:
        checkpoint = open_checkpoint(CHECKPOINT)
        self.config, weights = checkpoint.config, load_weights(checkpoint)
        self.layout = CacheLayout.of(self.config, backtrack=BACKTRACK)
        self.models = {
            kind: V41Model(
                self.config,
                weights,
                native(),
                numerics="full",
                dtype="float32",
                layout=self.layout,
                token_classes=checkpoint.engram_classes,
                compact=kind == "compact",
            )
            for kind in ("none", "compact")
        }
        blocks = -(-MAX_TOKENS // self.layout.block_tokens)
        self.cache = ModelCache(self.config, self.layout, num_blocks=blocks, num_slots=1)
        self.table_1B = np.arange(blocks).reshape(1, -1)

    def __call__(self, kind: str, tokens: np.ndarray, upper_from: int) -> torch.Tensor:
        """Hidden rows of a whole sequence in one step."""
        positions = np.arange(len(tokens))
        back_TG = positions[:, None] - np.arange(self.config.engram_max_ngram_size)
        step = StepInput(
            token_ids=tokens,
            positions=positions,
            ngram_ids=np.where(back_TG >= 0, tokens[back_TG], -1),
            row_starts=np.array([0, len(tokens)]),
            state_slots=np.zeros(1, dtype=np.int64),
            block_tables=self.table_1B,
            sample_rows=positions[-1:],
            upper_from=None if kind == "none" else np.array([upper_from]),
        )
        return self.models[kind].forward(step, self.cache)


def flops(prefill: Prefill, length: int, keep: int) -> float:
    """FLOPs of a prompt whose last `keep` rows pass the later layers, as the plan's cost model counts them."""
    shape = shape_of(prefill.config, prefill.layout)
    rows = {"row": length, "kept": keep, "sampled": 1, "draft": 0, "accepted": 0}
    total = sum(rows[product.scope] * product.flops for product in shape.products)
    for experts in shape.experts:
        total += 2.0 * rows[experts.scope] * experts.chosen * experts.weights * experts.layers
    for scan in shape.scans:
        first = (
            0 if scan.scope == "row" or not scan.ratio else length - keep
        )  # windows of kept rows hold kept rows only
        last = keep if scan.scope == "kept" and not scan.ratio else length
        total += scan.keys_between(first, last) * scan.flops * scan.layers
    return total


def speed(prefill: Prefill, length: int, keep: int, repeats: int) -> None:
    tokens = np.random.default_rng(length).integers(3, prefill.config.vocab_size - 100, length)
    times_s: dict[str, list[float]] = {"none": [], "compact": []}
    for repeat in range(repeats + 1):
        for kind, times in times_s.items():
            begin = time.perf_counter()
            prefill(kind, tokens, length - keep)
            if repeat:  # the first compiles loops and fills tables
                times.append(time.perf_counter() - begin)
    medians, bests = ({kind: fold(times) for kind, times in times_s.items()} for fold in (np.median, min))
    record(
        "replay",
        what="prefill",
        prompt_tokens=length,
        keep_tokens=keep,
        flops_ratio=flops(prefill, length, length) / flops(prefill, length, keep),
        median_ratio=medians["none"] / medians["compact"],
        best_ratio=bests["none"] / bests["compact"],
        none_best_ms=bests["none"] * 1e3,
        compact_best_ms=bests["compact"] * 1e3,
        repeats=repeats,
        threads=torch.get_num_threads(),
    )


def quality(prefill: Prefill, family: str, count: int, keep: int) -> None:
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    exact, loss = ({"none": 0.0, "compact": 0.0} for _ in range(2))
    documents = answer_tokens = longer = agreeing = 0
    for document in evaluation_family(family, count, EVALUATION_SEED)[family]:
        prompt, answer = (tokenizer.encode(t, add_special_tokens=False).ids for t in (document.prompt, document.answer))
        if len(prompt) + len(answer) > MAX_TOKENS:
            continue
        documents, answer_tokens, longer = documents + 1, answer_tokens + len(answer), longer + (len(prompt) > keep)
        wanted, best = torch.tensor(answer), {}
        for kind, model in prefill.models.items():
            hidden = prefill(kind, np.array([*prompt, *answer]), max(0, len(prompt) - keep))
            logits = model.logits(hidden[len(prompt) - 1 : -1])
            best[kind] = logits.argmax(-1)
            exact[kind] += bool((best[kind] == wanted).all())
            loss[kind] -= logits.log_softmax(-1).gather(1, wanted.unsqueeze(1)).sum().item()
        agreeing += int((best["none"] == best["compact"]).sum())
    record(
        "replay",
        what="quality",
        family=family,
        documents=documents,
        prompts_longer_than_keep=longer,
        answer_tokens=answer_tokens,
        keep_tokens=keep,
        accuracy_none=exact["none"] / documents,
        accuracy_compact=exact["compact"] / documents,
        nats_per_token_none=loss["none"] / answer_tokens,
        nats_per_token_compact=loss["compact"] / answer_tokens,
        same_likeliest_token=agreeing / answer_tokens,
        half_width_95=1.96 * math.sqrt(0.25 / documents),
    )


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--lengths", type=int, nargs="*", default=[512, 1024, 2048], help="prompt tokens")
    parser.add_argument("--keep", type=int, default=140, help="rows that pass the later layers")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--documents", type=int, default=20, help="held-out documents per family; 0: no quality")
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    prefill = Prefill()
    for length in arguments.lengths:
        speed(prefill, length, arguments.keep, arguments.repeats)
    for family in arguments.families if arguments.documents else ():
        quality(prefill, family, arguments.documents, arguments.keep)


if __name__ == "__main__":
    main()
