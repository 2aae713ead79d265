"""The engine's model for an accelerator: the same steps and caches as `V41Model`, made of fused operations alone.

Weights stay packed as the release stores them. All index arithmetic of a step is done on the host before its first launch and
goes to the device in one copy; after that nothing waits for the device.

Legend: T rows of the step · N streams · D hidden · R sampled rows · V vocabulary · F draft features.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from deepinfer.arch.cache import CacheLayout, Numerics
from deepinfer.arch.config import V41Config
from deepinfer.arch.engram import engram_tables
from deepinfer.interfaces import StepInput
from deepinfer.model.cache_storage import ModelCache
from deepinfer.model.division import RowDivision
from deepinfer.model.fused import glue
from deepinfer.model.fused.attention import FusedAttention
from deepinfer.model.fused.dispatch import FusedDispatch
from deepinfer.model.fused.indexer import FusedIndexer
from deepinfer.model.fused.step_rows import FusedRows, RowMaker
from deepinfer.model.fused.stored_weights import (
    FusedSite,
    StoredSource,
    fused_attention,
    fused_engram,
    fused_experts,
    fused_site,
)
from deepinfer.model.fused.sublayers import FusedEngram, FusedExperts
from deepinfer.model.fused.tables import Elsewhere, FusedTables
from deepinfer.model.model_inputs import check_compact, class_table
from deepinfer.model.rope import inverse_frequencies, rope_table
from deepinfer.ops.device import DeviceOps
from deepinfer.ops.hyper_border import Border, Coefficients


@dataclass(frozen=True)
class FusedLayer:
    engram: FusedEngram | None
    attn_site: FusedSite
    attention: FusedAttention
    ffn_site: FusedSite
    experts: FusedExperts

    def serve(self) -> None:
        """Its part in a step of other ranks, where this one has no rows."""
        if self.engram is not None:
            self.engram.serve()
        self.experts.serve()


class FusedModel:
    """DeepSeek-V4.1 with quantised activations and packed caches (numerics "full") on `device`, in the layout's dtype.

    Kernels take bfloat16; the twins "float32" and "float64" too. `stored` are tensors by released name as a checkpoint stores
    them, scales included. `max_positions`: how long a sequence may grow, the config's limit by default. The rest, and what
    rows, `compact` and `division` mean, as for `V41Model`; `run_rows` takes rows of both kinds. `dispatch` and `tables` reach
    experts and n-gram rows of other ranks, which `stored` need not have. `elsewhere` is both of them: its `begin` comes before
    every `forward`, `run_rows` or `serve`, one of which each of these ranks runs when the others do. With `host_tables` the
    n-gram rows that are here lie in the host's memory, where the device reads them.
    """

    numerics: Numerics = "full"

    def __init__(
        self,
        config: V41Config,
        stored: Mapping[str, Tensor],
        ops: DeviceOps,
        *,
        layout: CacheLayout,
        device: torch.device | str = "cpu",
        token_classes: np.ndarray | None = None,
        compact: bool = False,
        max_positions: int | None = None,
        dispatch: FusedDispatch | None = None,
        division: RowDivision | None = None,
        tables: FusedTables | None = None,
        host_tables: bool = False,
    ) -> None:
        self.config, self.ops, self.layout, self.compact = config, ops, layout, compact
        self.dispatch, self.division, self.elsewhere = dispatch, division, Elsewhere.of(dispatch, tables)
        self.device = torch.device(device)
        check_compact(config, compact)
        assert layout.numerics == "full", "the caches must be laid out for this model"
        classes_V, self.pad_class = class_table(config, token_classes)
        self.dtype: torch.dtype = getattr(torch, layout.dtype)
        source = StoredSource(stored, ops, self.device, self.dtype)
        self.embed_VD, self.head_VD = source.plain("embed.weight"), source.plain("head.weight")
        self.norm_D = source.plain("norm.weight")
        engrams = _engrams(source, config, ops, tables, on_host=host_tables)
        self.layers = [
            _layer(source, config, ops, layer, dispatch, engrams.get(layer))
            for layer in range(config.num_hidden_layers)
        ]
        positions = config.max_position_embeddings if max_positions is None else max_positions
        frequencies = {kind: inverse_frequencies(config, compressed=kind) for kind in (False, True)}
        ropes = {kind: rope_table(f, positions, source.wide_dtype).to(self.device) for kind, f in frequencies.items()}
        self.rows = RowMaker(config, layout, ropes, self.device, compact)
        unread = torch.zeros(config.vocab_size, dtype=torch.int64)
        self.classes_V = (unread if classes_V is None else classes_V).to(self.device)

    @property
    def num_features(self) -> int:
        """Of a row, for the draft module: stream means at the inputs of its target layers."""
        return len(self.config.dspark_target_layer_ids) * self.config.hidden_size

    @torch.inference_mode()
    def forward(self, step: StepInput, cache: ModelCache) -> Tensor:
        """Final hidden states [T, D] of every row, before the last norm; caches are brought up to date."""
        return self._run(step, cache, None)

    @torch.inference_mode()
    def forward_with_features(self, step: StepInput, cache: ModelCache) -> tuple[Tensor, Tensor]:
        """`forward`, and the draft module's inputs [T, F]: stream means at the inputs of its target layers."""
        features_TF = self.embed_VD.new_empty(len(step.positions), self.num_features)
        return self._run(step, cache, features_TF), features_TF

    @torch.inference_mode()
    def serve(self) -> None:
        """This rank's part in a step of others, where it has no rows of its own. Long steps wait in it."""
        for layer in self.layers:
            layer.serve()

    @torch.inference_mode()
    def logits(self, hidden_RD: Tensor) -> Tensor:
        """float32 [R, V] of final hidden states."""
        normed = self.ops.norm_quantise(hidden_RD, self.norm_D, self.config.rms_norm_eps, normed=True, grid=False)
        return self.ops.bf16_linear(normed.normed_TD, self.head_VD, torch.float32)

    def _run(self, step: StepInput, cache: ModelCache, features_TF: Tensor | None) -> Tensor:
        cache.bring_states(step)
        shares = None if self.division is None else self.division.divide(step)
        return self.run_rows(*self.rows(step, cache, shares), cache, features_TF)

    def run_rows(self, rows: FusedRows, upper: FusedRows, cache: ModelCache, features_TF: Tensor | None) -> Tensor:
        """The layers over rows that are worked out already: `upper` from the boundary on. Fills `features_TF`, where given."""
        c, targets = self.config, list(self.config.dspark_target_layer_ids)
        indexer = FusedIndexer(c, self.ops, rows, cache)
        x_TND, out_TD = glue.embed_streams(self.embed_VD, rows.token_ids_T, c.hc_mult), None
        ended = glue.first_coefficients(x_TND)
        for number, layer in enumerate(self.layers):
            if layer.engram is not None:
                mixed_TND = self._mixed(x_TND, out_TD, ended)
                x_TND = layer.engram(mixed_TND, rows.ngram_ids_TG, self.classes_V, self.pad_class)
                out_TD = None
            begun = self._border(x_TND, out_TD, ended, layer.attn_site)
            if features_TF is not None and number in targets:
                self._note(begun.x_TND, rows, features_TF.unflatten(1, (-1, c.hidden_size))[:, targets.index(number)])
            if number == c.boundary:
                begun, rows = self._enter_upper(begun, rows, upper, cache, indexer)
            x_TND, out_TD, ended = self._layer(layer, begun, rows, cache, indexer)
        last = self.ops.hyper_border(
            x_TND, out_TD, ended, None, self.norm_D, *glue.border_constants(self.config), quantise=False, collapsed=True
        )
        return rows.spread(last.collapsed_TD)

    def _note(self, x_TND: Tensor, rows: FusedRows, out_TD: Tensor) -> None:
        """The streams' mean into some columns of the features, zeros for rows that are not here."""
        if rows.kept_T is None and not rows.divided:
            self.ops.stream_mean(x_TND, out_TD)
        else:
            out_TD.copy_(rows.spread(self.ops.stream_mean(x_TND, torch.empty_like(x_TND[:, 0]))))

    def _layer(
        self, layer: FusedLayer, begun: Border, rows: FusedRows, cache: ModelCache, indexer: FusedIndexer
    ) -> tuple[Tensor, Tensor, Coefficients]:
        """The streams, output and coefficients with which the layer's second site ends."""
        assert begun.coefficients is not None
        if not rows.num_rows:
            layer.attention.store_others(rows, cache)
            layer.experts.serve()
            return begun.x_TND, begun.normed_TD, begun.coefficients
        out_TD = layer.attention(begun.normed_TD, begun.quantised_TD, rows, cache, indexer)
        begun = self._border(begun.x_TND, out_TD, begun.coefficients, layer.ffn_site)
        assert begun.coefficients is not None
        return begun.x_TND, layer.experts(begun.normed_TD, begun.quantised_TD), begun.coefficients

    def _enter_upper(
        self, begun: Border, rows: FusedRows, upper: FusedRows, cache: ModelCache, indexer: FusedIndexer
    ) -> tuple[Border, FusedRows]:
        """At the boundary: its entries are made of every row, whatever rows go on."""
        if upper.kept_T is not None:
            self.layers[self.config.boundary].attention.compress_all(begun.normed_TD, rows, cache)
            begun = glue.border_rows(begun, upper.kept_T)
        indexer.go_on(upper)
        return begun, upper

    def _border(self, x_TND: Tensor, out_TD: Tensor | None, ended: Coefficients, begun: FusedSite) -> Border:
        return self.ops.hyper_border(
            x_TND, out_TD, ended, begun.site, begun.norm_D, *glue.border_constants(self.config)
        )

    def _mixed(self, x_TND: Tensor, out_TD: Tensor | None, ended: Coefficients) -> Tensor:
        """The streams alone, where something else than a site comes next."""
        if out_TD is None:
            return x_TND
        return self.ops.hyper_border(x_TND, out_TD, ended, None, None, *glue.border_constants(self.config)).x_TND


def _engrams(
    source: StoredSource, config: V41Config, ops: DeviceOps, tables: FusedTables | None, *, on_host: bool
) -> dict[int, FusedEngram]:
    """By layer."""
    found = {}
    for number, table in enumerate(engram_tables(config)):
        weights = fused_engram(source, config, f"layers.{table.layer}.", table, on_host=on_host)
        found[table.layer] = FusedEngram(config, ops, weights, number, tables)
    return found


def _layer(
    source: StoredSource,
    config: V41Config,
    ops: DeviceOps,
    layer: int,
    dispatch: FusedDispatch | None,
    engram: FusedEngram | None,
) -> FusedLayer:
    prefix = f"layers.{layer}."
    held = range(config.n_routed_experts) if dispatch is None else dispatch.experts_of(layer)
    experts = fused_experts(source, prefix, held, config.num_experts_per_tok)
    return FusedLayer(
        engram=engram,
        attn_site=fused_site(source, prefix, "attn"),
        attention=FusedAttention(config, ops, fused_attention(source, config, prefix, layer), layer),
        ffn_site=fused_site(source, prefix, "ffn"),
        experts=FusedExperts(config, ops, experts, layer, dispatch),
    )
