"""Measure a drafter on held-out continuations: every block that an engine would draft, what it accepts, how sure it was.

    python -m examples.tiny_model.draft_measure --run runs/drafter --output runs/drafter/blocks.npz

No further target pass is needed. coupled: the recorded token is the target's sample under the noise that the drafter shares, so
a draft is accepted when it is that token. rejection: a token y that the target emitted came from an accepted draft with chance
min(1, q(y) / p(y)), because accepted drafts have density min(p, q); a rejected draft has density ∝ max(q - p, 0).
Rounds then follow each other as in an engine that verifies whole blocks.

Legend as in draft_spans.py, and: M blocks · V vocabulary · R visited blocks.
"""

import argparse
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from examples.tiny_model.draft_documents import FAMILY_NAMES, Pool, continuations, held_out_prompts
from examples.tiny_model.draft_model import DraftModel
from examples.tiny_model.draft_noise import accept_coin, gumbel
from examples.tiny_model.draft_spans import labelled, span_table
from examples.tiny_model.draft_target import CHECKPOINT, Target, load_target, shipped_draft_weights
from examples.tiny_model.state import load_tensors
from examples.tiny_model.straight_through import quantised_weight
from examples.tiny_model.train import TOKENIZER

SPANS = 256  # in one pass
VERIFY_MODES = ("coupled", "rejection")
HELD_OUT_SEED = 990_001
MEASURED_TOKENS = 576  # decoding is lock-step, and documents beyond are few: the longer recalls, some with many tools


class Rollout(NamedTuple):
    """`accepted_MQ`: the slot's draft is accepted, if all before it are. `confidence_MQ`: logits, on the drafts' own path."""

    accepted_MQ: Tensor
    confidence_MQ: Tensor


def rollout(
    model: DraftModel, weights: dict[str, Tensor], pool: Pool, hidden_MQD: Tensor, at_MQ: Tensor, document_M: Tensor,
    verify: str,
) -> Rollout:  # fmt: skip
    """Draft all slots of blocks and verify them against the recorded tokens `at_MQ`."""
    temperature, seed = pool.temperatures_N[document_M], pool.seeds_N[document_M]
    greedy, tau = (temperature == 0).unsqueeze(1), temperature.clamp_min(1e-6).unsqueeze(1)
    position_MQ = at_MQ - pool.starts_N[document_M].unsqueeze(1)
    previous, going = pool.ids_P[at_MQ[:, 0] - 1], torch.ones_like(document_M, dtype=torch.bool)
    accepted, confidence = [], []
    for slot in range(model.slots):
        logits, doubt = model.heads(weights, hidden_MQD[:, slot], previous)
        token, place = pool.ids_P[at_MQ[:, slot]], position_MQ[:, slot]
        noise = gumbel(seed, place, logits.shape[1])
        drawn = torch.where(greedy, logits, logits / tau + noise).argmax(1)
        agrees = drawn == token
        if verify == "rejection":
            q = (logits / tau).softmax(1)
            p = (model.target.logits(pool.hidden_PD[at_MQ[:, slot] - 1].float()) / tau).softmax(1)
            ratio = (q.gather(1, token.unsqueeze(1)) / p.gather(1, token.unsqueeze(1)).clamp_min(1e-30)).squeeze(1)
            kept = accept_coin(seed, place) < ratio
            refused = ((q - p).clamp_min(0).log() + noise).argmax(1)
            path = torch.where(kept, token, refused)
            drawn = torch.where(greedy.squeeze(1) | ~going, drawn, path)
            agrees = torch.where(greedy.squeeze(1), agrees, kept)
        accepted.append(agrees)
        confidence.append(doubt)
        going, previous = going & agrees, drawn
    return Rollout(torch.stack(accepted, 1), torch.stack(confidence, 1))


def measure(model: DraftModel, weights: dict[str, Tensor], pool: Pool) -> dict[str, np.ndarray]:
    """Every anchor of the pool, in order: `document` and `position`, `exists` tokens after it, and by verify mode
    `accepted`: how many drafts in a row, `confidence` [anchors, slots]."""
    table = span_table(pool)
    columns: dict[str, list[Tensor]] = {}
    for first in range(0, len(table.first_S), SPANS):
        chosen = torch.arange(first, min(first + SPANS, len(table.first_S)), device=pool.ids_P.device)
        batch = labelled(pool, table, chosen, model.config.sliding_window, model.slots)
        hidden_MQD = model.blocks(weights, batch.spans).hidden_MQD
        exists_MQ, at_MQ = batch.exists_GAQ.flatten(0, 1), batch.at_GAQ.flatten(0, 1)
        real = exists_MQ[:, 0]
        document = batch.document_G.unsqueeze(1).expand(-1, batch.exists_GAQ.shape[1]).flatten()[real]
        found = {
            "document": document,
            "position": batch.spans.positions_GA.flatten()[real],
            "exists": exists_MQ[real].sum(1),
        }
        for verify in VERIFY_MODES:
            out = rollout(model, weights, pool, hidden_MQD[real], at_MQ[real], document, verify)
            found[f"accepted/{verify}"] = (out.accepted_MQ & exists_MQ[real]).long().cumprod(1).sum(1)
            found[f"confidence/{verify}"] = out.confidence_MQ
        for name, column in found.items():
            columns.setdefault(name, []).append(column)
    return {name: torch.cat(parts).cpu().numpy() for name, parts in columns.items()}


def visited(anchors: dict[str, np.ndarray], accepted: np.ndarray, num_documents: int) -> np.ndarray:
    """Which anchors an engine comes to that verifies whole blocks: bool, one per anchor."""
    seen = np.zeros(len(accepted), dtype=bool)
    begins = np.searchsorted(anchors["document"], np.arange(num_documents + 1))
    for begin, end in pairwise(begins.tolist()):
        at = begin
        while at < end:
            seen[at] = True
            at += accepted[at] + 1
    return seen


def repeats(pool: Pool) -> np.ndarray:
    """bool [N]: greedy documents that equal an earlier one. A fact asked twice would be both fitted on and judged."""
    ids, greedy = pool.ids_P.cpu().numpy(), (pool.temperatures_N == 0).cpu().numpy()
    starts, lengths = pool.starts_N.cpu().numpy(), pool.lengths_N.cpu().numpy()
    seen: set[bytes] = set()
    repeated = np.zeros(len(starts), dtype=bool)
    for number in np.flatnonzero(greedy):
        text = ids[starts[number] : starts[number] + lengths[number]].tobytes()
        repeated[number] = text in seen
        seen.add(text)
    return repeated


def blocks_of(pool: Pool, anchors: dict[str, np.ndarray], skip_N: np.ndarray) -> dict[str, np.ndarray]:
    """The visited blocks of every verify mode, in small types, but for those of the documents in `skip_N`."""
    per_document = {"family": pool.families_N, "temperature": pool.temperatures_N, "ended": pool.ended_N}
    facts = {name: column.cpu().numpy() for name, column in per_document.items()}
    result: dict[str, np.ndarray] = {"families": np.array(FAMILY_NAMES)}
    for verify in VERIFY_MODES:
        accepted = anchors[f"accepted/{verify}"]
        came = visited(anchors, accepted, len(pool.lengths_N))
        rows = np.flatnonzero(came & ~skip_N[anchors["document"]])
        document = anchors["document"][rows]
        result |= {
            f"{verify}/document": document.astype(np.int32),
            f"{verify}/family": facts["family"][document].astype(np.uint8),
            f"{verify}/temperature": facts["temperature"][document].astype(np.float16),
            f"{verify}/ended": facts["ended"][document],
            f"{verify}/exists": anchors["exists"][rows].astype(np.uint8),
            f"{verify}/accepted": accepted[rows].astype(np.uint8),
            f"{verify}/confidence": anchors[f"confidence/{verify}"][rows].astype(np.float16),
        }
    return result


def load_draft(run: Path | None, target: Target, checkpoint: Path) -> tuple[DraftModel, dict[str, Tensor]]:
    """The drafter of a training run, quantised, or without a run the checkpoint's."""
    model, device = DraftModel(target), target.model.device
    if run is None:
        weights, model.bias_LE = shipped_draft_weights(checkpoint, target.config, device)
        return model, weights
    weights = load_tensors(run, "weights", device)
    model.bias_LE = weights.pop("bias_LE")
    return model, {name: quantised_weight(name, weight) for name, weight in weights.items()}


@torch.no_grad()
def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a drafter in training; without it the checkpoint's own")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=600, help="documents per family and mode")
    parser.add_argument(
        "--max-tokens", type=int, default=MEASURED_TOKENS, help="of a prompt and its longest continuation"
    )
    parser.add_argument("--processes", type=int, default=12)
    arguments = parser.parse_args(list(argv) if argv is not None else None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    started = time.monotonic()
    target = load_target(arguments.checkpoint, device, torch.float32)
    prompts = held_out_prompts(TOKENIZER, HELD_OUT_SEED, arguments.count, arguments.processes)
    prompts = [prompt for prompt in prompts if prompt.limit <= arguments.max_tokens]
    print(f"{len(prompts)} held-out prompts, {time.monotonic() - started:.0f} s", flush=True)
    pool = continuations(target, prompts, HELD_OUT_SEED)
    print(f"{len(pool.ids_P)} tokens, {time.monotonic() - started:.0f} s", flush=True)
    anchors = measure(*load_draft(arguments.run, target, arguments.checkpoint), pool)
    blocks = blocks_of(pool, anchors, repeats(pool))
    np.savez_compressed(arguments.output, **blocks)  # type: ignore[arg-type]
    told = ", ".join(f"{len(blocks[f'{verify}/accepted'])} {verify}" for verify in VERIFY_MODES)
    print(f"{len(anchors['document'])} anchors, visited: {told}, {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
