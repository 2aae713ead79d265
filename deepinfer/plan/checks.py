"""All rules that a settled case is held against. Each is asked, none stops another."""

from collections.abc import Callable, Iterator

from deepinfer.config.errors import Problem
from deepinfer.plan import rules_layout, rules_options
from deepinfer.plan.settle import Case

Rule = Callable[[Case], Iterator[Problem]]
LAYOUT_RULES: tuple[Rule, ...] = (
    rules_layout.experts_divide,
    rules_layout.redundancy_has_a_use,
    rules_layout.decode_ranks_share_no_prompt,
    rules_layout.executor_fits,
)
OPTION_RULES: tuple[Rule, ...] = (
    rules_options.drafter_fits_checkpoint,
    rules_options.draft_lengths_fit,
    rules_options.replay_keeps_enough,
    rules_options.reproducible_is_lossless,
    rules_options.lengths_fit,
    rules_options.sampling_is_consistent,
    rules_options.threads_can_be_started,
    rules_options.repository_is_read,
    rules_options.weights_are_there,
)


def check(case: Case, rules: tuple[Rule, ...]) -> list[Problem]:
    """Every problem of a case, in the order of the rules."""
    return [problem for rule in rules for problem in rule(case)]
