"""The grammar of the configuration, tried before anything is built: a mistake in it would end every request."""

from __future__ import annotations

import json
import re
import threading
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

import yaml

from deepinfer.config.errors import Problem, Refused
from deepinfer.config.quoting import shell
from deepinfer.engine.unbuilt import is_simulated
from deepinfer.sampling.grammar.backend import GrammarError, Vocabulary
from deepinfer.sampling.grammar.problems import grammar_problems, request_problems
from deepinfer.sampling.params import from_config

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deepinfer.plan.types import Node, Plan
    from deepinfer.sampling.tokenizer import BpeTokenizer

KEYS = ("json_schema", "regex", "ebnf", "choice")
EXAMPLES = {
    "json_schema": '{"type": "object"}',
    "regex": "yes|no",
    "ebnf": 'root ::= "yes" | "no"',
    "choice": "[yes,no]",
}
SHOWN = 60  # characters of what was asked
NUM_BYTES = 256


class ByteTokenizer:
    """A token for each byte, and an end: what can be wrong with a grammar itself is wrong over these too."""

    vocab_size = NUM_BYTES + 1

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < NUM_BYTES else b""

    def is_special(self, token_id: int) -> bool:
        return token_id >= NUM_BYTES

    def token_id(self, text: str) -> int | None:
        return None

    def encode(self, text: str) -> list[int]:
        return list(text.encode())


def refuse_bad_grammar(plan: Plan) -> None:
    """Raise Refused where `plan.sampling` asks for a grammar that no request could follow. Nothing is loaded for it."""
    problems = list(asked_grammar_problems(plan))
    if problems:
        raise Refused(problems)


def asked_grammar_problems(plan: Plan) -> Iterator[Problem]:
    """What is wrong with the grammar that every answer of `plan` has to follow by default."""
    key = next((key for key in KEYS if getattr(plan.sampling, key, None)), "")
    node = next((node for node in plan.graph if node.name == "grammar"), None)
    if not key or node is None:
        return
    value = getattr(plan.sampling, key)
    asked = _asked(key, value)
    if is_simulated(plan):
        why = "a simulation invents tokens, and nothing would enforce a grammar"
        yield Problem(asked=asked, found="the executor is simulated", why=why, fix="executor=local")
        return
    params = from_config(plan.sampling)
    assert params.grammar is not None
    backend = node.option.partition("=")[2]
    found: Sequence[str] = request_problems(params, plan.model.config.vocab_size)
    found = found or grammar_problems(cast(Any, params.grammar), backend) or _compiled(node, params.grammar)
    for text in found:
        yield Problem(asked=asked, found=text, why="every answer would fail", fix=_fix(key, value))


def _compiled(node: Node, grammar: Any) -> Sequence[str]:
    """What the library says of a grammar; nothing where it takes too long, which the engine tells of each request."""
    module, _, name = node.implementation.partition(":")
    vocabulary = Vocabulary(cast("BpeTokenizer", ByteTokenizer()), NUM_BYTES + 1, (NUM_BYTES,))
    found: list[str] = []

    def work() -> None:
        try:
            getattr(import_module(module), name)(vocabulary).compile(grammar)
        except (ValueError, TypeError, RecursionError, MemoryError, OverflowError) as error:
            plain = isinstance(error, GrammarError)
            found.append(str(error) if plain else f"{type(error).__name__}: {error}")

    thread = threading.Thread(target=work, name="asked-grammar", daemon=True)
    thread.start()
    thread.join(float(node.settings["compile_timeout_s"]))
    return tuple(" ".join(text.split()) for text in found)


def _asked(key: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"sampling.{key}={text if len(text) <= SHOWN else text[:SHOWN] + '…'}"


def _fix(key: str, value: Any) -> str:
    """What was probably meant, else an example."""
    meant = EXAMPLES[key]
    if key == "json_schema":
        meant = _as_json(value) or meant
    elif key == "regex" and not re.search(r"[\w\s]", value):  # punctuation alone was meant as it stands
        meant = re.escape(value)
    return shell(f"sampling.{key}={meant}")


def _as_json(text: str) -> str:
    """The mapping that YAML reads in a text that is no JSON, as JSON; "" where it is none."""
    try:
        json.loads(text)
        return ""
    except (ValueError, RecursionError):
        pass
    try:
        value = yaml.safe_load(text)
        return json.dumps(value) if isinstance(value, dict) and value and None not in value.values() else ""
    except (yaml.YAMLError, TypeError, ValueError, RecursionError):
        return ""
