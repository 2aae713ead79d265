"""Experts that change ranks between the steps of a running model change no bit of what it computes."""

from pathlib import Path

import pytest
import torch
from small_models import k6_model, random_tokens
from spread_models import Spread, skewed
from thread_peers import ThreadPeers, run_ranks
from torch import Tensor

from deepinfer.ops.native import native
from deepinfer.parallel.eplb.balancer import BALANCE, GATHER, BalancerState, EplbBalancer
from deepinfer.parallel.eplb.saved import read_placement

CUTS = list(range(2, 40, 2))


@pytest.mark.parametrize("redundant", [0, 4])
def test_a_rebalance_in_mid_traffic_changes_nothing(redundant: int) -> None:
    spread, small = Spread(native(), redundant=redundant), skewed(k6_model(), [4, 5])
    tokens = [random_tokens(small.config, 40, seed) for seed in range(2)]

    def rank(peers: ThreadPeers) -> tuple[Tensor, BalancerState, list[list[int]]]:
        dispatch = spread.dispatch(small, peers)
        engine = spread.engine(small, peers, dispatch)
        start = dispatch.placement.expert_LP.tolist()
        balancer = EplbBalancer(dispatch, peers, interval_steps=0, window_steps=4, budget_bytes=1, min_gain=0.01)
        rows, first = [], 0
        for number, end in enumerate([*CUTS, 40]):
            rows.append(engine.step((tokens[peers.rank], first, end, 0)))
            balancer.after_step(BALANCE if number == 3 else 0)
            first = end
        balancer.close()
        return torch.cat(rows), balancer.inspect(), start

    alone = [small.engine(native(), "full", "float32").run(prompt, CUTS) for prompt in tokens]
    for number, (found, state, start) in enumerate(run_ranks(2, rank)):
        assert state.moved > 0 and state.placement != start, "experts were moved between steps"
        assert torch.equal(found, alone[number])


def test_loads_are_those_of_the_rows_that_a_rank_sends_off(tmp_path: Path) -> None:
    spread, small = Spread(native(), redundant=4), k6_model()
    tokens = random_tokens(small.config, 12, 0)

    def rank(peers: ThreadPeers) -> Path:
        dispatch = spread.dispatch(small, peers)
        engine, path = spread.engine(small, peers, dispatch), tmp_path / str(peers.rank)
        balancer = EplbBalancer(dispatch, peers, interval_steps=0, window_steps=4, budget_bytes=1, min_gain=0.01)
        if peers.rank == 0:
            engine.run(tokens, [])
        else:
            engine.model.serve()
        balancer.after_step(GATHER)
        balancer.close()
        balancer.save(path)
        return path

    c = small.config
    shape = {"layers": c.num_hidden_layers, "experts": c.n_routed_experts, "ranks": 2, "slots": c.n_routed_experts + 4}
    for path in run_ranks(2, rank):
        load_WLE = read_placement(path, **shape).load_WLE
        assert load_WLE.shape == (1, c.num_hidden_layers, c.n_routed_experts)
        assert (load_WLE.sum(2) == 12 * c.num_experts_per_tok).all()
