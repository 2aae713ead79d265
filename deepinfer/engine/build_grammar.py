"""The desk of grammars that a plan chose."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deepinfer.plan.types import Plan
    from deepinfer.sampling.grammar.desk import GrammarDesk
    from deepinfer.sampling.tokenizer import BpeTokenizer


def build_grammar(plan: Plan, tokenizer: BpeTokenizer | None) -> GrammarDesk | None:
    """None where the plan has no grammars, or where there is no tokenizer whose texts they could be about."""
    return None
