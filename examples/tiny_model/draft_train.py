"""Train the DSpark draft module of the shipped tiny model on the target's own continuations, on one GPU.

    python -m examples.tiny_model.draft_train --output runs/drafter

The target is the checkpoint's quantised trunk and stays as it is. Its states are kept for every token of the continuations, so
that a step runs the drafter alone. Loss per slot: 0.1 cross entropy + 0.9 L1 distance of the two distributions + binary cross
entropy of the confidence against 1 - L1 / 2; later slots count less.
"""

import argparse
import math
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.tiny_model.draft_documents import Pool, continuations, training_prompts
from examples.tiny_model.draft_model import DraftModel
from examples.tiny_model.draft_spans import Labelled, SpanTable, labelled, span_table
from examples.tiny_model.draft_target import CHECKPOINT, Target, load_target
from examples.tiny_model.parameters import initial_draft_weights
from examples.tiny_model.state import save_state
from examples.tiny_model.straight_through import QuantisedWeights
from examples.tiny_model.train import BALANCE_WEIGHT, BIAS_STEP, CLIP_NORM, TOKENIZER

CE_WEIGHT, L1_WEIGHT, CONFIDENCE_WEIGHT = 0.1, 0.9, 1.0
DECAY = 4.0  # a slot's weight is exp(-slot / DECAY)
WARM_UP_SHARE = 0.04


class Losses:
    """The loss of labelled spans."""

    def __init__(self, model: DraftModel, pool: Pool) -> None:
        self.model, self.pool, self.target = model, pool, model.target

    def __call__(self, weights: dict[str, Tensor], batch: Labelled) -> dict[str, Tensor]:
        """Scalars: `loss` to minimise, its parts, and `accepted`: overlap of the distributions at slot 0."""
        blocks = self.model.blocks(weights, batch.spans)
        exists = batch.exists_GAQ.flatten().nonzero().squeeze(1)
        slot = exists % self.model.slots
        at = batch.at_GAQ.flatten()[exists]
        label, previous = self.pool.ids_P[at], self.pool.ids_P[at - 1]
        logits, confidence = self.model.heads(weights, blocks.hidden_MQD.flatten(0, 1)[exists], previous)
        with torch.no_grad():
            wanted = self.target.logits(self.pool.hidden_PD[at - 1].float()).softmax(-1)
        log_given = logits.log_softmax(-1)
        cross = -log_given.gather(1, label.unsqueeze(1)).squeeze(1)
        distance = (log_given.exp() - wanted).abs().sum(1)
        overlap = (1 - distance.detach() / 2).clamp(0, 1)
        doubt = F.binary_cross_entropy_with_logits(confidence, overlap, reduction="none")
        weight = torch.exp(-slot / DECAY)
        weight = weight / weight.sum()
        each = CE_WEIGHT * cross + L1_WEIGHT * distance + CONFIDENCE_WEIGHT * doubt
        first, last = (overlap[slot == s].mean() for s in (0, self.model.slots - 1))
        return {
            "loss": (each * weight).sum() + BALANCE_WEIGHT * blocks.balance,
            "cross": (cross * weight).sum().detach(),
            "l1": (distance * weight).sum().detach(),
            "confidence": (doubt * weight).sum().detach(),
            "first": first,
            "last": last,
            "load": blocks.load_LE,
        }


class DraftTrainer:
    """Weights, optimiser and data of one run."""

    def __init__(self, target: Target, pool: Pool, seed: int, spans: int) -> None:
        self.model = DraftModel(target)
        self.pool, self.losses, self.spans = pool, Losses(self.model, pool), spans
        self.table: SpanTable = span_table(pool)
        self.shares_S = self.table.count_S.cumsum(0)
        self.weights = initial_draft_weights(target.config, target.weights, seed)
        self.copies = QuantisedWeights(self.weights)
        device = target.model.device
        self.generator = torch.Generator(device).manual_seed(seed)
        self.optimiser = torch.optim.AdamW(
            list(self.weights.values()), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=device.type == "cuda"
        )

    def batch(self) -> Labelled:
        """Random spans, each as likely as it has anchors; in the pool's order."""
        drawn = torch.rand(self.spans, generator=self.generator, device=self.shares_S.device)
        chosen = torch.searchsorted(self.shares_S, (drawn * self.shares_S[-1]).long(), right=True)
        c = self.model.config
        return labelled(self.pool, self.table, chosen.sort().values, c.sliding_window, self.model.slots)

    def step(self, rate: float) -> dict[str, Tensor]:
        self.copies.refresh(quantise=True)
        result = self.losses(self.copies.leaves, self.batch())
        result.pop("loss").backward()
        self.copies.hand_over_gradients()
        norm = torch.nn.utils.clip_grad_norm_(list(self.weights.values()), CLIP_NORM, foreach=True)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        c = self.model.config
        target_load = c.dspark_num_experts_per_tok / c.dspark_n_routed_experts
        self.model.bias_LE += BIAS_STEP * torch.sign(target_load - result.pop("load").detach())
        return result | {"gradient": norm}


def rate_at(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, then a cosine to zero."""
    warm_up = max(1, round(WARM_UP_SHARE * steps))
    if step < warm_up:
        return peak * (step + 1) / warm_up
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def run(trainer: DraftTrainer, arguments: argparse.Namespace, record: dict[str, Any]) -> None:
    steps, started, history = arguments.steps, time.monotonic(), []
    for step in range(steps):
        history.append(trainer.step(rate_at(step, steps, arguments.rate)))
        done = step + 1
        if done in (1, 20) or done % arguments.report_every == 0 or done == steps:
            means = {key: float(torch.stack([h[key].float() for h in history]).mean()) for key in history[0]}
            if not all(math.isfinite(value) for value in means.values()):
                raise FloatingPointError(f"training diverged at step {done}: {means}")
            seconds = time.monotonic() - started
            told = " ".join(f"{key} {value:.4f}" for key, value in means.items())
            print(f"step {done}/{steps} {told} {seconds:.0f} s", flush=True)
            record |= {"steps": done, "seconds": round(seconds, 1), "last": means}
            history = []
    save_state(arguments.output, "weights", trainer.weights | {"bias_LE": trainer.model.bias_LE}, record)


def prepare(target: Target, arguments: argparse.Namespace) -> tuple[Pool, dict[str, Any]]:
    """The pool of continuations and what a run has to tell about it."""
    started = time.monotonic()
    counts = (arguments.documents, arguments.long_documents)
    prompts = training_prompts(TOKENIZER, arguments.seed, *counts, arguments.processes)
    print(f"{len(prompts)} prompts, {time.monotonic() - started:.0f} s", flush=True)
    pool = continuations(target, prompts, arguments.seed)
    answers = int((pool.lengths_N - pool.prompts_N).sum())
    seconds = time.monotonic() - started
    print(f"{len(pool.ids_P)} tokens, {answers} of them answers, {seconds:.0f} s", flush=True)
    return pool, {
        "documents": len(pool.lengths_N), "tokens": len(pool.ids_P), "answer_tokens": answers,
        "seconds_of_data": round(seconds, 1),
        "arguments": {k: str(v) for k, v in vars(arguments).items() if k not in ("output", "checkpoint")},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor(),
    }  # fmt: skip


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT)
    parser.add_argument("--documents", type=int, default=140_000, help="documents of the short mixture")
    parser.add_argument("--long-documents", type=int, default=6_000)
    parser.add_argument("--steps", type=int, default=4_000)
    parser.add_argument("--spans", type=int, default=320, help="spans of 16 anchors in a step")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--report-every", type=int, default=200)
    arguments = parser.parse_args(list(argv) if argv is not None else None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    fast = torch.bfloat16 if device.type == "cuda" else torch.float32
    pool, record = prepare(load_target(arguments.checkpoint, device, fast), arguments)
    trainer = DraftTrainer(
        load_target(arguments.checkpoint, device, torch.float32), pool, arguments.seed, arguments.spans
    )
    run(trainer, arguments, record)


if __name__ == "__main__":
    main()
