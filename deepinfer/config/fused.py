"""Which chips run on fused operations, and what of a plan those cannot carry out in this version."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from deepinfer.config.errors import ExitCode, Problem, listed
from deepinfer.config.runnable import plan_only


def runs_fused(kind: str, architecture: str) -> bool:
    """Whether a run on this chip is made of fused operations: of GPUs that this version has code for."""
    return kind == "cuda" and not plan_only(kind, architecture)


def fused_problems(backends: Mapping[str, str], numerics: str) -> Iterator[Problem]:
    """What stands against a run on a chip for which `runs_fused` holds. It can all be planned.

    `backends`: op → the backend that the plan chose for it.
    """
    names = Counter(backends.values()).most_common()
    if len(names) > 1:
        common, rare = names[0][0], names[-1][0]
        pinned = next(op for op, backend in backends.items() if backend == rare)
        yield _problem(
            f"kernels.ops.{pinned}={rare}",
            f"the ops of this plan are of {_both(name for name, _ in names)}",
            "a model on a GPU is built from one set of fused operations, each of which does the work of several ops",
            f"kernels={common} kernels.ops={{}}",
        )
    if numerics != "full":
        why = "the fused operations quantise activations and pack caches as the release does"
        yield _problem(f"model.numerics={numerics}", "on a GPU only full is computed", why, "model.numerics=full")


def _problem(asked: str, found: str, why: str, fix: str) -> Problem:
    return Problem(asked=asked, found=found, why=why, fix=fix, code=ExitCode.OTHER)


def _both(names: Iterable[str]) -> str:
    return listed(names).replace(" or ", " and ")
