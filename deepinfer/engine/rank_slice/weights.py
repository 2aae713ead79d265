"""Weights of a rank's share without a checkpoint: made on its device tensor by tensor, as the model asks for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from deepinfer.arch.config import V41Config
from deepinfer.arch.tensors import TensorSpec
from deepinfer.engine.rank_slice.share import RankShare, share_config
from deepinfer.model.checkpoint.dummy import Pools
from deepinfer.model.checkpoint.weights import weight_specs

_ROUTER = (".ffn.gate.weight", ".ffn.gate.bias", ".ffn.gate.bias_vl")  # reach over all experts on every rank


class DummyShare(Mapping[str, Tensor]):
    """Stored tensors by released name, scales included. Each exists while its user holds it, and once more while it is re-laid.

    `config` is that of the whole model: routers choose among all of its experts.
    """

    def __init__(self, config: V41Config, share: RankShare, device: torch.device | str, seed: int = 0) -> None:
        specs = weight_specs(share_config(config, share))
        self._specs = {spec.name: _whole_router(spec, config) for spec in specs}
        self._pools = Pools(seed, device)
        self._last: dict[
            str, Tensor
        ] = {}  # weight and scale of the tensor asked for last, which are asked for together

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._last:
            self._last = self._pools.stored(self._specs[_weight_of(name)])
        return self._last[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)


def _weight_of(name: str) -> str:
    return name.removesuffix(".scale") + ".weight" if name.endswith(".scale") else name


def _whole_router(spec: TensorSpec, config: V41Config) -> TensorSpec:
    if not spec.name.endswith(_ROUTER):
        return spec
    draft = spec.name.startswith("mtp.")
    experts = config.dspark_n_routed_experts if draft else config.n_routed_experts
    return TensorSpec(spec.name, spec.dtype, (experts, *spec.shape[1:]), spec.group)
