"""The fused model beside the engine's model: one pair of every shape, fed the same steps."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import torch
from small_models import FIXTURES, Engine, SmallModel, k6_model
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.config.facts import shipped_folder
from deepinfer.model.checkpoint.dummy import dummy_stored
from deepinfer.model.checkpoint.reader import Checkpoint, open_checkpoint
from deepinfer.model.checkpoint.weights import load_stored, load_weights
from deepinfer.model.fused.model import FusedModel
from deepinfer.model.v41 import V41Model
from deepinfer.ops import reference
from deepinfer.ops.device import NAMES, DeviceOps, twins
from deepinfer.ops.fp4_experts import Fp4Experts
from deepinfer.ops.linear import linear
from deepinfer.ops.swiglu_quantise import swiglu_quantise

SNAPSHOTS = 4
WAITING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::is_nonzero", "aten::equal"}


@dataclass
class Pair:
    """`plain` is V41Model on reference ops, `fused` the fused model; both with caches full of NaN bytes."""

    plain: Engine
    fused: Engine

    def step(self, *pieces: tuple[list[int], int, int, int], **fields: Any) -> tuple[Tensor, Tensor]:
        """Hidden rows of one step by both."""
        plain, fused = (engine.step(*pieces, **fields) for engine in (self.plain, self.fused))
        return plain, fused

    def forget(self) -> None:
        self.plain.forget()
        self.fused.forget()


@lru_cache(maxsize=1)
def trained() -> Checkpoint:
    """The model that is shipped."""
    return open_checkpoint(shipped_folder("v41_tiny"))


@lru_cache(maxsize=1)
def golden() -> Checkpoint:
    """Small windows and lists, so that short sequences go beyond all of them."""
    return open_checkpoint(FIXTURES / "golden" / "tiny_a")


@lru_cache(maxsize=4)
def pair(checkpoint: Callable[[], Checkpoint], dtype: str, compact: bool = False) -> Pair:
    """Room to take six tokens back, and for four snapshots."""
    opened = checkpoint()
    config, classes = opened.config, opened.engram_classes
    layout = CacheLayout.of(config, dtype=dtype, block_tokens=16, backtrack=6)
    common = {"layout": layout, "token_classes": classes, "compact": compact}
    small = SmallModel(config, load_weights(opened), classes)
    plain = V41Model(config, small.weights, reference(), numerics="full", dtype=dtype, **common)
    fused = FusedModel(config, load_stored(opened), row_by_row(), **common, max_positions=1024)
    return Pair(*(Engine(model, num_snapshots=SNAPSHOTS) for model in (plain, fused)))


def wide_config() -> V41Config:
    """The least that the Hopper kernels take: their head counts and head dims, everything else small. Weights are invented."""
    return msgspec.structs.replace(
        k6_model().config,
        hidden_size=1024,
        num_attention_heads=64,
        q_lora_rank=512,
        o_lora_rank=128,
        index_n_heads=32,
        moe_intermediate_size=256,
        n_routed_experts=128,
        num_experts_per_tok=6,
        dspark_n_routed_experts=128,
        dspark_num_experts_per_tok=6,
        dspark_markov_rank=256,
    )


@lru_cache(maxsize=1)
def wide_stored(device: str = "cuda") -> dict[str, Tensor]:
    """Weights of `wide_config` as a checkpoint stores them, made on the device."""
    return dummy_stored(wide_config(), device=device)


def wide_classes() -> np.ndarray:
    config = wide_config()
    return np.arange(config.vocab_size, dtype=np.int64) % config.engram_compressed_vocab_size


def wide_model(ops: DeviceOps, device: str = "cuda", *, backtrack: int = 6, compact: bool = False) -> FusedModel:
    """In bfloat16, with room for two draft layers, blocks of 128 tokens and 2,048 positions."""
    config = wide_config()
    layout = CacheLayout.of(
        config,
        numerics="full",
        dtype="bfloat16",
        block_tokens=128,
        backtrack=backtrack,
        num_draft_layers=config.num_nextn_predict_layers,
    )
    return FusedModel(
        config,
        wide_stored(device),
        ops,
        layout=layout,
        device=device,
        token_classes=wide_classes(),
        compact=compact,
        max_positions=2048,
    )


def row_by_row() -> DeviceOps:
    """The twins, with products of experts whose rows do not depend on how many there are: as kernels have them.

    Rows of no expert are NaN.
    """

    def product(x_TK: Tensor, rows_P: Tensor | None, starts_E1: Tensor, weight: Fp4Experts) -> Tensor:
        x_PK = x_TK if rows_P is None else x_TK[rows_P.long()]
        wide = torch.promote_types(x_TK.dtype, torch.float32)
        out_PN = x_TK.new_full((len(x_PK), weight.codes_ENB.shape[1]), torch.nan)
        for expert, (first, end) in enumerate(pairwise(starts_E1.tolist())):
            if first < end:
                out_PN[first:end] = linear(x_PK[first:end].to(wide), weight.dequantised(expert, wide)).to(x_TK.dtype)
        return out_PN

    def up(x: Tensor, rows: Tensor, starts: Tensor, weights: Tensor, w13: Fp4Experts, limit: float) -> Tensor:
        return swiglu_quantise(product(x, rows, starts, w13), weights, limit)

    return replace(twins(), fp4_grouped_linear=product, fp4_experts_up=up)


def watched(ops: DeviceOps, note: Callable[[str, tuple[Any, ...]], None]) -> DeviceOps:
    """The operations, each call of which is noted with its arguments; dispatch modes do not see what is inside."""

    def watch(name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            note(name, (*args, *kwargs.values()))
            with _disable_current_modes():
                return operation(*args, **kwargs)

        return call

    return replace(ops, **{name: watch(name, getattr(ops, name)) for name in NAMES})


class NoWaiting(TorchDispatchMode):
    """Fails where the model, outside of its operations, has torch look at numbers to know what to do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func.name() not in WAITING, f"{func.name()} waits for the device"
        indices = args[1] if func.name() in ("aten::index.Tensor", "aten::index_put_") else ()
        assert not any(x is not None and x.dtype == torch.bool for x in indices), "a mask is counted on the host"
        return func(*args, **(kwargs or {}))
