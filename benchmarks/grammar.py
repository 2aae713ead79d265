"""Structured output on the host: µs of a mask, of an accepted token and of a draft's row, ms of a compilation.

    python benchmarks/grammar.py [--vocabulary 129280] [--record]

Both backends in the same run, xgrammar left out with a notice where it is not installed.

`mask_us`, `mask_p99_us`: the packed mask of one row, each place's best of some passes (`first_pass_mask_us`: the first alone).
`accept_us`: a token. `rows_us`: the six rows of a block of five legal drafts, and their commitment, as the engine has them.
`compile_ms`: with the first mask, without a cache. `write_us`: writing the words of a mask, the least that any backend must do.
With the tiny model's vocabulary, and with one padded to `--vocabulary` by made-up tokens, pairs of its own: denser than a real
one. `share`: of a decode step of the tiny model, alone, the engine's time for its grammar.
"""

import importlib.util
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from record import options, record

from deepinfer import LLM, SamplingParams
from deepinfer.config.facts import shipped_folder
from deepinfer.sampling.grammar.backend import Compiled, GrammarBackend, Vocabulary
from deepinfer.sampling.grammar.llguidance import Llguidance
from deepinfer.sampling.grammar.session import Session
from deepinfer.sampling.tokenizer import BpeTokenizer
from deepinfer.structured import Grammar, JsonObject, JsonSchema, Regex

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "mail": {"type": "string", "format": "email"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
    },
    "required": ["name", "age", "mail", "tags"],
    "additionalProperties": False,
}
CASES: dict[str, tuple[Grammar, str]] = {
    "json_schema": (
        JsonSchema(PERSON),
        '{"name": "Ada Lovelace", "age": 36, "mail": "ada@example.org", "tags": ["red", "blue"]}',
    ),
    "json_object": (JsonObject(), '{"name": "Ada", "list": [1, 2.5, {"deep": null}], "text": "some more words"}'),
    "regex": (Regex(r"[A-Z][a-z]+ [0-9]{1,2}, [0-9]{4}( at [0-9]{2}:[0-9]{2})?"), "March 14, 2026 at 12:30"),
}
REPEATS = 7


class Padded(BpeTokenizer):
    """The tiny tokenizer with more tokens than it has: they are legal where their bytes are, and never encoded to."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path)
        rng = np.random.default_rng(0)
        own = [text for text in self._bytes if 1 < len(text) < 8]
        while len(self._bytes) < size:
            left, right = rng.integers(len(own), size=2)
            self._bytes.append(own[left] + own[right])


def times_of(compiled: Compiled, tokens: list[int], vocabulary: Vocabulary, grammar: Grammar) -> dict[str, float]:
    """µs of masks and tokens along one answer; of each place the fastest of some repetitions."""
    masks, accepts = np.full((REPEATS, len(tokens)), np.inf), np.full((REPEATS, len(tokens)), np.inf)
    for repeat in range(REPEATS):
        matcher = compiled.matcher()
        for place, token in enumerate(tokens):
            started = time.perf_counter()
            matcher.mask()
            between = time.perf_counter()
            refused = matcher.accept([token])
            accepts[repeat, place] = time.perf_counter() - between
            masks[repeat, place] = between - started
            assert refused is None, (place, token, refused)
    rows = []
    for _ in range(REPEATS):
        session = Session(compiled, SamplingParams(grammar=grammar), vocabulary)
        started = time.perf_counter()
        for place in range(0, len(tokens) - 5, 5):
            assert len(session.masks(tokens[place : place + 5])) == 6
            session.advance(tokens[place : place + 5])
        rows.append((time.perf_counter() - started) / max(1, len(range(0, len(tokens) - 5, 5))))
    best = masks.min(axis=0) * 1e6
    return {
        "mask_us": round(float(best.mean()), 2),
        "mask_p99_us": round(float(np.quantile(best, 0.99)), 2),
        "first_pass_mask_us": round(float(masks[0].mean() * 1e6), 2),
        "accept_us": round(float(accepts.min(axis=0).mean() * 1e6), 2),
        "rows_us": round(min(rows) * 1e6, 2),
    }


def compile_ms(backend: GrammarBackend, grammar: Grammar) -> float:
    """Fastest of some compilations with their first masks."""
    found = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        backend.compile(grammar).matcher().mask()
        found.append((time.perf_counter() - started) * 1e3)
    return round(min(found), 3)


def write_us(num_words: int) -> float:
    """Writing as many words, the fastest of some."""
    mask, found = np.empty(num_words, dtype=np.uint32), []
    for _ in range(100):
        started = time.perf_counter()
        mask.fill(0xFFFFFFFF)
        found.append((time.perf_counter() - started) * 1e6)
    return round(min(found), 3)


def share_of_step() -> dict[str, float]:
    """One request alone under a grammar: the desk's µs a step, and ms of a step."""
    with LLM("model=v41_tiny", "hardware=cpu", "grammar=llguidance") as llm:
        desk = llm.engine.grammars._desk
        spent = {"us": 0.0}
        for name in ("masks", "advance"):
            whole = getattr(desk, name)

            def timed(*args, whole=whole):
                started = time.perf_counter()
                result = whole(*args)
                spent["us"] += (time.perf_counter() - started) * 1e6
                return result

            setattr(desk, name, timed)
        params = SamplingParams(grammar=CASES["json_schema"][0], max_tokens=100, seed=1)
        llm.generate("Ada", params)
        before, spent["us"] = llm.engine.stats(), 0.0
        llm.generate(["Ada"] * 1, params)
        after = llm.engine.stats()
    steps = after.steps - before.steps
    step_ms = (after.step_s - before.step_s) / steps * 1e3
    return {
        "desk_us": round(spent["us"] / steps, 2),
        "step_ms": round(step_ms, 3),
        "share": round(spent["us"] / steps / step_ms / 1e3, 5),
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--vocabulary", type=int, default=129_280)
    args = parser.parse_args()
    path = shipped_folder("v41_tiny") / "tokenizer.json"
    for tokenizer in (BpeTokenizer(path), Padded(path, args.vocabulary)):
        vocabulary = Vocabulary(tokenizer, tokenizer.vocab_size, (1,))
        backends: list[GrammarBackend] = [Llguidance(vocabulary)]
        if importlib.util.find_spec("xgrammar") is None:
            print("xgrammar is not installed, so it is left out: pip install -e '.[xgrammar]'", file=sys.stderr)
        else:
            from deepinfer.sampling.grammar.xgrammar import Xgrammar

            backends.append(Xgrammar(vocabulary))
        for name, (grammar, text) in CASES.items():
            for backend in backends:
                compiled = backend.compile(grammar)
                values = times_of(compiled, tokenizer.encode(text), vocabulary, grammar)
                values |= {"compile_ms": compile_ms(backend, grammar), "write_us": write_us(vocabulary.num_words)}
                where = {"backend": f"{backend.name} {version(backend.name)}", "vocabulary": vocabulary.vocab_size}
                record(Path(__file__).stem, what=name, **where, **values)
    record(Path(__file__).stem, what="share of a step", backend="llguidance", **share_of_step())


if __name__ == "__main__":
    main()
