"""Tables and picture of one rank's recorded steps."""

import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
COMMON: dict[str, Any] = {
    "run": "ep64", "layout": "ep64", "hardware": "NVIDIA H200 SXM", "versions": {"torch": "2.11"}, "commit": "abc"
}  # fmt: skip
SHARE = COMMON | {
    "what": "share",
    "expert_ranks": 64,
    "share": {"experts": 6},
    "bytes": {"weights": 18e9, "weights_planned": 18.1e9, "caches": 3e9},
    "seconds_to_build": 4.0,
    "peak_flops": 1.979e15,
    "assumed": ["links are modelled"],
}


def decode(context: int, ms: float, **more: Any) -> dict[str, Any]:
    point = {"what": "decode", "context": context, "ms": ms, "sequences": 8, "rows_each": 6, "rows": 48}
    point |= {"routing": "balanced", "load": 1.0, "drafting_ms": 0.5, "floor_ms": ms / 2, "share": 0.5}
    point |= {"exchange_ms": 3.0, "tokens_per_s": 8 * 3510 / ms, "tokens_per_s_links_added": 8 * 3510 / (ms + 3)}
    return COMMON | point | {"tokens_per_s_per_user": 3510 / ms} | more


@pytest.fixture(autouse=True)
def benchmarks_can_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def test_tables_have_a_row_for_each_point_and_name_what_is_modelled() -> None:
    from rank_slice_tables import tables

    ops = COMMON | {"what": "ops", "step": "decode", "entries": [{"op": "router", "shape": "", "calls": 40, "ms": 1.5}]}
    text = tables([SHARE, decode(4096, 10.0), decode(32768, 12.0, routing="skewed", load=2.5), ops])
    assert (
        "6 of a layer's experts" in text
        and "| 8 | 48 | 4,096 | balanced | 10.00 | 0.50 | 5.00 | 50 % | 2,808 |" in text
    )
    assert "| skewed × 2.5 | 12.00" in text and "(modelled)" in text and "| router |  | 40 | 1.500 | 100.0 % |" in text
    assert "351 a user" in text and "quoted with 26,000" in text and "10,291" in text and "- links are modelled" in text


def test_one_step_of_each_phase_is_told_op_by_op_and_bytes_beside_the_plan() -> None:
    from rank_slice_tables import tables

    def ops(step: str, op: str) -> dict[str, Any]:
        return COMMON | {"what": "ops", "step": step, "entries": [{"op": op, "shape": "", "calls": 1, "ms": 1.0}]}

    memory = {"what": "memory", "held": 20e9, "planned_held": 19.9e9, "step": 4e9, "planned_step": 4.1e9, "apart": 0.0}
    steps = [ops("decode 1", "first"), ops("decode 2", "second"), ops("prefill 1", "third")]
    text = tables([SHARE, COMMON | memory, *steps])
    assert "| first |" in text and "| third |" in text and "second" not in text
    assert "memory without cache blocks: held 20 GB (planned 19.9 GB)" in text


def test_the_last_line_of_a_point_counts(tmp_path: Path) -> None:
    from rank_slice import latest

    other = SHARE | {"run": "ep8"}
    lines = [SHARE, decode(4096, 10.0), decode(32768, 12.0), other, SHARE, decode(4096, 9.0)]
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert latest(tmp_path / "lines.jsonl") == [SHARE, decode(4096, 9.0), decode(32768, 12.0), other]
    assert latest(tmp_path / "none.jsonl") == []


def test_the_picture_is_small(tmp_path: Path) -> None:
    from rank_slice_tables import draw

    pytest.importorskip("matplotlib")
    points = [decode(context, ms, rows_each=each) for context in (4096, 32768) for ms in (5.0, 10.0) for each in (1, 6)]
    draw([SHARE, *points], tmp_path / "picture.png")
    assert 5_000 < (tmp_path / "picture.png").stat().st_size < 300_000


def test_without_lines_it_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rank_slice

    monkeypatch.setattr(rank_slice, "RESULTS", tmp_path)
    with pytest.raises(SystemExit, match=r"python benchmarks/rank_slice\.py --record"):
        rank_slice.write(tmp_path / "picture.png")
