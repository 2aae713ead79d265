"""Peers that count what context parallelism gathers from others."""

from torch import Tensor

from deepinfer.parallel.peers import Pending, TorchPeers


class CountingPeers(TorchPeers):
    """Counts the bytes that come from others."""

    received_bytes = 0

    def begin_all_gather(self, x: Tensor) -> Pending:
        self.received_bytes += (self.size - 1) * x.numel() * x.itemsize
        return super().begin_all_gather(x)
