"""The recipe of a search as it was meant: what is typed whole replaces what the option says, and objectives exist."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from msgspec import structs

from deepinfer.cli.pareto import GPU, USER
from deepinfer.cli.points_file import MEASURED
from deepinfer.config.errors import Problem, Refused, listed, nearest
from deepinfer.config.sweeps import Search

MAPPINGS = ("choices", "ranges", "log_ranges", "objectives")
_OF_PLANS = (
    GPU,
    USER,
    "ttft_s",
    "decode_tokens_per_s_per_gpu",
    "prefill_tokens_per_s_per_gpu",
    "prompt_tokens_per_s_per_gpu",
    "num_ranks",
    "memory_bytes",
    "cache_tokens",
)
_OF_BENCH = (GPU, USER, "ttft_s", "num_ranks", *MEASURED)
FIGURES = {"plan": _OF_PLANS, "bench": _OF_BENCH}  # that a point may be judged by


def as_typed(search: Search, overrides: Sequence[str]) -> tuple[Search, list[str]]:
    """The recipe with mappings that were typed whole in place of its own, and what that left out, in words.

    Hydra merges mappings: `sweep.objectives={ttft_s: minimize}` would add to the recipe's objectives. `+sweep.…` does add,
    and so does a single name, sweep.objectives.ttft_s=minimize.
    """
    told = []
    for name in MAPPINGS:
        typed = list(_typed(name, overrides))
        merged = getattr(search, name)
        if not any(whole for whole, _ in typed):
            continue
        wanted = {key for _, keys in typed for key in keys}
        left_out = [key for key in merged if key not in wanted]
        search = structs.replace(search, **{name: {key: merged[key] for key in merged if key in wanted}})
        if left_out:
            told.append(
                f"sweep.{name} was typed whole: the recipe's {listed(left_out).replace(' or ', ' and ')} left out; "
                f"+sweep.{name}=… adds to the recipe"
            )
    return search, told


def refuse_objectives(search: Search) -> None:
    """Raise Refused where an objective is no figure of what the search makes."""
    known = FIGURES[search.over]
    problems = [
        Problem(
            asked=f"sweep.objectives.{name}",
            found=f"no such figure comes of a {search.over}",
            why=f"there are {listed(known)}",
            fix=f"sweep.objectives={{{nearest(name, known) or GPU}: {direction}}}",
        )
        for name, direction in search.objectives.items()
        if name not in known
    ]
    if problems:
        raise Refused(problems)


def _typed(name: str, overrides: Sequence[str]) -> Iterator[tuple[bool, list[str]]]:
    """For each override of a mapping, whether it is the whole of it, and the names that it gives."""
    for text in overrides:
        key = text.partition("=")[0]
        if key == f"sweep.{name}":
            (override,) = OverridesParser.create().parse_overrides([text])
            value = override.value()
            yield True, [str(each) for each in value] if isinstance(value, dict) else []
        elif key.lstrip("+").startswith(f"sweep.{name}."):
            yield False, [key.lstrip("+").removeprefix(f"sweep.{name}.")]
        elif key.lstrip("+") == f"sweep.{name}":
            (override,) = OverridesParser.create().parse_overrides([text])
            value = override.value()
            yield False, [str(each) for each in value] if isinstance(value, dict) else []
