"""Fits the figures of deepinfer/plan/cost/kernel_time.py to cases, and says how far they are from cases they never saw."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence

from kernel_cases import Case
from msgspec import Struct, structs

from deepinfer.plan.cost.kernel_time import KernelTime

POWERS = (1.0, 1.5, 2.0, 8.0)
EXPONENTS = (0.5, 1.0)
MOST_BYTES_PER_S = 4.8e12  # of the data sheet: what the L2 cache adds is no share of the memory's
LEAST_S = 0.84e-6  # one tiny kernel of a replayed graph, benchmarks/results/ceilings.jsonl: large timings alone say less of it
FIGURES = ("fixed_s", "bytes_per_s", "flops_per_s", "length_s", "most_waves")
STEPS = (0.5, 0.1, 0.02, 0.004)  # of the search, in natural logarithms


class Fit(Struct, frozen=True, kw_only=True):
    """A kernel's figures, fitted on all cases; (predicted - measured) / measured of each by figures fitted on the others."""

    time: KernelTime
    names: tuple[str, ...]
    held_out: tuple[float, ...]  # empty where there are no more cases than figures

    @property
    def worst(self) -> tuple[float, str]:
        return max(zip(self.held_out, self.names), key=lambda pair: abs(pair[0]))


def median(errors: Sequence[float]) -> float:
    return statistics.median(map(abs, errors))


def p90(errors: Sequence[float]) -> float:
    """The error that nine of ten do not exceed."""
    ordered = sorted(map(abs, errors))
    return ordered[math.ceil(0.9 * len(ordered)) - 1]


def predicted_s(time: KernelTime, case: Case) -> float:
    return time.latency_s(case.length) + time.body_s(case.num_bytes, case.flops, case.waves)


def error(time: KernelTime, case: Case) -> float:
    return predicted_s(time, case) / case.seconds - 1


def fit(cases: Sequence[Case]) -> Fit:
    """The form (power, exponent, which figures count) whose held-out errors are smallest, fitted on all cases."""
    names, forms = tuple(case.name for case in cases), [form for form in _forms(cases) if len(_free(form)) < len(cases)]
    if not forms:
        return Fit(time=_fitted(_forms(cases)[-1], cases), names=names, held_out=())
    tried = []
    for form in forms:
        time = _fitted(form, cases)
        tried.append(Fit(time=time, names=names, held_out=tuple(_held_out(time, cases))))
    return min(tried, key=lambda fit: _loss(fit.held_out))


def _forms(cases: Sequence[Case]) -> list[KernelTime]:
    """Starting points, one a form: a figure that a form does without has its neutral value."""
    computes, lengths = any(case.flops for case in cases), len({case.length for case in cases}) > 1
    tiled = any(case.waves > 1 for case in cases)
    choices = itertools.product(
        POWERS if computes else POWERS[:1], EXPONENTS if lengths else (0.0,), (1.5, 1.0) if tiled else (1.0,)
    )
    return [
        KernelTime(
            fixed_s=3e-6,
            bytes_per_s=3.5e12,
            flops_per_s=5e14 if computes else math.inf,
            power=power,
            length_s=1e-9 * (1 if exponent == 1 else 30) if exponent else 0.0,
            exponent=exponent or 1.0,
            most_waves=waves,
        )
        for power, exponent, waves in choices
    ]


def _free(form: KernelTime) -> list[str]:
    neutral = {"flops_per_s": math.inf, "length_s": 0.0, "most_waves": 1.0}
    return [name for name in FIGURES if getattr(form, name) != neutral.get(name)]


def _held_out(time: KernelTime, cases: Sequence[Case]) -> list[float]:
    """Errors of each case by figures fitted on the others, where the search begins at those of all."""
    found = []
    for number, case in enumerate(cases):
        others = [*cases[:number], *cases[number + 1 :]]
        found.append(error(_descended(time, _free(time), lambda tried: _loss_of(tried, others)), case))  # noqa: B023
    return found


def _loss_of(time: KernelTime, cases: Sequence[Case]) -> float:
    return _loss([error(time, case) for case in cases])


def _loss(errors: Sequence[float]) -> float:
    return sum(math.log1p(max(error, -0.99)) ** 2 for error in errors)


def _fitted(form: KernelTime, cases: Sequence[Case]) -> KernelTime:
    """Least squares of log(predicted / measured), one figure after another with ever smaller steps."""
    free = _free(form)

    def loss(time: KernelTime) -> float:
        return _loss_of(time, cases)

    best = form
    for start in _starts(form, free):
        best = min(best, _descended(start, free, loss), key=loss)
    return best


def _starts(form: KernelTime, free: Sequence[str]) -> list[KernelTime]:
    """More than one, for the loss has several valleys."""
    scales = itertools.product((0.5, 1.0, 3.0), (1.0, 1.5) if "flops_per_s" in free else (1.0,))
    found = []
    for latency, rate in scales:
        changed = {"fixed_s": form.fixed_s * latency, "flops_per_s": form.flops_per_s * rate}
        found.append(structs.replace(form, **changed))
    return found


def _descended(time: KernelTime, free: Sequence[str], loss: Callable[[KernelTime], float]) -> KernelTime:
    least = loss(time)
    for step in STEPS:
        improved = True
        while improved:
            improved = False
            for name, sign in itertools.product(free, (step, -step)):
                tried = _moved(time, name, math.exp(sign))
                if (lost := loss(tried)) < least - 1e-12:
                    time, least, improved = tried, lost, True
    return time


def _moved(time: KernelTime, name: str, factor: float) -> KernelTime:
    value = getattr(time, name) * factor
    if name == "bytes_per_s":
        value = min(value, MOST_BYTES_PER_S)
    value = max(value, {"most_waves": 1.0, "fixed_s": LEAST_S}.get(name, 0.0))
    return structs.replace(time, **{name: value})
