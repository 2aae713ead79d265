import math
import random

import pytest

from deepinfer.serving.http.metrics_tally import BETWEEN_TOKENS_S, FIRST_TOKEN_S, REQUEST_S, Tally, quantile


def test_many_values_are_counted_as_each_alone() -> None:
    seeded = random.Random(1)
    values = [seeded.choice((seeded.expovariate(20), seeded.choice(BETWEEN_TOKENS_S))) for _ in range(1000)] + [1e6]
    one, all_at_once = Tally(BETWEEN_TOKENS_S), Tally(BETWEEN_TOKENS_S)
    for each in values:
        one.add(each)
    all_at_once.add_all(values)
    all_at_once.add_all([])
    assert one.counts == all_at_once.counts and sum(one.counts) == 1001 and one.counts[-1] == 1
    assert math.isclose(one.total, all_at_once.total)


def test_a_bound_ends_its_bucket() -> None:
    tally = Tally((1.0, 2.0))
    tally.add_all([1.0, 1.5, 2.0, 2.1])
    (family,) = [tally.family("x", "about", {"model_name": "m"})]
    told = {sample.labels["le"]: sample.value for sample in family.samples if sample.name == "x_bucket"}
    assert told == {"1.0": 1, "2.0": 3, "+Inf": 4}


def test_quantiles_lie_within_their_bucket() -> None:
    bounds = (1.0, 2.0, 4.0)
    assert quantile(bounds, [0, 0, 0, 0], 0.5) is None
    assert quantile(bounds, [0, 10, 0, 0], 0.5) == 1.5
    assert quantile(bounds, [10, 0, 10, 0], 0.75) == 3.0
    assert quantile(bounds, [0, 0, 0, 3], 0.5) == 4.0


@pytest.mark.parametrize("bounds", [FIRST_TOKEN_S, BETWEEN_TOKENS_S, REQUEST_S])
def test_buckets_rise_and_are_fine_where_promises_lie(bounds: tuple[float, ...]) -> None:
    assert list(bounds) == sorted(set(bounds))
    assert sum(bound <= 0.3 for bound in bounds) >= 9
