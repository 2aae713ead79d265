"""Plan text against golden files, its shape, and the three-line summary.

After a wanted change: UPDATE = True, run once, read the diff, set it back.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.plan import render
from deepinfer.plan.types import Plan

PlanOf = Callable[..., Plan]
UPDATE = False
GOLDEN = Path(__file__).parent / "golden"
CASES = {
    "laptop": ("model.path={tiny}", "model.weights=dummy"),
    "ascend950_ep64": ("hardware=ascend950", "parallel=ep64"),
    "h200_ep8_dspark": ("hardware=h200", "parallel=ep8", "speculation=dspark"),
    "gb300_disaggregated": (
        "hardware=gb300",
        "deploy=disaggregated",
        "parallel@deploy.prefill.parallel=ep4",
        "parallel@deploy.decode.parallel=ep64",
        "deploy.prefill.replicas=2",
        "speculation=dspark",
        "replay=compact",
        "cache=prefix",
    ),
    "b200_reference": ("hardware=b200", "parallel=ep64", "kernels=reference", "kernels.ops.swiglu=triton"),
}


@pytest.fixture
def case_of(plan_of: PlanOf, tmp_path: Path) -> Callable[[str], Plan]:
    """The plan of a case; its tiny model is the fixture's, so that a retrained one changes no text."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    shutil.copyfile(Path(__file__).parents[1] / "fixtures" / "k6_config.json", folder / "config.json")
    return lambda name: plan_of(*(override.format(tiny=folder) for override in CASES[name]))


@pytest.mark.parametrize("name", CASES)
def test_golden_text(case_of: Callable[[str], Plan], name: str) -> None:
    text = render.text(case_of(name)) + "\n"
    file = GOLDEN / f"{name}.txt"
    if UPDATE:
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_golden_files_are_all_used() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == CASES.keys()
    assert not UPDATE


@pytest.mark.parametrize("name", CASES)
def test_one_screen_of_greppable_lines(case_of: Callable[[str], Plan], name: str) -> None:
    lines = render.text(case_of(name)).splitlines()
    sections = [line.split()[0] for line in lines]
    assert len(lines) <= 110  # of a deployment with two sides; half of that for one
    assert all(line == line.rstrip() for line in lines)
    assert list(dict.fromkeys(sections)) == [
        section
        for section in ("plan model layout memory cache cost fleet ops graph needs decided note warning digest".split())
        if section in sections
    ]


def test_facts_are_in_the_text(plan_of: PlanOf) -> None:
    text = render.text(plan_of(*CASES["ascend950_ep64"]))
    for fact in ("510,286,023,000 B", "96,085 tensors", "890 B a token", "114,048 B", "3,128,928 B"):
        assert fact in text


def test_json_has_plain_integers(plan_of: PlanOf) -> None:
    plan = plan_of(*CASES["h200_ep8_dspark"])
    data = json.loads(render.json_text(plan))
    assert data["model"]["checkpoint_bytes"] == 510_286_023_000
    assert data["model"]["growing_bytes_per_token"] == 890
    assert data["memory"][0]["num_blocks"] == plan.capacity.num_blocks
    assert len(data["layout"]["ranks"]) == 8


def test_summary_is_three_short_lines(case_of: Callable[[str], Plan]) -> None:
    for name in CASES:
        lines = render.summary(case_of(name)).splitlines()
        assert [line.split()[0] for line in lines] == ["plan", "memory", "takes"]
        assert max(map(len, lines)) <= 120


def test_a_cache_that_took_all_says_so(plan_of: PlanOf, case_of: Callable[[str], Plan]) -> None:
    """No headroom is what was asked for, and no sign of too little memory."""
    lines = [line for line in render.text(case_of("gb300_disaggregated")).splitlines() if " headroom " in line]
    assert len(lines) == 2 and all("the cache took all that was left" in line for line in lines)
    assert "the cache took all" not in render.text(case_of("h200_ep8_dspark"))


def test_only_choices_that_a_rank_reads_are_told(plan_of: PlanOf, case_of: Callable[[str], Plan]) -> None:
    def chosen(plan: Plan) -> list[str]:
        return [word for section, label, value in render.rows(plan) if label == "chosen" for word in value.split()]

    apart, together = chosen(case_of("gb300_disaggregated")), chosen(case_of("h200_ep8_dspark"))
    assert not [word for word in apart if word.startswith("parallel=")] and "hardware=gb300" in apart
    assert {"parallel@deploy.prefill.parallel=ep4", "parallel@deploy.decode.parallel=ep64"} <= set(apart)
    assert "parallel=ep8" in together


def test_sizes_are_for_people(case_of: Callable[[str], Plan]) -> None:
    """Thousands are set apart, decided bytes are in words, and what holds for one rank says so."""
    for name in CASES:
        for section, _, value in render.rows(case_of(name)):
            if section in ("memory", "cache", "decided"):
                assert not re.search(r"\d{5}", value.partition(":")[0]), value
    text = render.text(case_of("gb300_disaggregated"))
    assert "cache.memory_bytes=prefill 83.74 GB, decode 165.6 GB: " in text and "tokens at once on a rank" in text


def test_another_program_of_nearly_the_same_name_is_called_so(case_of: Callable[[str], Plan]) -> None:
    cited = [line for line in render.text(case_of("gb300_disaggregated")).splitlines() if "DeepInfer" in line]
    assert cited and all("DeepSeek's own engine, DeepInfer " in line for line in cited)


def test_differences_are_shown(plan_of: PlanOf, tmp_path: Path) -> None:
    from deepinfer.config.facts import shipped_folder

    raw = json.loads((shipped_folder("v41_tiny") / "config.json").read_text())
    raw["text_config"]["index_topk"] = 64
    (tmp_path / "config.json").write_text(json.dumps(raw))
    text = render.text(plan_of("model=v41_tiny", "model.weights=dummy", f"model.path={tmp_path}"))
    assert "model    differs        text_config.index_topk: 64 in the checkpoint, 128 in v41_tiny" in text.splitlines()


def test_a_checkpoint_goes_by_its_own_name(plan_of: PlanOf) -> None:
    folder = Path(__file__).parents[1] / "fixtures" / "golden" / "tiny_a"
    plan = plan_of("model=v41_flash", f"model.path={folder}")
    first, *_, last = render.summary(plan).splitlines()
    assert first.startswith("plan    tiny_a on CPU")
    assert last == f"warning its config.json differs from v41_flash in {len(plan.model.differences)} values"
    lines = render.text(plan).splitlines()
    assert sum(line.startswith("model    differs") for line in lines) == render.SHOWN + 1
    assert any(line.startswith("note") and "differs from v41_flash in" in line for line in lines)


def test_the_summary_adds_up(case_of: Callable[[str], Plan]) -> None:
    plan = case_of("laptop")
    (memory,) = [line for line in render.summary(plan).splitlines() if line.startswith("memory")]
    assert memory == (
        "memory  1.26 GB a rank: weights 43.8 MB, cache 70.8 MB, state 13.2 MB, workspace 1.13 GB (estimate)"
    )


def test_what_was_typed_is_in_the_text(case_of: Callable[[str], Plan]) -> None:
    plan = case_of("laptop")
    lines = render.text(plan, ["hardware=cpu", "sampling.top_k=5", "parallel@deploy.prefill.parallel=ep4"]).splitlines()
    assert [line for line in lines if line.startswith("plan     set")] == ["plan     set            sampling.top_k=5"]
