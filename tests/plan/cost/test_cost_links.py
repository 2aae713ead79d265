"""Which links carry what between the ranks of a group."""

import pytest

from deepinfer.plan.cost.links import Group, host_route, remote_ranks, routes, widest_route
from deepinfer.plan.cost.shape import Shape
from deepinfer.plan.cost.types import Work
from deepinfer.plan.cost.work import Prompt, decode_work, prefill_work


def link_bytes(work: Work, what: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for link in work.links:
        if link.what == what:
            found[link.link] = found.get(link.link, 0.0) + link.num_bytes
    return found


def test_two_ranks_exchange_nearly_every_row(flash: Shape, chip_of):
    """4,096 rows: 98.5 % cross; 21.3 MB of FP8 rows with scales go out and 41.3 MB of BF16 rows come back, a layer."""
    assert remote_ranks(384, 6, 2) == pytest.approx(0.985, abs=5e-4)
    work = decode_work(flash, Group(chip=chip_of("h200"), num_ranks=2, expert=2), 4096, 4096)
    assert link_bytes(work, "dispatch")["nvlink"] / 40 == pytest.approx(21.3e6, rel=0.01)
    assert link_bytes(work, "combine")["nvlink"] / 40 == pytest.approx(41.3e6, rel=0.01)


def test_a_row_reaches_at_most_as_many_ranks_as_it_has_experts():
    assert remote_ranks(384, 6, 1) == 0
    for ranks in (2, 4, 8, 64, 384):
        assert 0 < remote_ranks(384, 6, ranks) < min(ranks, 6)
    assert remote_ranks(384, 6, 384) == pytest.approx(6 * 383 / 384)  # each expert elsewhere, but for one's own
    assert remote_ranks(8, 8, 4) == pytest.approx(3)


def test_a_group_beyond_its_domain_takes_the_network_for_the_rest(chip_of):
    chip = chip_of("h200")
    assert [(route.link, route.share) for route in routes(chip, 8)] == [("nvlink", 1.0)]
    near, far = routes(chip, 16)
    assert (near.link, near.share, far.link, far.share) == ("nvlink", 7 / 15, "network", pytest.approx(8 / 15))
    assert routes(chip, 1) == ()


def test_processes_of_one_cpu_talk_through_its_memory(chip_of):
    chip = chip_of("cpu")
    (route,) = routes(chip, 2)
    assert (route.link, route.bytes_per_s) == ("shared_memory", chip.memory_bandwidth_bytes_per_s.value)
    assert host_route(chip).link == widest_route(chip).link == "shared_memory"


def test_n_gram_rows_come_from_where_the_tables_are(flash: Shape, chip_of):
    row_bytes, chip = 48 * 264, chip_of("gb200")
    for engram, wanted in (
        ("host", {"host": 100 * row_bytes}),
        ("sharded", {"nvlink": pytest.approx(100 * row_bytes * 63 / 64)}),
        ("replicated", {}),
    ):
        work = decode_work(flash, Group(chip=chip, num_ranks=64, expert=64, engram=engram), 100, 4096)
        assert link_bytes(work, "engram") == wanted
        local = sum(part.table_bytes for part in work.parts if part.part == "engram")
        assert local == (100 * row_bytes if engram == "replicated" else 0)


def test_context_ranks_tell_each_other_their_keys(flash: Shape, chip_of):
    group = Group(chip=chip_of("h200"), num_ranks=4, context=4, expert=4)
    work = prefill_work(flash, group, Prompt(tokens=4000), 1)
    assert link_bytes(work, "context")["nvlink"] == pytest.approx(3 * 1000 * (890 + 40 * 528))
    assert not link_bytes(decode_work(flash, group, 1, 4000), "context")


def test_context_ranks_repeat_decode_but_share_the_experts(flash: Shape, chip_of):
    one = decode_work(flash, Group(chip=chip_of("h200"), num_ranks=4, expert=4), 1, 4096)
    two = decode_work(flash, Group(chip=chip_of("h200"), num_ranks=4, context=2, expert=4), 1, 4096)
    flops = [{part.part: sum(part.flops.values()) for part in work.parts} for work in (one, two)]
    assert flops[1]["attention"] == flops[0]["attention"]
    assert flops[1]["experts"] == flops[0]["experts"] / 2


def test_copies_of_experts_spread_rows_over_more_slots(flash: Shape, chip_of):
    plain = decode_work(flash, Group(chip=chip_of("gb200"), num_ranks=64, expert=64), 8, 4096)
    copied = decode_work(flash, Group(chip=chip_of("gb200"), num_ranks=64, expert=64, redundant_experts=64), 8, 4096)
    read = [next(part for part in work.parts if part.part == "experts").weight_bytes for work in (plain, copied)]
    assert 1 < read[1] / read[0] < 7 / 6  # seven slots instead of six, each a little less likely to be chosen
