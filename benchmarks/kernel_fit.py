"""Fits the figures of deepinfer/plan/cost/kernel_time.py to cases, and says how far they are from cases they never saw."""

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from functools import cache

from kernel_cases import MULTIPROCESSORS, Case
from msgspec import Struct, structs

from deepinfer.plan.cost.kernel_time import KernelTime
from deepinfer.plan.cost.tile_waves import Tiled, waves_of

POWERS = (1.0, 1.5, 2.0, 8.0)
EXPONENTS = (0.5, 1.0)
PARTS = (1, 4, 8)
TILES = (128, 256)
CACHED = (1.0, 1.5, 2.0)
MOST = {
    "bytes_per_s": 4.8e12,
    "flops_per_s": 1.979e15,
}  # of the data sheet; what the second-level cache adds is `cached`
LEAST_S = 0.84e-6  # one tiny kernel of a replayed graph, benchmarks/results/ceilings.jsonl: large timings alone say less of it
FIGURES = ("fixed_s", "bytes_per_s", "flops_per_s", "length_s", "start", "extra_rows")  # those that are searched
NEUTRAL = {field.name: field.default for field in structs.fields(KernelTime) if not field.required}
ROUGH, FINE = (0.5, 0.1), (0.02, 0.005)  # steps of the search, in natural logarithms
TRIED = 3  # forms, those that are best on all cases, that are compared by what they say of cases held out


class Fit(Struct, frozen=True, kw_only=True):
    """A kernel's figures, fitted on all cases; (predicted - measured) / measured of each by figures fitted on the others."""

    time: KernelTime
    names: tuple[str, ...]
    held_out: tuple[float, ...]  # empty where there are no more cases than figures
    sizes_held_out: tuple[float, ...] = ()  # of products: by figures fitted on the cases with another number of rows

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
    memory_s = time.memory_s(case.num_bytes, 1.0 if case.cached else 0.0)
    waves = _waves(case.product, time.tile, time.parts, time.start, time.extra_rows)
    turns = time.turns(case.product.rows, MULTIPROCESSORS)
    return time.latency_s(case.length, turns) + time.together_s(memory_s, time.compute_s(case.flops, waves))


@cache
def _waves(product: Tiled, tile: int, parts: int, start: float, extra_rows: float) -> float:
    """For the search moves one figure at a time, and mostly none of these."""
    kernel = KernelTime(fixed_s=0.0, bytes_per_s=1.0, tile=tile, parts=parts, start=start, extra_rows=extra_rows)
    return waves_of(product, kernel, MULTIPROCESSORS)


def error(time: KernelTime, case: Case) -> float:
    return predicted_s(time, case) / case.seconds - 1


def fit(cases: Sequence[Case]) -> Fit:
    """The form (power, exponent, parts …) whose held-out errors are smallest on average, fitted on all cases."""
    names, forms = tuple(case.name for case in cases), [form for form in _forms(cases) if len(_free(form)) < len(cases)]
    if not forms:
        time = _refined(_fitted(_forms(cases)[-1], cases), cases)
        return Fit(time=time, names=names, held_out=())
    fitted = sorted((_fitted(form, cases) for form in forms), key=lambda time: _loss_of(time, cases))
    times = [_refined(time, cases) for time in fitted[:TRIED]]
    tried = [Fit(time=time, names=names, held_out=tuple(_held_out(time, cases, _case))) for time in times]
    best = min(tried, key=lambda fit: sum(abs(math.log1p(max(error, -0.99))) for error in fit.held_out))
    if len({_rows(case) for case in cases}) < 3:
        return best
    return structs.replace(best, sizes_held_out=tuple(_held_out(best.time, cases, _rows)))


def _case(case: Case) -> object:
    return case.name


def _rows(case: Case) -> object:
    """Of all products of a size; nothing where rows are no matter."""
    return case.product.rows if case.product.outputs else None


def _forms(cases: Sequence[Case]) -> list[KernelTime]:
    """Starting points, one a form: a figure that a form does without has its neutral value."""
    computes, tiled = any(case.flops for case in cases), any(case.product.outputs for case in cases)
    columns, lengths = any(case.product.columns for case in cases), len({case.length for case in cases}) > 1
    rows = len({case.product.rows for case in cases}) > 1
    choices = itertools.product(
        POWERS if computes else POWERS[:1],
        EXPONENTS if lengths and not tiled else (0.0,),
        PARTS if computes and (columns or rows) and (columns or not tiled) else PARTS[:1],
        TILES if tiled and not columns else TILES[:1],
        (0, 1, 2) if rows and not tiled else (0,),
        CACHED if len({case.cached for case in cases}) > 1 else CACHED[:1],
    )
    return [
        KernelTime(
            fixed_s=3e-6,
            bytes_per_s=3.5e12,
            flops_per_s=5e14 if computes else math.inf,
            power=power,
            length_s=1e-9 * (1 if exponent == 1 else 30) if exponent else 0.0,
            exponent=exponent or 1.0,
            resident=resident,
            cached=cached,
            tile=tile,
            parts=parts,
            start=300.0 if tiled and parts > 1 else 0.0,
            extra_rows=20.0 if tiled else 0.0,
        )
        for power, exponent, parts, tile, resident, cached in choices
    ]


def _free(form: KernelTime) -> list[str]:
    return [name for name in FIGURES if getattr(form, name) != NEUTRAL.get(name)]


def _held_out(time: KernelTime, cases: Sequence[Case], alike: Callable[[Case], object]) -> list[float]:
    """Errors of each case by figures fitted on the others, those that are `alike` left out, where the search begins at those
    of all."""
    fitted: dict[object, KernelTime] = {}
    for key in dict.fromkeys(map(alike, cases)):
        fitted[key] = _refined(time, [case for case in cases if alike(case) != key], ROUGH[-1:] + FINE)
    return [error(fitted[alike(case)], case) for case in cases]


def _refined(time: KernelTime, cases: Sequence[Case], steps: Sequence[float] = FINE) -> KernelTime:
    return _descended(time, _free(time), lambda tried: _loss_of(tried, cases), steps)


def _loss_of(time: KernelTime, cases: Sequence[Case]) -> float:
    return sum(math.log1p(max(error(time, case), -0.99)) ** 2 for case in cases)


def _fitted(form: KernelTime, cases: Sequence[Case]) -> KernelTime:
    """Roughly: least squares of log(predicted / measured), one figure after another with ever smaller steps."""
    found = (_refined(start, cases, ROUGH) for start in _starts(form, _free(form)))
    return min(found, key=lambda time: _loss_of(time, cases))


def _starts(form: KernelTime, free: Sequence[str]) -> list[KernelTime]:
    """More than one, for the loss has several valleys."""
    scales = itertools.product((0.5, 1.5), (1.0, 1.5) if "flops_per_s" in free else (1.0,))
    found = []
    for latency, rate in scales:
        changed = {"fixed_s": form.fixed_s * latency, "flops_per_s": form.flops_per_s * rate}
        found.append(structs.replace(form, **changed))
    return found


def _descended(
    time: KernelTime, free: Sequence[str], loss: Callable[[KernelTime], float], steps: Sequence[float]
) -> KernelTime:
    least = loss(time)
    for step in steps:
        improved = True
        while improved:
            improved = False
            for name, sign in itertools.product(free, (step, -step)):
                tried = _moved(time, name, math.exp(sign))
                if (lost := loss(tried)) < least - 1e-12:
                    time, least, improved = tried, lost, True
    return time


def _moved(time: KernelTime, name: str, factor: float) -> KernelTime:
    value = min(getattr(time, name) * factor, MOST.get(name, math.inf))
    if name == "fixed_s":
        value = max(value, LEAST_S)
    return structs.replace(time, **{name: value})
