"""All rules that a settled case is held against. Each is asked, none stops another."""

from collections.abc import Callable, Iterator

from deepinfer.config.errors import Problem
from deepinfer.plan import (
    rules_balancer,
    rules_layout,
    rules_options,
    rules_replay,
    rules_roles,
    rules_unused,
    rules_workload,
)
from deepinfer.plan.settle import Case

Rule = Callable[[Case], Iterator[Problem]]
LAYOUT_RULES: tuple[Rule, ...] = (
    rules_layout.experts_divide,
    rules_layout.redundancy_has_a_use,
    rules_layout.decode_ranks_share_no_prompt,
    rules_balancer.experts_have_where_to_go,
    rules_balancer.one_group_balances,
    rules_layout.executor_fits,
    rules_roles.parallel_belongs_to_a_side,
)
OPTION_RULES: tuple[Rule, ...] = (
    rules_options.drafter_fits_checkpoint,
    rules_options.draft_lengths_fit,
    rules_replay.replay_keeps_enough,
    rules_replay.replay_cuts_cleanly,
    rules_replay.prompt_logprobs_need_every_row,
    rules_options.reproducible_is_lossless,
    rules_options.lengths_fit,
    rules_options.sampling_is_consistent,
    rules_options.grammar_is_enforced,
    rules_options.threads_can_be_started,
    rules_options.repository_is_read,
    rules_options.weights_are_there,
    rules_options.draft_weights_are_there,
    rules_roles.hardware_is_of_some_side,
    rules_unused.threads_need_a_cpu,
    rules_unused.cache_has_one_size,
    rules_unused.revisions_are_of_a_hub,
    rules_unused.snapshots_are_read,
    rules_workload.traffic_is_told_once,
    rules_workload.steps_yield_what_they_check,
)


def check(case: Case, rules: tuple[Rule, ...]) -> list[Problem]:
    """Every problem of a case, in the order of the rules."""
    return [problem for rule in rules for problem in rule(case)]
