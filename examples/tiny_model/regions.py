"""The pieces of the training forward, each a pure function small enough to compile well on its own.

A handful of compiled regions that all layers share compile in seconds; one graph of six layers takes minutes.

Legend: B rows · T tokens · N streams · D hidden · H heads · K head dim · J compressed entries · C chunks of 128 queries ·
S keys of a chunk (its own 128 and the 128 before) · E experts · I index heads.
`quantised` is a Python bool: a region compiles once for each value.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from examples.tiny_model.straight_through import activation, index_vector, main_key, window_key

NORM_EPS = 1e-20
MASKED = -1e30


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """float32 result."""
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS) * weight


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the interleaved pairs of the last dims; cos and sin hold one number per pair."""
    dims = 2 * cos.shape[-1]
    even, odd = x[..., -dims:].float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)
    return torch.cat((x[..., :-dims], turned.to(x.dtype)), -1)


def coefficients(x_BTND: Tensor, fn: Tensor, base: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Read weights [B, T, N], write weights [B, T, N] and the positive matrix [B, T, N, N] that Sinkhorn will balance."""
    n = x_BTND.shape[2]
    z = x_BTND.flatten(2).float()
    y = F.linear(z, fn) * torch.rsqrt(z.square().mean(-1, keepdim=True) + NORM_EPS)
    read = torch.sigmoid(y[..., :n] * scale[0] + base[:n]) + eps
    write = 2 * torch.sigmoid(y[..., n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = torch.softmax((y[..., 2 * n :] * scale[2] + base[2 * n :]).unflatten(-1, (n, n)), -1) + eps
    return read, write, comb


def collapse(x_BTND: Tensor, read_BTN: Tensor, norm: Tensor) -> Tensor:
    """Weighted sum of the streams, normed."""
    return rms_norm(stream_sum(x_BTND, read_BTN), norm).to(x_BTND.dtype)


def stream_sum(x_BTND: Tensor, read_BTN: Tensor) -> Tensor:
    """float32 [B, T, D]. Written out term by term: it fuses, where an einsum would be a batched product."""
    total = read_BTN[..., :1] * x_BTND[:, :, 0].float()
    for n in range(1, x_BTND.shape[2]):
        total = total + read_BTN[..., n : n + 1] * x_BTND[:, :, n].float()
    return total


def post_mix(x_BTND: Tensor, out_BTD: Tensor, write_BTN: Tensor, comb_BTMN: Tensor) -> Tensor:
    """X'_n = C_n · f + Σ_m B[m, n] · X_m."""
    n_streams = x_BTND.shape[2]
    streams = [x_BTND[:, :, m].float() for m in range(n_streams)]
    out = out_BTD.float()
    mixed = [
        write_BTN[..., n : n + 1] * out + sum(comb_BTMN[..., m, n].unsqueeze(-1) * streams[m] for m in range(n_streams))
        for n in range(n_streams)
    ]
    return torch.stack(mixed, 2).to(x_BTND.dtype)


def query_and_key(
    x_BTD: Tensor, wq_a: Tensor, q_norm: Tensor, wq_b: Tensor, wkv: Tensor, kv_norm: Tensor, cos: Tensor, sin: Tensor,
    heads: int, quantised: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Rotated queries [B, T, H, K], window keys [B, T, K] and the normed query latent [B, T, Q]."""
    entering = activation(x_BTD) if quantised else x_BTD
    latent = rms_norm(linear(entering, wq_a), q_norm).to(x_BTD.dtype)
    queries = linear(activation(latent) if quantised else latent, wq_b).unflatten(-1, (heads, -1))
    queries = rotate(queries, cos[:, None], sin[:, None])
    keys = rotate(rms_norm(linear(entering, wkv), kv_norm).to(x_BTD.dtype), cos, sin)
    return queries, window_key(keys) if quantised else keys, latent


def compress_pairs(
    x_BTD: Tensor, wkv: Tensor, wgate: Tensor, norm: Tensor, cos: Tensor, sin: Tensor, quantised: bool
) -> tuple[Tensor, Tensor]:
    """Ratio 2: main entries [B, T/2, K] and the latents they come from."""
    value = linear(x_BTD, wkv).float().unflatten(1, (-1, 2))
    gate = linear(x_BTD, wgate).float().unflatten(1, (-1, 2))
    first = torch.sigmoid(gate[:, :, 0] - gate[:, :, 1])
    latent = rms_norm(first * value[:, :, 0] + (1 - first) * value[:, :, 1], norm).to(x_BTD.dtype)
    entries = rotate(latent, cos[::2], sin[::2])
    return main_key(entries) if quantised else entries, latent


def compress_single(
    x_BTD: Tensor, wkv: Tensor, norm: Tensor, cos: Tensor, sin: Tensor, quantised: bool
) -> tuple[Tensor, Tensor]:
    """Ratio 1: one main entry per token, and its latent."""
    latent = rms_norm(linear(x_BTD, wkv), norm).to(x_BTD.dtype)
    entries = rotate(latent, cos, sin)
    return main_key(entries) if quantised else entries, latent


def index_keys(latent_BJK: Tensor, wk: Tensor, k_norm: Tensor, cos: Tensor, sin: Tensor, quantised: bool) -> Tensor:
    keys = rotate(rms_norm(linear(latent_BJK, wk), k_norm).to(latent_BJK.dtype), cos, sin)
    return index_vector(keys) if quantised else keys


def index_queries(
    x_BTD: Tensor, latent_BTQ: Tensor, wq_b: Tensor, proj: Tensor, cos: Tensor, sin: Tensor, heads: int, quantised: bool
) -> tuple[Tensor, Tensor]:
    """Index queries [B, T, I, K] and head weights [B, T, I] with the constant K^-½ · I^-½ folded in."""
    queries = linear(activation(latent_BTQ) if quantised else latent_BTQ, wq_b).unflatten(-1, (heads, -1))
    queries = rotate(queries, cos[:, None], sin[:, None])
    weights = linear(x_BTD, proj).float() * (queries.shape[-1] * heads) ** -0.5
    return index_vector(queries) if quantised else queries, weights


def index_loss(
    queries_BTIK: Tensor, weights_BTI: Tensor, keys_BJK: Tensor, mass_BTJ: Tensor, allowed_BTJ: Tensor
) -> Tensor:
    """KL(attention on compressed keys ‖ softmax of index scores), each row weighted by how much it attends to them at all."""
    rows, tokens, heads, _ = queries_BTIK.shape
    dots = torch.matmul(queries_BTIK.flatten(1, 2), keys_BJK.transpose(1, 2)).view(rows, tokens, heads, -1)
    scores = (dots.float().relu() * weights_BTI.unsqueeze(-1)).sum(2).masked_fill(~allowed_BTJ, MASKED)
    total = mass_BTJ.sum(-1)
    target = mass_BTJ / (total.unsqueeze(-1) + 1e-9)
    gap = target * ((target + 1e-9).log() - scores.log_softmax(-1))
    return gap.masked_fill(~allowed_BTJ, 0.0).sum() / (total.sum() + 1e-6)


def joint_softmax(
    local_BCQHS: Tensor,
    far_BCQHJ: Tensor | None,
    local_mask: Tensor,
    far_mask: Tensor | None,
    sink_H: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor | None]:
    """Softmax over window keys, compressed keys and the sink, which takes weight but gives no value.

    Masks lack the head axis.
    """
    local = (local_BCQHS.float() * scale).masked_fill(~local_mask.unsqueeze(3), MASKED)
    sink = sink_H.view(1, 1, 1, -1, 1)
    peak = torch.maximum(local.amax(-1, keepdim=True), sink)
    if far_BCQHJ is None or far_mask is None:
        peak = peak.detach()
        local = torch.exp(local - peak)
        return (local / (local.sum(-1, keepdim=True) + torch.exp(sink - peak))).to(local_BCQHS.dtype), None
    far = (far_BCQHJ.float() * scale).masked_fill(~far_mask.unsqueeze(3), MASKED)
    peak = torch.maximum(peak, far.amax(-1, keepdim=True)).detach()
    local, far = torch.exp(local - peak), torch.exp(far - peak)
    total = local.sum(-1, keepdim=True) + far.sum(-1, keepdim=True) + torch.exp(sink - peak)
    return (local / total).to(local_BCQHS.dtype), (far / total).to(far_BCQHJ.dtype)


def project_output(
    out_BTHK: Tensor, wo_a: Tensor, wo_b: Tensor, cos: Tensor, sin: Tensor, groups: int, quantised: bool
) -> Tensor:
    """Inverse rotation, block-diagonal low projection, output projection."""
    turned = rotate(out_BTHK, cos[:, None], -sin[:, None])
    grouped = turned.flatten(2).unflatten(-1, (groups, -1))
    low = torch.einsum("btgi,goi->btgo", grouped, wo_a.to(grouped.dtype).unflatten(0, (groups, -1))).flatten(2)
    return linear(activation(low) if quantised else low, wo_b)


def experts(
    x_BTD: Tensor, gate: Tensor, bias_E: Tensor, w13: Tensor, w2: Tensor, scaling: float, limit: float, quantised: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """All experts densely, times a mostly zero gate: at this width cheaper than any dispatch.

    Two experts per token. Returns the output, each expert's share of the choices [E] and the sequence balance loss.
    """
    count = len(bias_E)
    scores = torch.sqrt(F.softplus(F.linear(x_BTD.float(), gate)))
    biased = scores.detach() + bias_E
    best = biased.amax(-1, keepdim=True)
    second = biased.masked_fill(biased >= best, MASKED).amax(-1, keepdim=True)
    chosen = (biased >= second).float()
    weights = scores * chosen
    weights = scaling * weights / (weights.sum(-1, keepdim=True) + 1e-20)
    weights = torch.cat((weights, torch.ones_like(weights[..., :1])), -1)
    entering = activation(x_BTD) if quantised else x_BTD
    inner = w13.shape[2]
    hidden = linear(entering, w13.flatten(0, 2)).unflatten(-1, (count + 1, 2, inner))
    up = hidden[..., 1, :].float().clamp(-limit, limit)
    product = F.silu(hidden[..., 0, :].float().clamp(max=limit)) * up * weights.unsqueeze(-1)
    product = (activation(product) if quantised else product).to(x_BTD.dtype)
    out = linear(product.flatten(-2), w2.transpose(0, 1).flatten(1))
    load = chosen.mean((0, 1))
    share = (scores / scores.sum(-1, keepdim=True)).mean((0, 1))
    return out, load, count * (load.detach() / 2 * share).sum()


def engram(
    x_BTND: Tensor, memory_BTF: Tensor, wkv: Tensor, q_weight: Tensor, k_weight: Tensor, quantised: bool
) -> Tensor:
    """Add the gated value of hashed n-gram rows to every stream."""
    streams, width = x_BTND.shape[2:]
    memory = memory_BTF.to(x_BTND.dtype)
    key_value = linear(activation(memory) if quantised else memory, wkv).float()
    key = key_value[..., : streams * width].unflatten(-1, (streams, width))
    value = key_value[..., streams * width :]
    x = x_BTND.float()
    dot = (x * q_weight * key * k_weight).sum(-1)
    for side in (x, key):
        dot = dot * torch.rsqrt(side.square().mean(-1) + NORM_EPS)
    dot = dot * width**-0.5
    gate = torch.sigmoid(torch.sign(dot) * dot.abs().clamp_min(1e-6).sqrt())
    return (x + gate.unsqueeze(-1) * value.unsqueeze(2)).to(x_BTND.dtype)


def token_losses(
    hidden_BTD: Tensor, norm: Tensor, head: Tensor, targets_BT: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Cross entropy of every position, float32 [B · T], and the most likely token [B, T]."""
    logits = linear(rms_norm(hidden_BTD, norm).to(dtype), head).float()
    losses = F.cross_entropy(logits.flatten(0, 1), targets_BT.flatten(), reduction="none")
    return losses, logits.argmax(-1)
