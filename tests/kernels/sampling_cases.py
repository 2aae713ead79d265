"""Random rows of logits and what is asked of them. R rows · V vocabulary."""

import torch
from torch import Tensor

from deepinfer.ops.sampling_rows import SamplingRows

KINDS = ("normal", "zipf", "peaked", "ties", "equal")
FEATURES = ("temperature", "top_k", "top_p", "min_p", "penalties", "mask", "logprobs")


def random_logits(kind: str, num_rows: int, vocabulary: int, generator: torch.Generator) -> Tensor:
    """float32 [R, V]."""
    device = generator.device
    normal = torch.randn(num_rows, vocabulary, generator=generator, device=device)
    if kind == "normal":
        return normal * 2.5
    if kind == "zipf":  # weight ~ rank^-1.2 in an order of its own, on a level of its own
        ranks = torch.rand(num_rows, vocabulary, generator=generator, device=device).argsort(1) + 1.0
        return 18 - 1.2 * ranks.log() + 0.2 * normal
    if kind == "peaked":
        logits = normal * 1.5
        logits[:, :: vocabulary // 7] += 12
        return logits
    if kind == "ties":
        return (normal * 3).round()
    assert kind == "equal", kind
    return torch.full_like(normal, -3.25)


def random_rows(
    num_rows: int, vocabulary: int, features: tuple[str, ...], generator: torch.Generator, share: float = 1.0
) -> SamplingRows:
    """Every row has the named features, or each with a chance of `share`. Without "temperature" rows are greedy."""
    device = generator.device

    def uniform(low: float, high: float, *size: int) -> Tensor:
        chance = torch.rand(*(size or (num_rows,)), generator=generator, device=device, dtype=torch.float64)
        return low + (high - low) * chance

    def whole(low: int, high: int, *size: int) -> Tensor:
        shape = size or (num_rows,)
        return torch.randint(low, high, shape, generator=generator, device=device, dtype=torch.int64).int()

    def only(feature: str, values: Tensor, off: float) -> Tensor:
        on = uniform(0, 1) < share if feature in features else torch.zeros(num_rows, dtype=torch.bool, device=device)
        return torch.where(on, values, torch.full_like(values, off))

    counts = only("penalties", whole(50, 400), 0)
    ids = [torch.randperm(vocabulary, generator=generator, device=device)[:count] for count in counts.tolist()]
    num_edits = int(counts.sum())
    biases = uniform(-3, 3, num_edits)
    biases[uniform(0, 1, num_edits) < 0.1] = -torch.inf
    masks_MW = torch.randint(-(2**31), 2**31, (5, vocabulary // 32), generator=generator, device=device).int()
    masks_MW[0] = 0
    masks_MW[0, vocabulary // 64] = 0x00F0
    return SamplingRows(
        seed_R=torch.randint(0, 2**62, (num_rows,), generator=generator, device=device),
        position_R=torch.randint(0, 2**34, (num_rows,), generator=generator, device=device),
        temperature_R=only("temperature", uniform(0.3, 1.5), 0),
        top_p_R=only("top_p", uniform(0.3, 0.99), 1),
        min_p_R=only("min_p", uniform(0.001, 0.2), 0),
        repetition_R=only("penalties", uniform(0.8, 1.5), 1),
        frequency_R=only("penalties", uniform(-0.5, 0.5), 0),
        presence_R=only("penalties", uniform(-0.5, 0.5), 0),
        top_k_R=only("top_k", whole(1, 200), 0),
        num_logprobs_R=only("logprobs", whole(0, 21), -1),
        processed_R=only("logprobs", whole(0, 2), 0),
        mask_row_R=only("mask", whole(0, 5), -1),
        masks_MW=masks_MW,
        edit_starts_X=torch.cat([counts.new_zeros(1), counts.cumsum(0).int()]),
        edit_ids_E=torch.cat([*ids, torch.empty(0, device=device, dtype=torch.int64)]).int(),
        edit_biases_E=biases,
        edit_counts_E=whole(0, 8, num_edits),
    )


def some_rows(rows: SamplingRows, chosen: list[int]) -> SamplingRows:
    """The same requests for other rows in another order."""
    names = [name for name in vars(rows) if name.endswith("_R")]
    at = torch.tensor(chosen, device=rows.seed_R.device)
    starts = rows.edit_starts_X.tolist()
    spans = [slice(starts[r], starts[r + 1]) for r in chosen]
    lengths = torch.tensor([0, *(span.stop - span.start for span in spans)]).cumsum(0)
    edits = {
        name: torch.cat([getattr(rows, name)[span] for span in spans])
        for name in ("edit_ids_E", "edit_biases_E", "edit_counts_E")
    }
    picked = {name: getattr(rows, name)[at] for name in names}
    return SamplingRows(**picked, masks_MW=rows.masks_MW, edit_starts_X=lengths.int().to(at.device), **edits)
