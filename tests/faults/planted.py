"""Two dozen ways to get the model subtly wrong. Each function plants one into the code through monkeypatch.

Legend as in the modules that are changed.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from deepinfer import formats
from deepinfer.model import attention, layer, step_rows, v41, windows
from deepinfer.model.attention import Attention
from deepinfer.model.layer import Site
from deepinfer.model.rope import inverse_frequencies
from deepinfer.model.selection import Selector
from deepinfer.model.step_rows import StepRows
from deepinfer.ops import attention as attention_op
from deepinfer.ops import compress, experts, hyper, index, linear, rotate, router, rows

Patch = pytest.MonkeyPatch


def wrapped(patch: Patch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace owner.name by change(original, *args)."""
    original = getattr(owner, name)
    patch.setattr(owner, name, lambda *args, **kwargs: change(original, *args, **kwargs))


def keys_in_ring_order(patch: Patch) -> None:
    def change(original: Callable, *args: Any) -> Any:
        window = original(*args)
        order = window.inner_TW.argsort(dim=1)
        sort = lambda x: x.gather(1, order)  # noqa: E731
        return dataclasses.replace(
            window, outer_TW=sort(window.outer_TW), inner_TW=sort(window.inner_TW), mask_TW=sort(window.mask_TW)
        )

    wrapped(patch, windows, "_ring_rows", change)


def ring_one_slot_short(patch: Patch) -> None:
    """Positions wrap one slot early, on writing and on reading."""
    for reader in ("_ring_rows", "_chunk"):
        wrapped(patch, windows, reader, lambda original, *args: original(*args[:-1], args[-1] - 1))
    wrapped(patch, step_rows, "ring_writes", lambda original, step, slots, *args: original(step, slots - 1, *args))


def window_one_key_short(patch: Patch) -> None:
    def shorter(original: Callable, *args: Any) -> Any:
        found = original(*args)
        found.mask_TW[:, 0] = False
        return found

    wrapped(patch, windows, "_ring_rows", shorter)
    wrapped(patch, windows, "_chunk", shorter)


def ties_to_the_highest_index(patch: Patch) -> None:
    def change(original: Callable, scores: Tensor, count: int) -> Tensor:
        entries = scores.shape[1]
        turned = original(scores.flip(1), count)
        return torch.where(turned >= 0, entries - 1 - turned, entries + 1).sort(1).values.masked_fill(turned < 0, -1)

    wrapped(patch, index, "best_entries", change)


def stale_index_keys_at_even_positions(patch: Patch) -> None:
    def change(original: Callable, self: Selector, number: int, q: Tensor, weight: Tensor) -> None:
        kept = dict(self._cache.index_rows)
        if self._config.ratio(number) == 2 and not len(self._rows.entries[2].rows_E):
            self._cache.index_rows[number] = kept[self._config.candidate_source_layer_id][:, : kept[number].shape[1]]
        original(self, number, q, weight)
        self._cache.index_rows.update(kept)

    wrapped(patch, Selector, "choose", change)


def mixing_matrix_transposed(patch: Patch) -> None:
    wrapped(patch, hyper, "sinkhorn", lambda original, *args: original(*args).transpose(1, 2))


def one_sinkhorn_round_less(patch: Patch) -> None:
    wrapped(patch, hyper, "sinkhorn", lambda original, logits, eps, rounds: original(logits, eps, rounds - 1))


def collapse_with_this_sites_weights(patch: Patch) -> None:
    def call(self: Site, x: Tensor, mix: Tensor, body: Callable) -> tuple[Tensor, Tensor]:
        ops, w, c = self.ops, self.weights, self.config
        raw = ops.linear(x.flatten(1), w.fn_CX)
        read, mixing, write = ops.hyper_coefficients(
            x, raw, w.base_C, w.scale_3, c.rms_norm_eps, c.hc_eps, c.hc_sinkhorn_iters
        )
        out = body(ops.rms_norm(ops.hyper_collapse(x, read), w.norm_D, c.rms_norm_eps))
        return ops.hyper_mix(x, out, mixing, write), read

    patch.setattr(layer.Site, "__call__", call)


def sink_missing(patch: Patch) -> None:
    def change(original: Callable, *args: Any) -> Tensor:
        *others, sink, scale = args
        return original(*others, torch.full_like(sink, -torch.inf), scale)

    wrapped(patch, attention_op, "attention", change)


def inverse_rotation_missing(patch: Patch) -> None:
    wrapped(patch, rotate, "rotate", lambda original, x, rope, inverse=False: x if inverse else original(x, rope))


def entries_rotated_at_their_last_token(patch: Patch) -> None:
    def change(original: Callable, self: StepRows, ratio: int, rope: Any) -> Any:
        return original(self, ratio, lambda positions: rope(positions + ratio - 1))

    wrapped(patch, StepRows, "_entry_rows", change)


def entries_visible_one_token_early(patch: Patch) -> None:
    def change(original: Callable, self: StepRows, ratio: int, rope: Any) -> Any:
        found = original(self, ratio, rope)
        return dataclasses.replace(found, visible_T=(self.positions_T + 2) // ratio) if ratio == 2 else found

    wrapped(patch, StepRows, "_entry_rows", change)


def candidates_ignored(patch: Patch) -> None:
    patch.setattr(index, "keep_candidates", lambda scores, candidates, size: scores)


def newest_block_not_forced(patch: Patch) -> None:
    def change(original: Callable, scores: Tensor, visible: Tensor, size: int, count: int) -> Tensor:
        return original(scores, torch.zeros_like(visible), size, count)

    wrapped(patch, index, "candidate_blocks", change)


def routing_weight_from_biased_score(patch: Patch) -> None:
    def change(original: Callable, scores: Tensor, bias: Tensor, *args: Any) -> Any:
        return original(scores + bias, torch.zeros_like(bias), *args)

    wrapped(patch, router, "choose_experts", change)


def routing_weight_after_the_last_product(patch: Patch) -> None:
    def change(original: Callable, x: Tensor, picks: Tensor, weights: Tensor, *args: Any) -> Tensor:
        one = torch.ones_like(weights[:, :1])
        parts = [original(x, picks[:, k : k + 1], one, *args) * weights[:, k, None] for k in range(picks.shape[1])]
        return torch.stack(parts).sum(0)

    wrapped(patch, experts, "routed_experts", change)


def router_uses_the_image_bias(patch: Patch) -> None:
    source = v41.WeightSource
    original = source.wide
    patch.setattr(source, "wide", lambda self, name: original(self, name.replace("gate.bias", "gate.bias_vl")))


def engram_pads_with_another_class(patch: Patch) -> None:
    def change(original: Callable, config: Any, classes: Any) -> tuple[Tensor, int]:
        table, pad = original(config, classes)
        return table, pad + 1

    wrapped(patch, v41, "class_table", change)


def window_key_rounded_before_rotation(patch: Patch) -> None:
    def down(self: Attention, x: Tensor, rope: Tensor) -> tuple[Tensor, Tensor]:
        ops, w, rank, eps = self.ops, self.weights, self.config.q_lora_rank, self.config.rms_norm_eps
        low = ops.linear(self.quantise(x), w.down_ND)
        key = formats.fake_window(ops.rms_norm(low[:, rank:], w.kv_norm_K, eps))
        return ops.rms_norm(low[:, :rank], w.q_norm, eps), ops.rotate(key, rope)

    patch.setattr(attention.Attention, "project_down", down)


def no_yarn(patch: Patch) -> None:
    def plain(config: Any, *, compressed: bool) -> Any:
        theta = config.compress_rope_theta if compressed else config.rope_theta
        return inverse_frequencies(msgspec.structs.replace(config, rope_theta=theta), compressed=False)

    patch.setattr(v41, "inverse_frequencies", plain)


def pair_gates_swapped(patch: Patch) -> None:
    wrapped(patch, compress, "pool_pairs", lambda original, values, gates: original(values, gates.flip(1)))


def partner_from_the_wrong_tail_slot(patch: Patch) -> None:
    def change(original: Callable, self: StepRows) -> Any:
        pairs = original(self)
        slots = self._layout.tail_slots
        return dataclasses.replace(pairs, tail_inner_E=(pairs.tail_inner_E + 1) % slots)

    wrapped(patch, step_rows.StepRows, "_pair_rows", change)


def hidden_slots_not_zeroed(patch: Patch) -> None:
    def change(original: Callable, kind: str, store: Tensor, outer: Tensor, inner: Tensor, dtype: Any) -> Tensor:
        return original(kind, store, outer.clamp(min=0), inner, dtype)

    wrapped(patch, rows, "read_rows", change)


def output_latent_not_quantised(patch: Patch) -> None:
    def out(self: Attention, out_THK: Tensor, rope: Tensor) -> Tensor:
        turned = self.ops.rotate(out_THK, rope, True)
        low = self.ops.grouped_linear(turned.reshape(len(turned), self.config.o_groups, -1), self.weights.wo_a_GRK)
        return self.ops.linear(low, self.weights.wo_b_DR)

    patch.setattr(attention.Attention, "project_out", out)


def products_follow_the_batch_width(patch: Patch) -> None:
    patch.setattr(linear, "linear", torch.nn.functional.linear)


def swiglu_limit_missing(patch: Patch) -> None:
    wrapped(patch, experts, "swiglu", lambda original, h, weight, limit: original(h * 1.0, weight, 1e9))
