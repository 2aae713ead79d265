"""155 T tokens a day, worked by hand."""

import pytest

from deepinfer.plan.cost.fleet import Flow, Replica, exact_ranks, fleet_of, flow_of

DAY = "workload.tokens_per_day=155.0e12"


@pytest.fixture
def workload_of(spec_of):
    return lambda *overrides: spec_of(*overrides).workload


def test_tokens_of_a_day(workload_of):
    flow = flow_of(workload_of(DAY, "workload.cached_share=0.96", "workload.output_share=1.0e-9"))
    assert flow.prompt_tokens_per_s == pytest.approx(1.794e9, rel=1e-3)
    assert flow.computed_tokens_per_s == pytest.approx(71.8e6, rel=1e-3)


def test_ranks_at_given_rates():
    """834 prefill GPUs at 86 k tokens/s; 345 to 3,450 decode GPUs at 26 k, for 0.5 to 5 % of answers."""
    misses = Flow(prompt_tokens_per_s=155e12 / 86_400, answer_tokens_per_s=0.0, cached_share=0.96)
    prefill = Replica(role="prefill", ranks=4, nodes=1, prefill_tokens_per_s_per_gpu=86e3)
    decode = Replica(role="decode", ranks=64, nodes=16, decode_tokens_per_s_per_gpu=26e3)
    assert exact_ranks(misses, prefill) == pytest.approx(834, abs=0.6)
    for share, wanted in ((0.005, 345), (0.01, 690), (0.02, 1380), (0.05, 3450)):
        assert exact_ranks(misses.with_output_share(share), decode) == pytest.approx(wanted, rel=1e-3)
    assert exact_ranks(misses, decode) == 0


def test_a_fleet_is_made_of_whole_replicas(workload_of):
    workload = workload_of(DAY, "workload.cached_share=0.96", "workload.output_share=0.01")
    replicas = [
        Replica(role="prefill", ranks=4, nodes=1, prefill_tokens_per_s_per_gpu=86e3),
        Replica(role="decode", ranks=64, nodes=16, decode_tokens_per_s_per_gpu=26e3),
    ]
    fleet = fleet_of(workload, lambda share: replicas, "measured", ("free",))
    prefill, decode = fleet.needs
    assert (prefill.replicas, prefill.ranks, prefill.nodes) == (207, 828, 207)  # 826.0 ranks' work
    assert (decode.replicas, decode.ranks, decode.nodes) == (11, 704, 176)
    assert decode.utilisation == pytest.approx(690 / 704, rel=1e-3)
    assert fleet.ranks == 828 + 704
    assert fleet.tokens_per_s_per_gpu == pytest.approx(155e12 / 86_400 / (828 + 704))
    by_share = {line.value: line for line in fleet.sensitivity if line.key == "output_share"}
    assert by_share[0.01].ranks == fleet.ranks
    assert by_share[0.05].ranks_exact["decode"] == pytest.approx(3450, rel=1e-3)
    assert [line.value for line in fleet.sensitivity if line.key == "cached_share"] == [0.5, 0.8, 0.9, 0.96]


def test_ranks_that_do_both_add_up(workload_of):
    flow = flow_of(workload_of("workload.requests_per_s=10", "workload.peak_to_mean=2", "workload.cached_share=0"))
    both = Replica(role="all", ranks=8, nodes=1, prefill_tokens_per_s_per_gpu=1000.0, decode_tokens_per_s_per_gpu=100.0)
    assert exact_ranks(flow, both) == pytest.approx(20 * (1024 / 1000 + 512 / 100))


def test_no_traffic_no_fleet(workload_of):
    assert flow_of(workload_of()) is None
    assert fleet_of(workload_of(), lambda share: [], "roofline", ()) is None


def test_requests_fix_the_share_of_answers(workload_of):
    workload = workload_of("workload.requests_per_s=3")
    both = Replica(role="all", ranks=1, nodes=1, prefill_tokens_per_s_per_gpu=1.0, decode_tokens_per_s_per_gpu=1.0)
    fleet = fleet_of(workload, lambda share: [both], "roofline", ())
    assert fleet.output_share == pytest.approx(512 / 1536)
    assert fleet.requests_per_s == pytest.approx(3)
    assert fleet.sensitivity == ()


SPLIT = ("deploy=disaggregated", "parallel@deploy.prefill.parallel=ep4", "parallel@deploy.decode.parallel=ep64")


@pytest.mark.parametrize(
    "overrides",
    [
        ("hardware=gb300", *SPLIT, "cache=prefix", "replay=compact", "speculation=dspark", "workload=agentic"),
        ("hardware=h200", "parallel=ep8", "cache=prefix", "workload.tokens_per_s_per_user=20", "cost=roofline"),
        (
            "hardware=gb200",
            "parallel=ep64",
            "cache=prefix",
            "scheduler.max_num_seqs=256",
            "workload.tokens_per_s_per_user=60",
        ),
        ("hardware=gb200", "parallel=ep64"),
    ],
    ids=["roles", "turns", "turns of few", "no prefixes kept"],
)
def test_every_if_is_what_the_plan_with_that_value_says(plan_of, overrides):
    day = (*overrides, "workload.tokens_per_day=155.0e12", "workload.output_share=0.01", "workload.cached_share=0.7")
    lines = plan_of(*day).cost.fleet.sensitivity
    hits = 4 if "cache=prefix" in overrides else 0  # without prefixes in the cache no share of hits changes a thing
    assert [line.key for line in lines] == ["output_share"] * 4 + ["cached_share"] * hits
    for line in lines:
        fleet = plan_of(*day, f"workload.{line.key}={line.value}").cost.fleet
        assert line.ranks_exact == {need.role: need.ranks_exact for need in fleet.needs}, line.value
        assert line.ranks == fleet.ranks
