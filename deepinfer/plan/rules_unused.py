"""Rules about settings that nothing would read, because another setting makes them meaningless."""

from collections.abc import Iterator

from deepinfer.config.errors import Problem
from deepinfer.config.specs import PrefixCache
from deepinfer.plan.ledger import plan_problem
from deepinfer.plan.settle import Case


def threads_need_a_cpu(case: Case) -> Iterator[Problem]:
    """Threads are those of the ops of a CPU; beside an accelerator the host only schedules."""
    threads = case.spec.model.threads
    if threads != "auto" and not case.is_cpu:
        found = f"no rank runs on a CPU, all are on {case.chips[0].name}"
        yield plan_problem(f"model.threads={threads}", found, "no op would read it", "model.threads=auto")


def cache_has_one_size(case: Case) -> Iterator[Problem]:
    """The cache is so many blocks or so many bytes."""
    cache = case.spec.cache
    if cache.num_blocks != "auto" and cache.memory_bytes != "auto":
        yield plan_problem(
            f"cache.memory_bytes={cache.memory_bytes}",
            f"cache.num_blocks={cache.num_blocks} says how large the cache is",
            "one of the two sizes would be lost",
            "cache.memory_bytes=auto",
        )


def revisions_are_of_a_hub(case: Case) -> Iterator[Problem]:
    """A folder has no revisions, and weights that are made up come from nowhere."""
    model = case.spec.model
    if model.revision is None:
        return
    asked = f"model.revision={model.revision}"
    if model.path is not None:
        found = f"model.path={model.path} is a folder, which has one state"
        yield plan_problem(asked, found, "nothing is fetched from a hub", "model.revision=null")
    elif model.weights == "dummy":
        yield plan_problem(asked, "model.weights=dummy makes numbers up", "nothing is fetched", "model.revision=null")


def snapshots_are_read(case: Case) -> Iterator[Problem]:
    """Window keys are saved for hits that go on from them; other hits compute them again."""
    cache, on_hit = case.spec.cache, case.numerics.replay_on_hit
    if isinstance(cache, PrefixCache) and cache.snapshot_bytes not in ("auto", 0) and on_hit != "snapshot":
        yield plan_problem(
            f"cache.snapshot_bytes={cache.snapshot_bytes}",
            f"replay.on_hit={on_hit} computes the window keys of a hit again",
            "nothing would read saved ones",
            "cache.snapshot_bytes=auto",
        )
