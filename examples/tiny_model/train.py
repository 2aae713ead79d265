"""Train the tiny model from random weights on one GPU.

python -m examples.tiny_model.train --output runs/tiny            # again: goes on where it stopped
"""

import argparse
import hashlib
import json
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.config import V41Config, parse_config
from deepinfer.model.checkpoint.tokens import engram_classes
from examples.tiny_model.feed import BatchShape, Feed
from examples.tiny_model.model import TrainingModel
from examples.tiny_model.packing import WEIGHT_UNIT, PackedBatch
from examples.tiny_model.parameters import decays, initial_weights, is_slow
from examples.tiny_model.schedule import LONG, SHORT, Schedule, Step
from examples.tiny_model.state import load_progress, load_tensors, save_state
from examples.tiny_model.straight_through import QuantisedWeights

HERE = Path(__file__).parent
TOKENIZER = HERE.parents[1] / "deepinfer" / "assets" / "v41_tiny" / "tokenizer.json"
SLOW_RATE_SHARE = 0.3
WEIGHT_DECAY = 0.1
BALANCE_WEIGHT = 1e-4
BIAS_STEP = 1e-3
CLIP_NORM = 1.0
DATA_SEED_STRIDE = 1_000_003  # keeps the seeds of workers, shapes and resumed runs apart


class Trainer:
    """Weights, optimiser and model of one run."""

    def __init__(self, config: V41Config, device: torch.device, seed: int, compiled: bool, dtype: torch.dtype) -> None:
        self.config, self.device = config, device
        self.weights = initial_weights(config, seed, device)
        self.copies = QuantisedWeights(self.weights)
        classes = torch.from_numpy(engram_classes(TOKENIZER, config.vocab_size))
        assert int(classes.max()) + 1 == config.engram_compressed_vocab_size, "config.json and tokenizer.json disagree"
        self.model = TrainingModel(config, classes, device, compiled=compiled, dtype=dtype)
        self.optimiser = torch.optim.AdamW(
            self.groups(), lr=0.0, betas=(0.9, 0.95), eps=1e-9, fused=device.type == "cuda"
        )

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups; `share` scales the learning rate."""
        slow = [w for n, w in self.weights.items() if is_slow(n)]
        decayed = [w for n, w in self.weights.items() if decays(n, w)]
        rest = [w for n, w in self.weights.items() if not is_slow(n) and not decays(n, w)]
        return [
            {"params": slow, "share": SLOW_RATE_SHARE, "weight_decay": 0.0},
            {"params": decayed, "share": 1.0, "weight_decay": WEIGHT_DECAY},
            {"params": rest, "share": 1.0, "weight_decay": 0.0},
        ]

    def step(self, batch: PackedBatch, step: Step) -> dict[str, Tensor]:
        """One optimiser step; returns device scalars, so nothing waits for the GPU."""
        ids = self.on_device(batch.ids).long()
        target_weights = self.on_device(batch.weights).float() / WEIGHT_UNIT
        floor = None
        if step.replay:
            floor = self.on_device(batch.floor).long()
            position = torch.arange(ids.shape[1], device=self.device)
            target_weights = torch.where(position - 1 < floor, 0.0, target_weights)
        self.copies.refresh(step.quantise_weights)
        leaves = self.copies.leaves
        result = self.model(leaves, ids, step.mode, floor)
        losses, best = self.model.losses(leaves, result.hidden_BTD, ids)
        weight = target_weights[:, 1:]
        loss = (losses[:, :-1] * weight).sum() / weight.sum()
        (loss + BALANCE_WEIGHT * result.balance + result.index_loss).backward()
        self.copies.hand_over_gradients()
        norm = torch.nn.utils.clip_grad_norm_(list(self.weights.values()), CLIP_NORM, foreach=True)
        for group in self.optimiser.param_groups:
            group["lr"] = step.rate * group["share"]
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        with torch.no_grad():
            target = self.config.num_experts_per_tok / self.config.n_routed_experts
            self.model.bias_LE += BIAS_STEP * torch.sign(target - result.load_LE)
            answers = weight > 0.5
            accuracy = ((best[:, :-1] == ids[:, 1:]) & answers).sum() / answers.sum()
        return {"loss": loss.detach(), "accuracy": accuracy, "gradient": norm, "index": result.index_loss.detach()}

    def on_device(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def save(self, folder: Path, progress: dict[str, Any], with_optimiser: bool) -> None:
        moments = {}
        for name, weight in self.weights.items():
            if with_optimiser:
                for key in ("exp_avg", "exp_avg_sq"):
                    moments[f"{key}/{name}"] = self.optimiser.state[weight][key]
        if with_optimiser:
            save_state(folder / "optimiser", "moments", moments, {"steps": progress["steps"]})
        save_state(folder, "weights", self.weights | {"bias_LE": self.model.bias_LE}, progress)

    def load(self, folder: Path, steps: int) -> None:
        saved = load_tensors(folder, "weights", self.device)
        self.model.bias_LE = saved.pop("bias_LE")
        moments = load_tensors(folder / "optimiser", "moments", self.device)
        with torch.no_grad():
            for name, weight in self.weights.items():
                weight.copy_(saved[name])
                self.optimiser.state[weight] = {
                    "step": torch.tensor(float(steps), device=self.device),
                    "exp_avg": moments[f"exp_avg/{name}"],
                    "exp_avg_sq": moments[f"exp_avg_sq/{name}"],
                }


def provenance(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a run has to tell about itself: seeds, versions, hashes of code, tokenizer and config."""
    sources = sorted(HERE.rglob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return {
        "arguments": {key: str(value) for key, value in vars(arguments).items()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor(),
        "code_sha256": code,
        "tokenizer_sha256": hashlib.sha256(TOKENIZER.read_bytes()).hexdigest(),
        "config_sha256": hashlib.sha256((HERE / "config.json").read_bytes()).hexdigest(),
    }


def report(
    step: int, schedule: Schedule, rate: float, history: list[dict[str, Tensor]], tokens_per_s: float
) -> dict[str, float]:
    """Fetch and print the means since the last report."""
    means = {key: float(torch.stack([h[key].float() for h in history]).mean()) for key in history[0]}
    if not all(np.isfinite(value) for value in means.values()):
        raise FloatingPointError(f"training diverged at step {step}: {means}")
    line = f"step {step}/{schedule.num_steps} loss {means['loss']:.4f} answers {means['accuracy']:.4f}"
    line += f" index {means['index']:.4f}"
    print(f"{line} gradient {means['gradient']:.2f} rate {rate:.2e} {tokens_per_s / 1e6:.3f} M tokens/s", flush=True)
    return means


def run(trainer: Trainer, schedule: Schedule, arguments: argparse.Namespace) -> None:
    folder: Path = arguments.output
    progress = load_progress(folder) or {"steps": 0, "tokens": 0, "seconds": 0.0} | provenance(arguments)
    if progress["steps"]:
        trainer.load(folder, progress["steps"])
        print(f"goes on after step {progress['steps']}", flush=True)
    first = progress["steps"]
    seed = DATA_SEED_STRIDE * (arguments.seed + 1) + 1000 * first
    feeds: dict[BatchShape, Feed] = {
        shape: Feed(TOKENIZER, shape, seed + offset, arguments.workers) for offset, shape in ((0, SHORT), (500, LONG))
    }
    history: list[dict[str, Tensor]] = []
    base_seconds, started = progress["seconds"], time.monotonic()
    mark, mark_step = started, first
    last = min(schedule.num_steps, first + arguments.stop_after) if arguments.stop_after else schedule.num_steps
    for index in range(first, last):
        step = schedule.at(index)
        history.append(trainer.step(feeds[step.shape].next(), step))
        progress["tokens"] += step.shape.rows * step.shape.tokens
        done = index + 1
        if done in (1, 5, 20) or done % arguments.report_every == 0 or done == last or done == schedule.short_steps + 1:
            now = time.monotonic()
            rate = (done - mark_step) * step.shape.rows * step.shape.tokens / (now - mark)
            means = report(done, schedule, step.rate, history, rate)
            history, mark, mark_step = [], time.monotonic(), done
            progress |= {"steps": done, "seconds": base_seconds + now - started, "last": means}
        if done % arguments.save_every == 0 or done == last:
            progress |= {"steps": done, "seconds": base_seconds + time.monotonic() - started}
            trainer.save(folder, progress, with_optimiser=done < schedule.num_steps)
    for feed in feeds.values():
        feed.close()
    print(f"trained {progress['tokens'] / 1e6:.1f} M tokens in {progress['seconds']:.0f} s", flush=True)


def parse_arguments(argv: Iterable[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--short-steps", type=int, default=4500)
    parser.add_argument("--long-steps", type=int, default=1550)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=5, help="data processes for each batch shape")
    parser.add_argument("--report-every", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=1000)
    parser.add_argument("--stop-after", type=int, default=0, help="stop after this many steps and go on another time")
    parser.add_argument("--eager", action="store_true", help="without torch.compile")
    return parser.parse_args(list(argv) if argv is not None else None)


def main(argv: Iterable[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    config = parse_config(json.loads((HERE / "config.json").read_text()))
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    trainer = Trainer(config, device, arguments.seed, not arguments.eager and device.type == "cuda", dtype)
    run(trainer, Schedule(arguments.short_steps, arguments.long_steps), arguments)


if __name__ == "__main__":
    main()
