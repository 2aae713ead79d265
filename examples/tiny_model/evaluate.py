"""Evaluate a checkpoint with the engine: greedy, full numerics, top-k and candidates as served.

    python -m examples.tiny_model.evaluate --checkpoint deepinfer/assets/v41_tiny --output runs/tiny/eval.json

Held-out documents per family, half of them in thinking mode; an answer counts when every token is the expected one, reasoning
and end of sentence included. Families are written as they finish; run again, it goes on.
"""

import argparse
import json
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from deepinfer import LLM, SamplingParams
from examples.tiny_model.data.chat import EOS, THINK_END
from examples.tiny_model.data.mixture import FAMILIES, Document, evaluation_family
from examples.tiny_model.packing import EOS_ID
from examples.tiny_model.score import EVALUATION_SEED
from examples.tiny_model.tool_parse import parsed_calls

MAX_TOKENS = 2048
SPARE_TOKENS = 8
WIDE_BATCH = (
    "scheduler.max_num_seqs=128",
    "scheduler.max_prefill_tokens=2048",
    "scheduler.max_num_batched_tokens=4096",
)
# What a release of this model must reach on unseen values.
GATES = {
    "arithmetic": 0.97, "json_request": 0.97, "json_schema": 0.97, "json_lookup": 0.97, "dates": 0.97, "list_count": 0.97,
    "list_extreme": 0.97, "list_reverse": 0.94, "copy_text": 0.94, "list_sort": 0.90, "tool_call_parsed": 0.97,
    "recall_80": 0.97, "recall_170": 0.97, "recall_350": 0.97, "recall_600": 0.97, "recall_1200": 0.90, "recall_1800": 0.90,
}  # fmt: skip


def answer_ids(llm: LLM, prompts: list[list[int]], lengths: list[int]) -> list[list[int]]:
    """Greedy answers, allowed to be a little longer than expected."""
    params = [SamplingParams(max_tokens=length + SPARE_TOKENS, temperature=0.0) for length in lengths]
    return [list(output.token_ids) for output in llm.generate(prompts, params)]


def evaluate_family(llm: LLM, tokenizer: Tokenizer, name: str, documents: list[Document]) -> dict[str, Any]:
    """Exact match, and for tool calls also how many parse to exactly the intended calls."""
    prompts = [tokenizer.encode(d.prompt, add_special_tokens=False).ids for d in documents]
    expected = [tokenizer.encode(d.answer, add_special_tokens=False).ids for d in documents]
    keep = [i for i in range(len(documents)) if len(prompts[i]) + len(expected[i]) <= MAX_TOKENS]
    started = time.monotonic()
    given = answer_ids(llm, [prompts[i] for i in keep], [len(expected[i]) for i in keep])
    exact = [ids == expected[i] for i, ids in zip(keep, given, strict=True)]
    lengths = sorted(len(prompts[i]) for i in keep)
    result: dict[str, Any] = {
        "exact": sum(exact) / len(exact),
        "documents": len(keep),
        "median_prompt_tokens": lengths[len(lengths) // 2],
        "seconds": round(time.monotonic() - started, 1),
        "misses": [],
    }
    texts = [tokenizer.decode([t for t in ids if t != EOS_ID], skip_special_tokens=False) for ids in given]
    for i, ok, text in zip(keep, exact, texts, strict=True):
        if not ok and len(result["misses"]) < 3:
            wanted = documents[i].answer.removesuffix(EOS)
            result["misses"].append({"prompt_end": documents[i].prompt[-160:], "expected": wanted, "given": text})
    if name == "tool_call":
        parsed = [
            _calls(documents[i], text) == _calls(documents[i], documents[i].answer)
            for i, text in zip(keep, texts, strict=True)
        ]
        result["parsed"] = sum(parsed) / len(parsed)
    return result


def _calls(document: Document, answer: str) -> list[tuple[str, Any]] | None:
    text = answer.removesuffix(EOS)
    if document.is_thinking:
        text = text.partition(THINK_END)[2]
    return parsed_calls(text, inside_block=document.prompt.endswith(" calls>\n"))


def summarise(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Means over families, and every gate with what was reached."""
    summary: dict[str, Any] = {}
    for split in ("unseen_values", "unseen_templates"):
        families = results.get(split, {})
        if families:
            summary[split] = sum(f["exact"] for f in families.values()) / len(families)
    values = results.get("unseen_values", {})
    reached = {name: family["exact"] for name, family in values.items()}
    if "tool_call" in values:
        reached["tool_call_parsed"] = values["tool_call"]["parsed"]
    summary["gates"] = {
        name: {"needed": needed, "reached": reached[name], "passed": reached[name] >= needed}
        for name, needed in GATES.items()
        if name in reached
    }
    return summary


def documents_of(name: str, count: int, unseen_templates: bool) -> list[Document]:
    """`count` documents of a family, its modes in equal parts."""
    modes = evaluation_family(name, count, EVALUATION_SEED, unseen_templates).values()
    return [document for mode in modes for document in mode[: -(-count // len(modes))]]


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200, help="documents per family")
    parser.add_argument("--template-count", type=int, default=60, help="documents per family with unseen templates")
    arguments = parser.parse_args(list(argv) if argv is not None else None)
    tokenizer = Tokenizer.from_file(str(arguments.checkpoint / "tokenizer.json"))
    results: dict[str, Any] = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
    overrides = (f"model.path={arguments.checkpoint}", "hardware=cpu", "model.numerics=full", *WIDE_BATCH)
    with LLM(*overrides) as llm:
        for split, count in (("unseen_values", arguments.count), ("unseen_templates", arguments.template_count)):
            done = results.setdefault(split, {})
            for name in (name for name, family in FAMILIES.items() if family.is_scored and name not in done):
                documents = documents_of(name, count, split == "unseen_templates")
                done[name] = evaluate_family(llm, tokenizer, name, documents)
                print(f"{split} {name}: {done[name]['exact']:.3f} of {done[name]['documents']}", flush=True)
                results["summary"] = summarise(results)
                arguments.output.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(results["summary"], indent=1))


if __name__ == "__main__":
    main()
