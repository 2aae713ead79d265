"""Check and time a GPU before a long run: kernels against plain torch, compiled against eager, tokens per second, memory.

python -m examples.tiny_model.probe
python -m examples.tiny_model.probe --compile-long      # beside a starting run: fills the compile cache for its second phase
"""

import argparse
import json
import time

import torch
from tokenizers import Tokenizer

from deepinfer.arch.config import parse_config
from examples.tiny_model.feed import BatchShape
from examples.tiny_model.packing import batches
from examples.tiny_model.schedule import LONG, SHORT, Schedule, Step
from examples.tiny_model.sinkhorn import sinkhorn, sinkhorn_plain
from examples.tiny_model.topk import index_scores, topk_mask
from examples.tiny_model.train import HERE, TOKENIZER, Trainer

TIMED_STEPS = 10


def check_sinkhorn(device: torch.device) -> None:
    x = torch.rand(1000, 4, 4, device=device, requires_grad=True)
    y = sinkhorn(x, 20)
    gradient = torch.rand_like(y)
    (ours,) = torch.autograd.grad(y, x, gradient)
    plain = sinkhorn_plain(x, 20)
    (theirs,) = torch.autograd.grad(plain, x, gradient)
    print(f"sinkhorn: forward {float((y - plain).abs().max()):.1e}, backward {float((ours - theirs).abs().max()):.1e}")


def check_topk(device: torch.device) -> None:
    dots = torch.randint(-3, 4, (64, 4, 1000), device=device).to(torch.bfloat16)  # many ties and zeros
    weights = torch.randint(-2, 3, (64, 4), device=device).float()
    allowed = torch.rand(64, 1000, device=device) < torch.linspace(0, 1, 64, device=device).unsqueeze(1)
    scores = index_scores(dots, weights)
    plain_scores = index_scores(dots.cpu(), weights.cpu())
    equal = torch.equal(topk_mask(scores, allowed, 128).cpu(), topk_mask(plain_scores, allowed.cpu(), 128))
    print(f"top-k: scores {float((scores.cpu() - plain_scores).abs().max()):.1e}, masks equal {equal}")


def check_compiled(trainer: Trainer, eager: Trainer, step: Step, rows: int) -> None:
    """Loss and gradients of both, on a few rows of real text."""
    shape = BatchShape(rows, step.shape.tokens, step.shape.alignment, step.shape.long_context)
    batch = next(batches(Tokenizer.from_file(str(TOKENIZER)), 99, *shape))
    ids = torch.from_numpy(batch.ids).to(trainer.device).long()
    results = []
    for one in (trainer, trainer, eager):
        one.copies.refresh(step.quantise_weights)
        out = one.model(one.copies.leaves, ids, step.mode._replace(index_rows=rows))
        losses, best = one.model.losses(one.copies.leaves, out.hidden_BTD, ids)
        (losses.mean() + out.index_loss).backward()
        gradient = torch.cat([leaf.grad.flatten() for leaf in one.copies.leaves.values() if leaf.grad is not None])
        for leaf in one.copies.leaves.values():
            leaf.grad = None
        results.append((losses.detach(), best, gradient, out.index_loss.item()))
    (first, best, gradient, index), (again, _, _, _), (plain, plain_best, plain_gradient, plain_index) = results
    error = float((gradient - plain_gradient).norm() / plain_gradient.norm())
    agree = float((best == plain_best).float().mean())
    print(
        f"compiled against eager ({step.shape.tokens} tokens, sparse {step.mode.sparse}): "
        f"repeatable {torch.equal(first, again)}, loss {float(first.mean()):.5f} {float(plain.mean()):.5f}, "
        f"gradients differ by {error:.1e}, arg max equal {agree:.4f}, index {index:.5f} {plain_index:.5f}"
    )


def time_steps(trainer: Trainer, step: Step) -> None:
    batch = next(batches(Tokenizer.from_file(str(TOKENIZER)), 7, *step.shape))
    started = time.monotonic()
    trainer.step(batch, step._replace(rate=0.0))
    torch.cuda.synchronize()
    compile_s = time.monotonic() - started
    for _ in range(3):
        trainer.step(batch, step._replace(rate=0.0))
    torch.cuda.synchronize()
    started = time.monotonic()
    for _ in range(TIMED_STEPS):
        trainer.step(batch, step._replace(rate=0.0))
    torch.cuda.synchronize()
    step_s = (time.monotonic() - started) / TIMED_STEPS
    filled = float((batch.ids != 2).mean())
    answers = float((batch.weights >= 40).mean())
    rate = batch.ids.size / step_s / 1e6
    print(
        f"{step.shape}: first step {compile_s:.1f} s, then {step_s * 1e3:.1f} ms = {rate:.3f} M tokens/s, "
        f"{torch.cuda.max_memory_allocated() / 1e9:.1f} GB, {filled:.3f} filled, {answers:.3f} answer tokens",
        flush=True,
    )


def profile(trainer: Trainer, step: Step) -> None:
    batch = next(batches(Tokenizer.from_file(str(TOKENIZER)), 7, *step.shape))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(2):
            trainer.step(batch, step._replace(rate=0.0))
        torch.cuda.synchronize()
    events = sorted(profiler.key_averages(), key=lambda event: -event.self_device_time_total)
    total = sum(event.self_device_time_total for event in events)
    print(f"device time {total / 2e3:.1f} ms a step")
    for event in events[:22]:
        print(f"  {event.self_device_time_total / 2e3:7.2f} ms {event.count // 2:4d} {event.key[:100]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--compile-long", action="store_true", help="run one step of the long shape and stop")
    arguments = parser.parse_args()
    device = torch.device("cuda")
    torch.set_float32_matmul_precision("high")
    config = parse_config(json.loads((HERE / "config.json").read_text()))
    schedule = Schedule(100, 100)
    if arguments.compile_long:
        step = schedule.at(195)
        batch = next(batches(Tokenizer.from_file(str(TOKENIZER)), 7, *step.shape))
        Trainer(config, device, 1, True, torch.bfloat16).step(batch, step)
        return
    check_sinkhorn(device)
    check_topk(device)
    trainer = Trainer(config, device, 1, True, torch.bfloat16)
    eager = Trainer(config, device, 1, False, torch.bfloat16)
    with torch.no_grad():
        noise = torch.Generator(device).manual_seed(1)
        for name, weight in trainer.weights.items():
            if "hc_" in name:
                weight += 0.02 * torch.randn(weight.shape, generator=noise, device=device)
            eager.weights[name].copy_(weight)
    for step in (schedule.at(10), schedule.at(195)):
        assert step.shape in (SHORT, LONG)
        time_steps(trainer, step)
        profile(trainer, step)
        torch.cuda.reset_peak_memory_stats()
    for step in (schedule.at(10), schedule.at(195)):
        check_compiled(trainer, eager, step, 4)


if __name__ == "__main__":
    main()
