"""How an "auto" was settled, as the plan wrote it down: once, or once for each role."""

from typing import Any

from msgspec import structs

from deepinfer.plan.ledger import OF
from deepinfer.plan.types import Decision, Plan

GROUPED = (".name", ".kind")  # keys that the choice of their group settles


def decision_of(key: str, asked: Any, plan: Plan | None) -> tuple[Decision | None, Any]:
    """The decision about a key (those of all roles as one) and the value to try others around; None, None for none."""
    if plan is None:
        return None, None
    found = [decision for decision in plan.decisions if decision.key.partition(OF)[0] == key]
    if not found and asked == "auto" and key.endswith(GROUPED):
        return decision_of(key.rpartition(".")[0], asked, plan)
    if not found:
        return None, None
    values = [_plain(decision.value) for decision in found]
    if len(found) == 1:
        return found[0], values[0]
    numbers = [value for value in values if not isinstance(value, str)]
    around = min(numbers) if len(numbers) == len(values) else values[0]  # what every role can hold
    return _together(key, found), around


def _together(key: str, decisions: list[Decision]) -> Decision:
    """One decision that names the role of each value, and of each reason where reasons differ."""
    roles = [decision.key.partition(OF)[2] for decision in decisions]
    first = decisions[0]
    rules = {decision.rule: role for decision, role in zip(decisions, roles, strict=True)}
    value = ", ".join(f"{role} {decision.value}" for role, decision in zip(roles, decisions, strict=True))
    rule = first.rule if len(rules) == 1 else "; ".join(f"{role}: {rule}" for rule, role in rules.items())
    return structs.replace(first, key=key, value=value, rule=rule)


def _plain(text: str) -> Any:
    """The number that a decision names, else its text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
