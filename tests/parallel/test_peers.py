"""What a group of torch.distributed gives, of one rank: shapes and results; groups of several are run elsewhere."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from deepinfer.parallel.groups import WorldShape, make_groups
from deepinfer.parallel.peers import PeerLost, TorchPeers, finished
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


@pytest.mark.parametrize(
    "text",
    [
        "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:16293.\nThis is typically caused by a crash",
        "wait timeout after 30000ms, keys: /0//cpu//0/1",
    ],
)
def test_a_call_that_fails_because_of_others_says_that_they_are_lost(text: str) -> None:
    def call() -> None:
        raise RuntimeError(text)

    with pytest.raises(PeerLost) as lost:
        finished(call)
    assert str(lost.value) == text.splitlines()[0]


def test_tensors_of_our_own_that_are_wrong_are_nobody_elses_end(alone: TorchPeers) -> None:
    x, group = torch.zeros(3), alone.group
    for call in (
        lambda: dist.all_to_all_single(torch.zeros(3), x, [2], [3], group=group),
        lambda: dist.all_gather([torch.zeros(2)], x, group=group),
        lambda: dist.broadcast(x.to_sparse(), 0, group=group),
    ):
        with pytest.raises((RuntimeError, ValueError)) as wrong:
            finished(call)
        assert not isinstance(wrong.value, PeerLost), wrong.value


def test_ranks_that_cannot_make_their_groups_have_lost_somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise dist.DistNetworkError("failed to connect: connection reset by peer")

    monkeypatch.setattr(dist, "init_process_group", broken)
    with pytest.raises(PeerLost, match="connection reset by peer"):
        make_groups(dist.HashStore(), 0, WorldShape(attention_dp=2, context=1, expert=2), kind="cpu")
