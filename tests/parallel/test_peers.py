"""What a group of torch.distributed gives, of one rank: shapes and results; groups of several are run elsewhere."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from deepinfer.parallel.peers import TorchPeers
from deepinfer.parallel.rehearsed_peers import RehearsedPeers


@pytest.fixture
def alone() -> Iterator[TorchPeers]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield TorchPeers(dist.group.WORLD)
    dist.destroy_process_group()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("shape", [(3,), (2, 5), (4, 2, 3)])
def test_a_gather_that_runs_beside_its_caller_is_the_other_one(alone: TorchPeers, shape: tuple[int, ...]) -> None:
    x = torch.randint(0, 256, shape, dtype=torch.uint8)
    found = alone.begin_all_gather(x.T if x.dim() == 2 else x)()
    assert torch.equal(found, alone.all_gather(x.T if x.dim() == 2 else x)) and found.shape[0] == 1


def test_rehearsed_peers_give_the_shapes_of_real_ones() -> None:
    peers, x = RehearsedPeers(1, 3), torch.arange(6).view(3, 2)
    assert peers.begin_all_gather(x)().shape == (3, 3, 2) and torch.equal(peers.all_gather(x)[2], x)
    assert torch.equal(peers.all_to_all(x), x) and torch.equal(peers.exchange(x, [1, 1, 1], [1, 1, 1])(), x)
