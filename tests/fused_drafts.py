"""The drafter on a device beside the engine's drafter on a CPU: the same features, the same sequences, caches full of NaN."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import torch
from small_models import SmallModel, k6_model, make_step
from torch import Tensor

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.formats.scales import working_dtype
from deepinfer.interfaces import Drafts, StepInput
from deepinfer.model.cache_storage import NAN_BYTE, ModelCache
from deepinfer.model.checkpoint.dummy import dummy_stored
from deepinfer.model.checkpoint.weights import weight_specs
from deepinfer.model.dspark import DSparkModel
from deepinfer.model.fused.dspark import FusedDSpark
from deepinfer.model.fused.glue import to_device
from deepinfer.model.fused.model import FusedModel
from deepinfer.model.fused.sequences import DeviceSequences
from deepinfer.model.rope import inverse_frequencies, rope_table
from deepinfer.ops import reference
from deepinfer.ops.device import DeviceOps
from deepinfer.speculation.calibration import Calibration, Fit
from deepinfer.speculation.dspark import DSpark
from deepinfer.speculation.dspark_device import DeviceDSpark

SLOTS, SNAPSHOTS, PAD, MAX_LEN = 8, 2, 3, 256
Choose = Callable[[int, Tensor], np.ndarray]


def layout_of(config: V41Config, dtype: str, depth: int) -> CacheLayout:
    return CacheLayout.of(
        config,
        dtype=dtype,
        block_tokens=16,
        num_draft_layers=config.num_nextn_predict_layers,
        backtrack=depth + 1,
    )


def cache_of(config: V41Config, layout: CacheLayout, device: str = "cpu") -> ModelCache:
    """A slot of padding behind those of sequences; no blocks, which drafters do not look at."""
    cache = ModelCache(config, layout, num_blocks=0, num_slots=SLOTS + 1, num_snapshots=SNAPSHOTS, device=device)
    cache.state.fill_(NAN_BYTE)
    return cache


def calibration(block_size: int) -> Calibration:
    """Different at every position and temperature."""
    numbers = np.arange(block_size)
    fits = [
        Fit(
            verify="coupled",
            temperature=temperature,
            scale=tuple((0.5 + 0.1 * numbers + temperature).tolist()),
            offset=tuple((0.3 - 0.2 * numbers).tolist()),
        )
        for temperature in (0.0, 1.0)
    ]
    return Calibration(tuple(fits), block_size)


@dataclass
class Sampling:
    """How slots are served."""

    temperature_N: np.ndarray
    seed_N: np.ndarray

    def temperatures(self, slots: np.ndarray) -> np.ndarray:
        return self.temperature_N[slots]

    def seeds(self, slots: np.ndarray) -> np.ndarray:
        return self.seed_N[slots]


def sampling() -> Sampling:
    """Every other slot is greedy; seeds fill their 64 bits."""
    number_N = np.arange(SLOTS + 1)
    seed_N = (number_N.astype(np.uint64) + np.uint64(1)) * np.uint64(0xB5297A4D8F3C1D27)
    return Sampling(np.where(number_N % 2 == 0, 0.0, 1.0), seed_N)


def wide_config() -> V41Config:
    """As narrow as kernels for Hopper take: heads, experts and bias of the release."""
    return msgspec.structs.replace(
        k6_model().config,
        hidden_size=1024,
        num_attention_heads=64,
        q_lora_rank=256,
        o_groups=8,
        o_lora_rank=128,
        index_n_heads=32,
        moe_intermediate_size=256,
        n_routed_experts=128,
        dspark_n_routed_experts=128,
        dspark_num_experts_per_tok=3,
        dspark_markov_rank=256,
    )


def draft_weights(config: V41Config, device: str = "cpu") -> dict[str, Tensor]:
    """Invented, as stored: what the draft module reads, embedding and head included."""
    specs = (spec for spec in weight_specs(config) if spec.group in ("embed", "head", "draft"))
    return dummy_stored(config, [spec.name for spec in specs], device=device)


def trunk_of(config: V41Config, stored: dict[str, Tensor], dtype: str, device: str = "cpu") -> FusedModel:
    """Of a main model only what the draft module shares with it."""
    numbers: torch.dtype = getattr(torch, dtype)
    frequencies = inverse_frequencies(config, compressed=False)
    ropes = {False: rope_table(frequencies, MAX_LEN, working_dtype(numbers)).to(device)}
    embed, head = (stored[f"{name}.weight"].to(device, numbers) for name in ("embed", "head"))
    trunk: Any = SimpleNamespace(
        embed_VD=embed,
        head_VD=head,
        device=torch.device(device),
        dtype=numbers,
        rows=SimpleNamespace(ropes_P2F=ropes),
    )
    return trunk


def device_drafter(
    config: V41Config,
    stored: dict[str, Tensor],
    ops: DeviceOps,
    dtype: str,
    *,
    depth: int,
    device: str = "cpu",
    graphs: bool = False,
) -> DeviceDSpark:
    layout = layout_of(config, dtype, depth)
    trunk = trunk_of(config, stored, dtype, device)
    model = FusedDSpark(config, stored, ops, trunk, layout=layout)
    how = sampling()
    return DeviceDSpark(
        model,
        cache_of(config, layout, device),
        depth=depth,
        calibration=calibration(config.dspark_block_size),
        temperatures=how.temperatures,
        seeds=how.seeds,
        graphs=graphs,
    )


def cpu_drafter(small: SmallModel, dtype: str, depth: int) -> DSpark:
    config = small.config
    return DSpark(
        DSparkModel(config, small.weights, reference(), numerics="full", dtype=dtype),
        cache_of(config, layout_of(config, dtype, depth)),
        depth=depth,
        calibration=calibration(config.dspark_block_size),
        temperatures=sampling().temperatures,
    )


@lru_cache(maxsize=4)
def features_of(config: V41Config, length: int, seed: int) -> Tensor:
    """float64 [length, F]"""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        length, config.hidden_size * len(config.dspark_target_layer_ids), generator=generator, dtype=torch.float64
    )


@torch.inference_mode()
def chosen_by_the_host(
    drafter: DeviceDSpark, slots: np.ndarray, newest_S: np.ndarray, position_S: np.ndarray, choose: Choose
) -> Drafts:
    """A round of the device's module whose tokens the host chooses, given float32 logits [S, V] of each slot of the blocks."""
    model, depth = drafter.model, drafter.depth
    newest, position, slots_S = to_device(
        {"newest": newest_S, "position": position_S, "slots": slots}, drafter.device
    ).values()
    block = model.block(newest, position, slots_S, drafter._floor_N[slots_S], drafter._rings)
    base_SKV = model.base_logits(block.normed_SQD, depth)
    going_S, previous, tokens = np.ones(len(slots), bool), [newest], []
    for number in range(depth):
        chosen_S = choose(number, model.biased(base_SKV[:, number], previous[-1]).float().cpu())
        going_S &= chosen_S >= 0
        tokens.append(np.where(going_S, chosen_S, -1))
        previous.append(to_device({"chosen": chosen_S}, drafter.device)["chosen"])
    evidence_SK = model.evidence(block.hidden_SQD[:, :depth], torch.stack(previous[:-1], 1))
    token_ids = np.stack(tokens, 1)
    chance_SK = drafter.calibration(evidence_SK.cpu().double().numpy(), drafter.temperatures(slots))
    return Drafts(token_ids, np.where(token_ids >= 0, chance_SK, np.float32(0)))


@dataclass
class Rig:
    """Drafters that see the same: sequence `slot` has the tokens `tokens_NL` and features invented for it."""

    config: V41Config
    drafters: list[DSpark | DeviceDSpark]
    tokens_NL: np.ndarray

    def step(self, *pieces: tuple[int, int, int], **fields: list[int] | list[list[int]]) -> StepInput:
        """(slot, first, end): rows of one step, observed by all drafters; `fields` of StepInput besides."""
        tokens = self.tokens_NL[:, PAD:].tolist()
        step = make_step([(tokens[slot], first, end, slot, [0]) for slot, first, end in pieces])
        for name, values in fields.items():
            setattr(step, name, np.array(values, dtype=np.int64))
        features = torch.cat([features_of(self.config, MAX_LEN, slot)[first:end] for slot, first, end in pieces])
        for drafter in self.drafters:
            drafter.cache.bring_states(step)
            drafter.observe(step, features.to(drafter.cache.state.device, drafter.cache.dtype))
        return step

    def draft(self, number: int, sequences: list[tuple[int, int]], choose: Choose) -> Drafts:
        """Drafts by drafter `number` behind the first tokens of slots: (slot, how many)."""
        slots, lengths = (np.array(column) for column in zip(*sequences))
        drafter = self.drafters[number]
        if isinstance(drafter, DSpark):
            return drafter.draft(slots, self.tokens_NL, lengths, PAD, choose)
        return chosen_by_the_host(drafter, slots, self.tokens_NL[slots, PAD + lengths - 1], lengths - 1, choose)

    def on_device(self, sequences: list[tuple[int, int]], device: str = "cpu") -> DeviceSequences:
        """The same sequences as a device knows them; each may grow by seven tokens."""
        depth = self.drafters[-1].depth
        known = DeviceSequences(SLOTS, MAX_LEN, PAD + 1, depth=depth, device=device)
        for slot, length in sequences:
            known.admit(slot, self.tokens_NL[slot, PAD : PAD + length], min(length + 7, MAX_LEN))
        return known


def tokens_of(config: V41Config) -> np.ndarray:
    """int32 [N, L] of all slots, PAD columns of -1 before position 0."""
    rng = np.random.default_rng(7)
    tokens_NL = rng.integers(3, config.vocab_size - 100, (SLOTS, PAD + MAX_LEN)).astype(np.int32)
    tokens_NL[:, :PAD] = -1
    return tokens_NL
