"""What a plan reckons for rows on their way to experts of other ranks is what the dispatch allocates, traced on no device."""

from __future__ import annotations

import pytest
import torch
from test_planned_step import built, planned
from traced_bytes import META, traced

from deepinfer.arch.routing import skewed_load
from deepinfer.parallel import device_dispatch
from deepinfer.parallel.device_dispatch import DeviceDispatch
from deepinfer.parallel.placement import Placement
from deepinfer.parallel.rehearsed_peers import RehearsedPeers
from deepinfer.parallel.row_messages import RowMessages
from deepinfer.plan import exchange_sizes
from deepinfer.plan.exchange_sizes import Exchange, message_bytes, most_fixed_rows

RANKS = 8


@pytest.mark.parametrize("by_pair", [True, False])
def test_a_step_with_room_for_all_rows_takes_what_is_reckoned(by_pair: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned("true width, one of 8, no drafts")
    made, _ = built(plan, monkeypatch)
    config, rows = plan.model.config, most_fixed_rows(RANKS)
    made.route("skewed")
    experts = made.model.layers[0].experts
    grid_TD = torch.empty(rows, config.hidden_size, dtype=torch.bfloat16, device=META)
    dispatch = DeviceDispatch(
        RehearsedPeers(0, RANKS),
        experts.ops,
        trunk=Placement.initial(1, config.n_routed_experts, RANKS),
        draft=None,
        reproducible=by_pair,
        dtype=torch.bfloat16,
        device=META,
    )
    assert dispatch.most_rows == rows
    with torch.inference_mode():
        with traced() as alone:
            experts(grid_TD, grid_TD)
        experts.elsewhere = dispatch.layer(0, experts.weights, experts.routed)
        dispatch.begin(rows)
        with traced() as spread:
            experts(grid_TD, grid_TD)
    load = skewed_load(RANKS, config.n_routed_experts)
    reckoned = Exchange(ranks=RANKS, load=load, itemsize=2, by_pair=by_pair).num_bytes(config, rows)
    assert reckoned == pytest.approx(spread.peak - alone.peak, rel=0.1)


def test_sizes_are_those_of_the_dispatch() -> None:
    config = planned("tiny").model.config
    messages = RowMessages(config.hidden_size, config.num_experts_per_tok, torch.bfloat16, torch.float32)
    assert messages.num_bytes == message_bytes(config)
    for name in ("MOST_ROWS", "MOST_ARRIVING"):
        assert getattr(device_dispatch, name) == getattr(exchange_sizes, name)
    one, two = (Exchange(ranks=ranks, load=1.0, itemsize=2, by_pair=True) for ranks in (1, 2))
    assert one.num_bytes(config, 4096) == 0 < two.num_bytes(config, 64) < two.num_bytes(config, 4096)
