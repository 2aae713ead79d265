"""Cost-only models hold what was published about them; published points say where they are from."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # benchmarks are no package

import cost_accuracy  # noqa: E402
from published.predict import Point, read_model, read_points, tensor_split  # noqa: E402

MODELS = sorted(file.stem for file in (BENCHMARKS / "published" / "models").glob("*.yaml"))


@pytest.mark.parametrize("name", MODELS)
def test_weights_add_up_to_what_was_published(active_weights: Callable[..., float], name: str) -> None:
    model = read_model(name)
    shape, published = model.shape, model.published
    embedding = next(p.weights for p in shape.products if p.part == "head")  # as large as the head
    held = sum(p.weights for p in shape.products if p.scope != "draft") + embedding
    held += sum(e.weights * e.experts * e.layers for e in shape.experts if e.scope != "draft")
    assert held == pytest.approx(published["total"], rel=0.003)
    assert active_weights(shape, "row", "kept", "sampled") == pytest.approx(published["active"], rel=0.03)
    assert published["source"].startswith("https://")


def test_latents_expanded_or_not_give_the_flops_of_their_heads() -> None:
    model = read_model("deepseek_v3")
    (absorbed,), (expanded,) = model.shape.scans, model.prefill_scans
    assert absorbed.flops == 2 * 128 * (576 + 512) and expanded.flops == 2 * 128 * (192 + 128)


def test_tensor_parallel_ranks_share_the_work(active_weights: Callable[..., float]) -> None:
    shape = read_model("v4_flash").shape
    quarter = tensor_split(shape, 4)
    whole, part = (active_weights(s, "row", "kept", "sampled") for s in (shape, quarter))
    assert whole / 4 < part < whole / 3.5  # small products are on every rank
    assert [scan.flops * 4 for scan in quarter.scans] == [scan.flops for scan in shape.scans]


def test_points_are_whole() -> None:
    points = read_points()
    assert len({point.name for point in points}) == len(points) >= 20
    for point in points:
        assert point.source.startswith("https://") or point.status == "press, unverified"
        assert bool(point.plan) != bool(point.model) and bool(point.plan) == bool(point.figure)
        assert point.plan or bool(point.prefill) != bool(point.decode)
        assert not (point.fit and point.unfit)
    assert [point.name for point in points if point.fit] == ["V3 prefill 4K, SGLang", "V3 decode 2K, SGLang"]


def row(published: float, calibrated: float) -> cost_accuracy.Row:
    point = Point(name=str(published), value=published, source="", machine="")
    return cost_accuracy.Row(point=point, roofline=calibrated, calibrated=calibrated)


def test_error_and_rank_correlation() -> None:
    rows = [row(100, 150), row(200, 100), row(300, 300)]
    assert cost_accuracy.mape(rows) == pytest.approx((50 + 50 + 0) / 3)
    assert cost_accuracy.rank_correlation(rows) == pytest.approx(0.5)
    assert cost_accuracy.rank_correlation([row(n, n**2) for n in range(1, 8)]) == 1
    assert cost_accuracy.rank_correlation([row(n, 9 - n) for n in range(1, 8)]) == -1
