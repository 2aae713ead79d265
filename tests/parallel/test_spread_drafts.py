"""Rounds of drafts over several ranks: who has no sequences serves, and nobody's drafts depend on where experts lie."""

import numpy as np
import torch
from draft_bench import DraftBench, draft_bench
from small_models import SmallModel, k6_model, random_tokens
from spread_models import Spread, own_weights
from thread_peers import ThreadPeers, run_ranks

from deepinfer.model.dspark import DSparkModel
from deepinfer.ops import native
from deepinfer.speculation.calibration import Calibration
from deepinfer.speculation.dspark import DSpark

SPREAD = Spread(native(), redundant=4)


def bench_of(small: SmallModel, peers: ThreadPeers) -> DraftBench:
    """As `draft_bench`, of one rank."""
    c, dispatch = small.config, SPREAD.dispatch(small, peers)
    layout = {"num_draft_layers": c.num_nextn_predict_layers, "backtrack": c.dspark_block_size + 1}
    engine = SPREAD.engine(small, peers, dispatch, **layout)
    weights = own_weights(small, dispatch, peers.rank, None)
    drafter = DSpark(
        DSparkModel(c, weights, SPREAD.ops, numerics=SPREAD.numerics, dtype=SPREAD.dtype, dispatch=dispatch),
        engine.cache,
        depth=c.dspark_block_size,
        calibration=Calibration((), c.dspark_block_size),
        temperatures=lambda slots: np.zeros(len(slots)),
    )
    return DraftBench(engine, drafter)


def test_drafts_of_ranks_equal_those_of_one_process() -> None:
    """Rank 0 has a sequence in both rounds, rank 1 in the second one only, ranks 2 and 3 in none."""
    small = k6_model()
    first, second = random_tokens(small.config, 12, 1), random_tokens(small.config, 5, 2)

    def rank(peers: ThreadPeers) -> list[torch.Tensor]:
        bench = bench_of(small, peers)
        if peers.rank == 0:
            bench.prefill(first, [], 0)
            return [bench.draft((first, 0))[1], bench.step((first, 11, 12, 0)), bench.draft(([*first, 7], 0))[1]]
        if peers.rank == 1:
            bench.engine.model.serve()
            bench.drafter.serve()
            bench.prefill(second, [], 1)
            return [bench.draft((second, 1))[1]]
        for _ in range(2):
            bench.engine.model.serve()
            bench.drafter.serve()
        return []

    alone = draft_bench(small, native(), "full", "float32")
    alone.prefill(first, [], 0)
    expected = [alone.draft((first, 0))[1], alone.step((first, 11, 12, 0)), alone.draft(([*first, 7], 0))[1]]
    alone.prefill(second, [], 1)
    expected.append(alone.draft((second, 1))[1])
    found = [rows for of_rank in run_ranks(4, rank) for rows in of_rank]
    assert len(found) == len(expected) and all(torch.equal(one, other) for one, other in zip(found, expected))
