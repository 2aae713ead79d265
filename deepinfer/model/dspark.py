"""The DSpark draft module: a block of drafts in one pass over the main model's features, then a first-order bias loop.

Its window keys come only from main-model features of accepted positions, never from drafts. A block's slots see those keys and
each other, in both directions. Slot 0 holds the newest token (at position t + 1, where t is the last position with a feature);
the other slots hold a noise token. Slot i proposes the token at position t + 2 + i.

Legend: S sequences · Q slots of a block · N streams · D hidden · H heads · K head dim · W window · F features · V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from deepinfer.arch.cache import Numerics
from deepinfer.arch.config import V41Config
from deepinfer.model.attention import KEY_BYTES, Attention
from deepinfer.model.dispatch import ExpertDispatch
from deepinfer.model.layer import Experts, Site
from deepinfer.model.layer_weights import LayerWeights, WeightSource, draft_layer
from deepinfer.model.rope import RopeTable, inverse_frequencies
from deepinfer.model.selection import row_blocks
from deepinfer.ops import Ops

WindowReader = Callable[[slice], Tensor]  # some of the S sequences → their keys [·, W, K] of one draft layer


@dataclass(frozen=True)
class BlockDrafts:
    """`tokens_SQ` int64, -1 from where nothing was chosen; `logits_SQV` they were chosen from; `confidence_SQ` in each slot's
    acceptance, before the sigmoid."""

    tokens_SQ: Tensor
    logits_SQV: Tensor
    confidence_SQ: Tensor


class DSparkModel:
    """The `mtp.*` part of a checkpoint. Embedding and head are the main model's, and so is `dispatch`."""

    def __init__(
        self,
        config: V41Config,
        weights: Mapping[str, Tensor],
        ops: Ops,
        *,
        numerics: Numerics,
        dtype: str,
        dispatch: ExpertDispatch | None = None,
    ) -> None:
        self.config, self.ops = config, ops
        source = WeightSource(weights, getattr(torch, dtype))
        last = f"mtp.{config.num_nextn_predict_layers - 1}."
        self.embed_VD, self.head_VD = source("embed.weight"), source("head.weight")
        self.main_proj_DF, self.main_norm_D = source("mtp.0.main_proj.weight"), source("mtp.0.main_norm.weight")
        self.norm_D = source(last + "norm.weight")
        self.markov_embed_VR = source(last + "markov_head.embed.weight")
        self.markov_head_VR = source(last + "markov_head.head.weight")
        self.confidence_1X = source(last + "confidence_head.proj.weight")
        self.layers = []
        for i in range(config.num_nextn_predict_layers):
            held = None if dispatch is None else dispatch.experts_of(config.num_hidden_layers + i)
            drafts = draft_layer(source, config, i, held)
            self.layers.append(DraftLayer(config, ops, drafts, i, numerics, dispatch))
        self.rope = RopeTable(inverse_frequencies(config, compressed=False), source.wide_dtype)
        self.quantise = ops.quantise_activation if numerics == "full" else lambda x: x

    def context_keys(self, features_TF: Tensor, positions_T: Tensor) -> list[Tensor]:
        """One [T, K] of rotated window keys per draft layer, not yet rounded: writing to a ring does that."""
        main_TD = self.ops.linear(self.quantise(features_TF), self.main_proj_DF)
        main_TD = self.ops.rms_norm(main_TD, self.main_norm_D, self.config.rms_norm_eps)
        rope_T2F = self.rope(positions_T)
        return [layer.attention.project_down(main_TD, rope_T2F)[1] for layer in self.layers]

    def block(self, newest_S: Tensor, positions_S: Tensor, windows: Sequence[WindowReader], mask_SW: Tensor) -> Tensor:
        """Hidden states [S, Q, D] of a block, before the norm.

        `newest_S`, `positions_S`: each sequence's newest token and its position t + 1. `windows`: per draft layer the keys of
        positions t - W + 1 … t in order, rounded as a ring holds them, zeros where `mask_SW` is False.
        """
        c, slots = self.config, self.config.dspark_block_size
        ids_SQ = torch.full((len(newest_S), slots), c.dspark_noise_token_id)
        ids_SQ[:, 0] = newest_S
        rope_T2F = self.rope((positions_S.unsqueeze(1) + torch.arange(slots)).flatten())
        x_TND = self.embed_VD[ids_SQ.flatten()].unsqueeze(1).repeat(1, c.hc_mult, 1)
        mix_TN = torch.zeros(x_TND.shape[:2], dtype=rope_T2F.dtype)
        mix_TN[:, 0] = 1
        for layer, window in zip(self.layers, windows, strict=True):
            x_TND, mix_TN = layer(x_TND, mix_TN, rope_T2F, window, mask_SW)
        return self.ops.hyper_collapse(x_TND, mix_TN).unflatten(0, (-1, slots))

    @torch.inference_mode()
    def serve(self) -> None:
        """This rank's part in a `block` of others, where it has no sequences of its own."""
        for layer in self.layers:
            layer.experts.serve()

    def draft(
        self, hidden_SQD: Tensor, newest_S: Tensor, choose: Callable[[int, Tensor], Tensor], depth: int | None = None
    ) -> BlockDrafts:
        """Proposals of the first `depth` slots of a block (None: all).

        `choose(slot, logits [S, V])` picks each slot's tokens [S], -1 for none; the next slot is biased by them.
        """
        ops = self.ops
        hidden_SQD = hidden_SQD[:, :depth]
        normed = ops.rms_norm(hidden_SQD.flatten(0, 1), self.norm_D, self.config.rms_norm_eps)
        base_SQV = ops.linear(normed, self.head_VD).unflatten(0, hidden_SQD.shape[:2])
        previous_S, going_S, tokens, logits, evidence = (
            newest_S,
            torch.ones_like(newest_S, dtype=torch.bool),
            [],
            [],
            [],
        )
        for slot in range(hidden_SQD.shape[1]):
            markov_SR = self.markov_embed_VR[previous_S]
            logits.append(base_SQV[:, slot] + ops.linear(markov_SR, self.markov_head_VR))
            evidence.append(torch.cat((hidden_SQD[:, slot], markov_SR), dim=-1))
            chosen_S = choose(slot, logits[-1])
            going_S = going_S & (chosen_S >= 0)
            tokens.append(chosen_S.masked_fill(~going_S, -1))
            previous_S = chosen_S.clamp(min=0)
        confidence_TQ = ops.linear(torch.cat(evidence), self.confidence_1X).view(-1, len(newest_S))
        return BlockDrafts(torch.stack(tokens, 1), torch.stack(logits, 1), confidence_TQ.t())


class DraftLayer:
    """A window-only layer whose queries also see every key of their own block."""

    def __init__(
        self,
        config: V41Config,
        ops: Ops,
        weights: LayerWeights,
        number: int,
        numerics: Numerics,
        dispatch: ExpertDispatch | None,
    ) -> None:
        layer = config.num_hidden_layers + number
        self.slots, self.ops = config.dspark_block_size, ops
        self.attn_site, self.ffn_site = Site(config, ops, weights.attn_site), Site(config, ops, weights.ffn_site)
        self.attention = Attention(config, ops, weights.attention, layer, numerics)
        self.experts = Experts(config, ops, weights.experts, numerics, layer, dispatch)
        self.sink_QH = weights.attention.sink_H.repeat(self.slots)

    def __call__(
        self, x_TND: Tensor, mix_TN: Tensor, rope_T2F: Tensor, window: WindowReader, mask_SW: Tensor
    ) -> tuple[Tensor, Tensor]:
        def attend(u_TD: Tensor) -> Tensor:
            return self.attend(u_TD, rope_T2F, window, mask_SW)

        x_TND, mix_TN = self.attn_site(x_TND, mix_TN, attend)
        return self.ffn_site(x_TND, mix_TN, self.experts)

    def attend(self, x_TD: Tensor, rope_T2F: Tensor, window: WindowReader, mask_SW: Tensor) -> Tensor:
        """All slots of a sequence share its keys, so they are further heads of one row: the window is read once."""
        att = self.attention
        latent_TR, key_TK = att.project_down(x_TD, rope_T2F)
        q_THK = att.project_queries(latent_TR, rope_T2F)[0]
        block_SQK = att.quantise_window(key_TK).unflatten(0, (-1, self.slots))
        q_SHK = q_THK.reshape(len(block_SQK), -1, q_THK.shape[-1])
        seen_SQ = torch.ones(block_SQK.shape[:2], dtype=torch.bool)
        out_SHK, scale = torch.empty_like(q_SHK), att.config.head_dim**-0.5
        window_bytes = mask_SW.shape[1] * key_TK.shape[1] * key_TK.itemsize
        for at in row_blocks(len(block_SQK), window_bytes, KEY_BYTES):
            keys = window(at), mask_SW[at], block_SQK[at], seen_SQ[at]
            out_SHK[at] = self.ops.attention(q_SHK[at], *keys, self.sink_QH, scale)
        return att.project_out(out_SHK.view(q_THK.shape), rope_T2F)
