"""Rules: each is broken once, what it says to type is typed, and many broken ones are reported together."""

from collections.abc import Callable
from pathlib import Path

import pytest

from deepinfer.config.errors import ExitCode
from deepinfer.plan.rules_layout import EP_OPTIONS
from deepinfer.plan.types import Plan, PlanErrors

PlanOf = Callable[..., Plan]
ROOT = Path(__file__).parents[2]
TINY = ("model=v41_tiny", "model.weights=dummy")
FLASH = ("hardware=gb300", "parallel=ep64")

BROKEN = [  # what clears the way, what breaks the rule, the asked part of the report
    (FLASH, ("parallel.expert=48",), "parallel.expert=48"),
    (FLASH, ("parallel.attention_dp=5", "parallel.expert=5"), "parallel.expert=5"),
    (FLASH, ("parallel.redundant_experts=1",), "parallel.expert=64"),
    (TINY, ("parallel=ep64",), "parallel.expert=64"),
    (TINY, ("parallel=ep8", "speculation=dspark"), "parallel.expert=8"),
    (TINY, ("parallel=dp2", "parallel.redundant_experts=2"), "parallel.redundant_experts=2"),
    (
        ("hardware=gb300", "deploy=disaggregated", "parallel@deploy.prefill.parallel=ep4"),
        ("parallel@deploy.decode.parallel=ep64", "deploy.decode.parallel.context=2"),
        "deploy.decode.parallel.context=2",
    ),
    (TINY, ("parallel=dp2", "executor=local"), "executor=local"),
    (TINY, ("model.threads=100000",), "model.threads=100000"),
    (TINY, ("sampling.logprobs=100000",), "sampling.logprobs=100000"),
    (FLASH, ("executor=distributed", "executor.backend=hccl"), "executor.backend=hccl"),
    (("hardware=virtual", "parallel=ep64"), ("executor=distributed",), "executor=distributed"),
    *(
        (TINY, ("parallel=ep2", "executor=distributed", *times), f"executor.silence_s={silence}")
        for times, silence in (
            (("executor.heartbeat_s=2s", "executor.silence_s=5s"), "5"),
            (("executor.heartbeat_s=100ms", "executor.silence_s=0.1s"), "0.1"),
            (("executor.heartbeat_s=1min",), "10"),
        )
    ),
    (TINY, ("speculation=dspark", "speculation.depth=7"), "speculation.depth=7"),
    (
        TINY,
        ("speculation=dspark_fixed", "speculation.depth=3", "speculation.verify_length=4"),
        "speculation.verify_length=4",
    ),
    (
        TINY,
        ("speculation=ngram", "speculation.min_match=5", "speculation.max_match=4"),
        "speculation.min_match=5",
    ),
    (TINY, ("replay=mask", "replay.keep_tokens=100"), "replay.keep_tokens=100"),
    (TINY, ("replay=compact", "sampling=reproducible"), "sampling.reproducible=true"),
    (TINY, ("cache=prefix", "replay.on_hit=bounded", "sampling=reproducible"), "sampling.reproducible=true"),
    (TINY, ("replay=mask", "sampling.prompt_logprobs=1"), "sampling.prompt_logprobs=1"),
    (
        TINY,
        ("speculation=ngram", "speculation.verify=rejection", "sampling=reproducible"),
        "sampling.reproducible=true",
    ),
    (TINY, ("model.max_model_len=100000",), "model.max_model_len=100000"),
    (TINY, ("scheduler.max_num_seqs=4096",), "scheduler.max_num_seqs=4096"),
    (
        TINY,
        ("speculation=ngram", "scheduler.max_num_seqs=500"),
        "scheduler.max_num_seqs=500",
    ),
    (TINY, ("scheduler.max_prefill_tokens=4096",), "scheduler.max_prefill_tokens=4096"),
    (TINY, ("sampling.min_tokens=200",), "sampling.min_tokens=200"),
    (TINY, ("kernels=deepseek",), "kernels=deepseek"),
    (TINY, ("kernels.ops.linear=triton",), "kernels.ops.linear=triton"),
    (TINY, ("kernels.ops.linaer=reference",), "kernels.ops.linaer=reference"),
    (TINY, ("kernels.ops.linear=refernce",), "kernels.ops.linear=refernce"),
]


@pytest.mark.parametrize(("base", "broken", "asked"), BROKEN, ids=[asked for _, _, asked in BROKEN])
def test_a_broken_rule_is_named_and_its_cure_works(
    plan_of: PlanOf, base: tuple[str, ...], broken: tuple[str, ...], asked: str
) -> None:
    with pytest.raises(PlanErrors) as refused:
        plan_of(*base, *broken)
    assert refused.value.exit_code == ExitCode.PLAN
    (problem,) = [problem for problem in refused.value.problems if problem.asked == asked]
    assert problem.found and problem.fix
    cure = problem.fix.split() if "{" not in problem.fix else [problem.fix]
    replaced = {text.partition("=")[0] for text in cure}
    dropped = {"parallel"} if "parallel.attention_dp" in replaced else set()
    kept = [text for text in broken if text.partition("=")[0] not in replaced and not asked.startswith(text)]
    plan_of(*base, *(text for text in kept if text.partition("=")[0] not in dropped), *cure)


@pytest.mark.parametrize("option", ["logit_bias={200000: 1.0}", "stop_token_ids=[3584]"])
def test_tokens_outside_the_vocabulary(plan_of: PlanOf, option: str) -> None:
    with pytest.raises(PlanErrors, match=r"0 … 3583"):
        plan_of(*TINY, f"sampling.{option}")


def test_everything_wrong_is_reported_together(plan_of: PlanOf) -> None:
    with pytest.raises(PlanErrors) as refused:
        plan_of(
            *TINY,
            "parallel=ep64",
            "speculation=dspark",
            "speculation.depth=9",
            "sampling=reproducible",
            "replay=compact",
            "scheduler.max_prefill_tokens=9999",
            "kernels=triton",
        )
    asked = [problem.asked for problem in refused.value.problems]
    assert asked == [
        "parallel.expert=64",
        "speculation.depth=9",
        "sampling.reproducible=true",
        "scheduler.max_prefill_tokens=9999",
        "kernels=triton",
    ]
    assert "5 problems" in str(refused.value)


def test_memory_is_judged_beside_faults_of_options(plan_of: PlanOf) -> None:
    with pytest.raises(PlanErrors) as refused:
        plan_of("hardware=h200", "sampling.min_tokens=999", "speculation=dspark", "speculation.depth=6")
    codes = [problem.code for problem in refused.value.problems]
    assert codes == [ExitCode.PLAN, ExitCode.PLAN, ExitCode.MEMORY]
    assert refused.value.exit_code == ExitCode.PLAN  # the lowest class present


def test_without_a_config_there_is_no_layout_to_judge(plan_of: PlanOf, tmp_path: object) -> None:
    with pytest.raises(PlanErrors) as refused:
        plan_of(f"model.path={tmp_path}", "sampling.min_tokens=999")
    assert refused.value.exit_code == ExitCode.WEIGHTS
    assert "config.json is missing" in str(refused.value)


def test_valid_splits_are_listed(plan_of: PlanOf) -> None:
    with pytest.raises(PlanErrors, match=r"split 1, 2, 4, 8, 16, 32 or 64 ways"):
        plan_of(*FLASH, "parallel.expert=3", "speculation=dspark")


@pytest.mark.parametrize(("degree", "option"), [(3, "ep2"), (4, "ep4"), (5, "ep4"), (100, "ep8")])
def test_a_degree_of_experts_alone_means_a_layout_of_so_many_ranks(plan_of: PlanOf, degree: int, option: str) -> None:
    with pytest.raises(PlanErrors, match=f"1 rank is not divisible by {degree}") as told:
        plan_of(*TINY, f"parallel.expert={degree}")
    (problem,) = told.value.problems
    assert problem.fix == f"parallel={option}"
    assert plan_of(*TINY, problem.fix).layout.num_ranks == int(option[2:])


def test_degrees_that_are_offered_are_options() -> None:
    options = {file.stem for file in (ROOT / "conf" / "parallel").glob("ep*.yaml")}
    assert options == {f"ep{degree}" for degree in EP_OPTIONS}


@pytest.mark.parametrize("key", ["repo", "revision"])
def test_a_repository_that_nobody_reads_is_refused(plan_of: PlanOf, key: str) -> None:
    with pytest.raises(PlanErrors) as refused:
        plan_of(f"model.{key}=nosuch")
    (problem,) = [problem for problem in refused.value.problems if problem.asked == f"model.{key}=nosuch"]
    assert "ships with deepinfer" in problem.found and problem.fix == "model=v41_flash"
    location = plan_of("hardware=gb300", "parallel=ep64", f"model.{key}=nosuch").model.location
    assert "nosuch" in location.split("@")


@pytest.mark.parametrize(
    "broken",
    [
        {"max_num_seqs": 100000},
        {"max_num_seqs": 100000, "max_num_batched_tokens": 100000},
        {"max_num_seqs": 10000, "max_num_batched_tokens": 100000, "max_prefill_tokens": 100000},
        {"max_num_batched_tokens": 100000, "max_prefill_tokens": 100000},
    ],
    ids=["sequences", "sequences and rows", "all", "rows"],
)
def test_a_step_too_large_for_the_memory_is_made_smaller(plan_of: PlanOf, broken: dict[str, int]) -> None:
    with pytest.raises(PlanErrors) as refused:
        plan_of(*TINY, *(f"scheduler.{key}={value}" for key, value in broken.items()))
    assert refused.value.problems
    fixes = {fix for problem in refused.value.problems for fix in problem.fix.split()}
    assert len({fix.partition("=")[0] for fix in fixes}) == len(fixes), "contradicting remedies"
    plan_of(*TINY, *(f"scheduler.{key}={value}" for key, value in broken.items()), *fixes)


def test_weights_that_grow_in_memory_are_explained(plan_of: PlanOf) -> None:
    with pytest.raises(PlanErrors, match=r"the checkpoint's 510\.3 GB, packed FP8 and FP4, become float32 here; "):
        plan_of("model=v41_flash", "hardware=cpu")
