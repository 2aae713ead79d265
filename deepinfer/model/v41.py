"""The engine's model: flat steps of mixed prefill and decode rows over paged caches.

Legend: T rows of the step · N streams · D hidden · R sampled rows · V vocabulary · F draft features.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.cache import CacheLayout, Numerics
from deepinfer.arch.config import V41Config
from deepinfer.arch.engram import engram_tables
from deepinfer.interfaces import StepInput
from deepinfer.model.attention import Attention
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.dispatch import ExpertDispatch, NgramTables
from deepinfer.model.division import RowDivision
from deepinfer.model.layer import Engram, Experts, Site
from deepinfer.model.layer_weights import LayerWeights, WeightSource, trunk_layer
from deepinfer.model.model_inputs import check_compact, class_table
from deepinfer.model.rope import RopeTable, inverse_frequencies
from deepinfer.model.selection import Selector
from deepinfer.model.step_rows import StepRows
from deepinfer.ops import Ops


class V41Model:
    """DeepSeek-V4.1 in one `dtype` ("float32", "float64", "bfloat16") and one `numerics`.

    `weights` are dequantised tensors by checkpoint name. `token_classes` int64 [V] is the engram's class of every token id,
    needed where the config has engram layers. A row's results depend on that row's sequence alone: not on the batch, nor on how
    its prompt was cut into steps. With `compact`, rows before a step's `upper_from` are not computed in the layers from the
    boundary on: their hidden states, and features from there, are zeros; everything else is the same. With a `division` ranks
    share the rows of steps; each of them returns those of all rows and writes all of its caches. `dispatch` and `tables` reach
    experts and n-gram rows of other ranks, which `weights` need not have; each of these ranks must run `forward` or `serve`
    when the others do.
    """

    def __init__(
        self,
        config: V41Config,
        weights: Mapping[str, Tensor],
        ops: Ops,
        *,
        numerics: Numerics,
        dtype: str,
        layout: CacheLayout,
        token_classes: np.ndarray | None = None,
        compact: bool = False,
        division: RowDivision | None = None,
        dispatch: ExpertDispatch | None = None,
        tables: NgramTables | None = None,
    ) -> None:
        self.config, self.ops, self.numerics, self.layout, self.compact = config, ops, numerics, layout, compact
        self.division = division
        check_compact(config, compact)
        self.dtype: torch.dtype = getattr(torch, dtype)
        if self.dtype not in ops.dtypes:
            known = ", ".join(sorted(str(d).removeprefix("torch.") for d in ops.dtypes))
            raise ValueError(f"model.dtype={dtype}: the {ops.name} ops compute in {known} only; use kernels=reference")
        assert (layout.numerics, layout.dtype) == (numerics, dtype), "the caches must be laid out for this model"
        source = WeightSource(weights, self.dtype)
        hashes = {table.layer: table for table in engram_tables(config)}
        held = {} if dispatch is None else {i: dispatch.experts_of(i) for i in range(config.num_hidden_layers)}
        self.embed_VD, self.head_VD = source("embed.weight"), source("head.weight")
        self.norm_D = source("norm.weight")
        layers = [trunk_layer(source, config, i, hashes.get(i), held.get(i)) for i in range(config.num_hidden_layers)]
        self.layers = [Layer(config, ops, w, i, numerics, dispatch, tables) for i, w in enumerate(layers)]
        self.ropes = {
            kind: RopeTable(inverse_frequencies(config, compressed=kind), source.wide_dtype) for kind in (False, True)
        }
        self.classes_V, self.pad_class = class_table(config, token_classes)

    @torch.inference_mode()
    def forward(self, step: StepInput, cache: ModelCache) -> Tensor:
        """Final hidden states [T, D] of every row, before the last norm; caches are brought up to date."""
        return self._run(step, cache, None)

    @torch.inference_mode()
    def forward_with_features(self, step: StepInput, cache: ModelCache) -> tuple[Tensor, Tensor]:
        """`forward`, and the draft module's inputs [T, F]: stream means at the inputs of its target layers."""
        features: list[Tensor] = []
        hidden_TD = self._run(step, cache, features)
        return hidden_TD, torch.cat(features, dim=-1)

    @torch.inference_mode()
    def serve(self) -> None:
        """This rank's part in a `forward` of others, where it has no rows of its own."""
        for layer in self.layers:
            if layer.engram is not None:
                layer.engram.serve()
            layer.experts.serve()

    @torch.inference_mode()
    def logits(self, hidden_RD: Tensor) -> Tensor:
        """float32 [R, V] of final hidden states."""
        normed = self.ops.rms_norm(hidden_RD, self.norm_D, self.config.rms_norm_eps)
        return self.ops.linear(normed, self.head_VD).float()

    def _run(self, step: StepInput, cache: ModelCache, features: list[Tensor] | None) -> Tensor:
        c, ops = self.config, self.ops
        cache.bring_states(step)
        shares = None if self.division is None else self.division.divide(step)
        rows = StepRows(step, c, self.layout, self.ropes, cache.num_slots, shares)
        selector = Selector(c, ops, rows, cache)
        classes_TG = self._token_classes(rows.ngram_ids_TG)
        x_TND = self.embed_VD[rows.token_ids_T].unsqueeze(1).repeat(1, c.hc_mult, 1)
        mix_TN = first_stream(x_TND)
        for number, layer in enumerate(self.layers):
            if layer.engram is not None:
                x_TND = layer.engram(x_TND, classes_TG)
            if features is not None and number in c.dspark_target_layer_ids:
                mean_TD = ops.hyper_collapse(x_TND, torch.full_like(mix_TN, 1 / c.hc_mult))
                features.append(rows.spread(mean_TD))
            if number == c.boundary:
                x_TND, mix_TN, rows = self._enter_upper(x_TND, mix_TN, rows, cache, selector)
            if len(x_TND):
                x_TND, mix_TN = layer.attn_site(
                    x_TND,
                    mix_TN,
                    lambda u: layer.attention(u, rows, cache, selector),  # noqa: B023
                )
                x_TND, mix_TN = layer.ffn_site(x_TND, mix_TN, layer.experts)
            else:
                layer.attention.store(rows, cache)
                layer.experts.serve()
        return rows.spread(ops.hyper_collapse(x_TND, mix_TN))

    def _enter_upper(
        self, x_TND: Tensor, mix_TN: Tensor, rows: StepRows, cache: ModelCache, selector: Selector
    ) -> tuple[Tensor, Tensor, StepRows]:
        """At the boundary: its entries are made of every row, whatever rows go on."""
        upper = rows.upper(compact=self.compact)
        if upper.kept_T is not None:
            layer = self.layers[self.config.boundary]
            layer.attention.compress_all(layer.attn_site.read(x_TND, mix_TN), rows, cache)
            x_TND, mix_TN = x_TND[upper.kept_T], mix_TN[upper.kept_T]
        selector.go_on(upper)
        return x_TND, mix_TN, upper

    def _token_classes(self, ngram_ids_TG: Tensor) -> Tensor:
        """Classes of a row's own and earlier tokens; before the sequence the pad token's."""
        if self.classes_V is None:
            return ngram_ids_TG
        ids = ngram_ids_TG[:, : self.config.engram_max_ngram_size]
        return torch.where(ids >= 0, self.classes_V[ids.clamp(min=0)], self.pad_class)


class Layer:
    """One layer of the trunk."""

    def __init__(
        self,
        config: V41Config,
        ops: Ops,
        weights: LayerWeights,
        layer: int,
        numerics: Numerics,
        dispatch: ExpertDispatch | None,
        tables: NgramTables | None,
    ) -> None:
        self.engram = None
        if weights.engram is not None:
            number, rows_NF = config.engram_layer_ids.index(layer), weights.engram.table_RD
            lookup = None if tables is None else tables.table(number, rows_NF)
            self.engram = Engram(config, ops, weights.engram, numerics, lookup)
        self.attn_site = Site(config, ops, weights.attn_site)
        self.attention = Attention(config, ops, weights.attention, layer, numerics)
        self.ffn_site = Site(config, ops, weights.ffn_site)
        self.experts = Experts(config, ops, weights.experts, numerics, layer, dispatch)


def first_stream(x_TND: Tensor) -> Tensor:
    """The read weights [T, N] handed to the first site: stream 0 alone."""
    dtype = torch.float64 if x_TND.dtype == torch.float64 else torch.float32
    mix_TN = torch.zeros(x_TND.shape[:2], dtype=dtype)
    mix_TN[:, 0] = 1
    return mix_TN
