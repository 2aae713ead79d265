"""Exact match on held-out documents, teacher-forced: the arg max over the expected answer equals a greedy decode.

    python -m examples.tiny_model.score --run runs/tiny --output runs/tiny/score.json

Runs the training forward without compilation, with quantised weights, activations and caches, top-k and candidates.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from deepinfer.arch.config import parse_config
from deepinfer.model.checkpoint.tokens import engram_classes
from examples.tiny_model.data.mixture import Document, evaluation_documents
from examples.tiny_model.model import Mode, TrainingModel
from examples.tiny_model.packing import Encoded, PackedBatch, Placement, encode, pack
from examples.tiny_model.state import load_tensors
from examples.tiny_model.straight_through import quantised_weight
from examples.tiny_model.train import HERE, TOKENIZER

TOKENS = 2048
ALIGNMENT = 8
EVALUATION_SEED = 4242


def correct_documents(
    model: TrainingModel, weights: dict[str, Tensor], encoded: list[Encoded], mode: Mode, rows: int
) -> list[bool]:
    """Whether the most likely token is the expected one at every answer position, for each document."""
    correct = [False] * len(encoded)
    order = sorted(range(len(encoded)), key=lambda index: -len(encoded[index].ids))
    while order:
        batch, placed = pack_all([encoded[index] for index in order], rows)
        ids = torch.from_numpy(batch.ids).to(model.device).long()
        with torch.no_grad():
            hidden = model(weights, ids, mode).hidden_BTD
            best = torch.cat([model.logits(weights, row).argmax(-1) for row in hidden.split(1)]).cpu().numpy()
        for place in placed:
            index = order[place.document]
            document = encoded[index]
            first = place.start + document.prompt_tokens
            answer = document.ids[document.prompt_tokens :]
            correct[index] = bool((best[place.row, first - 1 : first - 1 + len(answer)] == answer).all())
        done = {place.document for place in placed}
        order = [index for position, index in enumerate(order) if position not in done]
    return correct


def pack_all(documents: list[Encoded], rows: int) -> tuple[PackedBatch, list[Placement]]:
    longest = max(len(document.ids) for document in documents)
    if longest > TOKENS:
        raise ValueError(f"a document has {longest} tokens; rows hold {TOKENS}")
    return pack(documents, rows, TOKENS, ALIGNMENT, None)


def score(
    model: TrainingModel, weights: dict[str, Tensor], tokenizer: Tokenizer, count: int, mode: Mode, rows: int = 16
) -> dict[str, dict[str, dict[str, float]]]:
    """Exact match by split and family, with the number of documents and their median prompt length."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for split, unseen in (("unseen_values", False), ("unseen_templates", True)):
        families = evaluation_documents(count, EVALUATION_SEED, unseen)
        flat: list[tuple[str, Document]] = [(name, d) for name, documents in families.items() for d in documents]
        encoded = encode(tokenizer, [document for _, document in flat])
        keep = [index for index, item in enumerate(encoded) if len(item.ids) <= TOKENS]
        correct = correct_documents(model, weights, [encoded[i] for i in keep], mode, rows)
        by_family: dict[str, list[tuple[bool, int]]] = {}
        for index, ok in zip(keep, correct, strict=True):
            by_family.setdefault(flat[index][0], []).append((ok, encoded[index].prompt_tokens))
        result[split] = {
            name: {
                "exact": round(float(np.mean([ok for ok, _ in items])), 4),
                "documents": len(items),
                "median_prompt_tokens": float(np.median([length for _, length in items])),
            }
            for name, items in by_family.items()
        }
    return result


def print_scores(scores: dict[str, dict[str, dict[str, float]]]) -> None:
    for split, families in scores.items():
        mean = np.mean([family["exact"] for family in families.values()])
        print(f"{split}: mean of families {mean:.4f}")
        for name, family in families.items():
            count, prompt = family["documents"], family["median_prompt_tokens"]
            print(f"  {name:28s} {family['exact']:.3f} of {count:.0f}, prompts of {prompt:.0f} tokens")


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200, help="documents per family, mode and split")
    arguments = parser.parse_args(list(argv) if argv is not None else None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    config = parse_config(json.loads((HERE / "config.json").read_text()))
    classes = torch.from_numpy(engram_classes(TOKENIZER, config.vocab_size))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = TrainingModel(config, classes, device, compiled=False, dtype=dtype)
    weights = load_tensors(arguments.run, "weights", device)
    model.bias_LE = weights.pop("bias_LE")
    weights = {name: quantised_weight(name, weight) for name, weight in weights.items()}
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    scores = score(model, weights, tokenizer, arguments.count, Mode(quantised=True, sparse=True))
    arguments.output.write_text(json.dumps(scores, indent=1) + "\n")
    print_scores(scores)


if __name__ == "__main__":
    main()
