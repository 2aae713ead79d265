"""The desk of grammars that a plan chose."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from deepinfer.config.machine import Host
from deepinfer.engine.unbuilt import is_simulated
from deepinfer.sampling.grammar.backend import LateBackend, Vocabulary
from deepinfer.sampling.grammar.desk import GrammarDesk

if TYPE_CHECKING:
    from deepinfer.plan.types import Plan
    from deepinfer.sampling.tokenizer import BpeTokenizer


MOST_THREADS = 8  # that share the grammars of a step: half of the cores, for others compute beside them


def build_grammar(plan: Plan, tokenizer: BpeTokenizer | None) -> GrammarDesk | None:
    """None where the plan has no grammars, or where there is no tokenizer whose texts they could be about."""
    node = next((node for node in plan.graph if node.name == "grammar"), None)
    if node is None or tokenizer is None:
        return None
    config = plan.model.config
    vocabulary = Vocabulary(tokenizer, config.vocab_size, (config.eos_token_id,))
    module, _, name = node.implementation.partition(":")
    backend = LateBackend(node.option.partition("=")[2], lambda: getattr(import_module(module), name)(vocabulary))
    return GrammarDesk(
        backend,
        vocabulary,
        compile_timeout_s=float(node.settings["compile_timeout_s"]),
        drafting=any(node.name == "drafter" and node.implementation for node in plan.graph),
        threads=min(MOST_THREADS, Host().cores // 2),
    )


def why_no_grammar(plan: Plan) -> str:
    """Why an engine without grammars has none, for whoever asks for one."""
    if all(node.name != "grammar" for node in plan.graph):
        return "this engine was built without grammars (grammar=none): type grammar=llguidance"
    if is_simulated(plan):
        return "a simulation invents tokens, and nothing would enforce a grammar: leave it out, or type executor=local"
    return "a grammar speaks of texts, and this model has no tokenizer.json"
