"""Evaluate a checkpoint with the engine: greedy, full numerics, top-k and candidates as served.

    python -m examples.tiny_model.evaluate --checkpoint deepinfer/assets/v41_tiny --output runs/tiny/eval.json --processes 2

Held-out documents per family and mode ("sort" and "sort/think"). An answer counts when every token is the expected one,
reasoning and end of sentence included; tool calls are also parsed by DeepSeek's own parser. Families are written as they
finish; run again, it goes on.
"""

import argparse
import json
import multiprocessing
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from deepinfer import LLM, SamplingParams
from examples.tiny_model.data.chat import EOS, THINK_END
from examples.tiny_model.data.mixture import Document, evaluation_documents
from examples.tiny_model.packing import EOS_ID
from examples.tiny_model.score import EVALUATION_SEED
from examples.tiny_model.tool_parse import parsed_calls

MAX_TOKENS = 2048
SPARE_TOKENS = 8
NUM_MISSES = 2  # shown per family
PACKAGES = ("deepinfer", "torch", "numpy", "numba", "tokenizers", "deepseek-recipe")
# What a release of this model must reach on unseen values.
GATES = {
    "arithmetic": 0.97, "json_request": 0.97, "json_schema": 0.97, "json_lookup": 0.97, "dates": 0.97, "list_count": 0.97,
    "list_extreme": 0.97, "list_reverse": 0.94, "copy_text": 0.94, "list_sort": 0.90, "tool_call": 0.97,
    "recall_80": 0.97, "recall_170": 0.97, "recall_350": 0.97, "recall_600": 0.97, "recall_1200": 0.90, "recall_1800": 0.90,
}  # fmt: skip
PARSED = ("tool_call",)  # gated by what the parser makes of the answer


class Worker:
    """One process with one engine."""

    def __init__(self, checkpoint: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
        self.llm = LLM(f"model.path={checkpoint}", "hardware=cpu", "model.numerics=full", "model.threads=1")

    def family(self, name: str, documents: list[Document]) -> dict[str, Any]:
        """Exact match, and where the family has calls, how many parse to exactly the intended ones."""
        prompts = [self.tokenizer.encode(d.prompt, add_special_tokens=False).ids for d in documents]
        expected = [self.tokenizer.encode(d.answer, add_special_tokens=False).ids for d in documents]
        keep = [i for i in range(len(documents)) if len(prompts[i]) + len(expected[i]) <= MAX_TOKENS]
        params = [SamplingParams(max_tokens=len(expected[i]) + SPARE_TOKENS, temperature=0.0) for i in keep]
        given = [list(output.token_ids) for output in self.llm.generate([prompts[i] for i in keep], params)]
        exact = [ids == expected[i] for i, ids in zip(keep, given, strict=True)]
        lengths = sorted(len(prompts[i]) for i in keep)
        result: dict[str, Any] = {
            "exact": sum(exact) / len(exact),
            "documents": len(keep),
            "median_prompt_tokens": lengths[len(lengths) // 2],
            "misses": [],
        }
        texts = [self.tokenizer.decode([t for t in ids if t != EOS_ID], skip_special_tokens=False) for ids in given]
        for i, ok, text in zip(keep, exact, texts, strict=True):
            if not ok and len(result["misses"]) < NUM_MISSES:
                wanted = documents[i].answer.removesuffix(EOS)
                result["misses"].append({"prompt_end": documents[i].prompt[-160:], "expected": wanted, "given": text})
        if name.partition("/")[0] in PARSED:
            pairs = [(documents[i], text) for i, text in zip(keep, texts, strict=True)]
            result["parsed"] = sum(_calls(d, text) == _calls(d, d.answer) for d, text in pairs) / len(pairs)
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
    summary["gates"] = {}
    for name, family in sorted(results.get("unseen_values", {}).items()):
        needed = GATES.get(name.partition("/")[0])
        if needed is not None:
            reached = family.get("parsed", family["exact"])
            summary["gates"][name] = {"needed": needed, "reached": reached, "passed": reached >= needed}
    return summary


_worker: Worker | None = None


def _start(checkpoint: Path) -> None:
    global _worker
    torch.set_num_threads(1)
    _worker = Worker(checkpoint)


def _run(task: tuple[str, str, list[Document]]) -> tuple[str, str, dict[str, Any]]:
    assert _worker is not None
    split, name, documents = task
    return split, name, _worker.family(name, documents)


def tasks(counts: dict[str, int], done: dict[str, dict[str, Any]]) -> list[tuple[str, str, list[Document]]]:
    """What is still to run, the longest documents first so that processes end together."""
    left = [
        (split, name, documents)
        for split, count in counts.items()
        for name, documents in evaluation_documents(count, EVALUATION_SEED, split == "unseen_templates").items()
        if name not in done.get(split, {})
    ]
    return sorted(left, key=lambda task: -sum(len(document.prompt) for document in task[2]))


def environment() -> dict[str, Any]:
    return {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}}


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200, help="documents per family and mode, unseen values")
    parser.add_argument("--template-count", type=int, default=100, help="the same with unseen templates")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args(list(argv) if argv is not None else None)
    results: dict[str, Any] = json.loads(arguments.output.read_text()) if arguments.output.is_file() else {}
    todo = tasks({"unseen_values": arguments.count, "unseen_templates": arguments.template_count}, results)
    pool = multiprocessing.get_context("spawn").Pool(arguments.processes, _start, (arguments.checkpoint.absolute(),))
    with pool:
        for number, (split, name, family) in enumerate(pool.imap_unordered(_run, todo), start=1):
            results.setdefault(split, {})[name] = family
            print(f"{number}/{len(todo)} {split} {name}: {family['exact']:.3f} of {family['documents']}", flush=True)
            write(arguments.output, results)
    print(json.dumps(write(arguments.output, results)["summary"], indent=1))


def write(output: Path, results: dict[str, Any]) -> dict[str, Any]:
    """Results in a stable order, with their summary and the versions that gave them."""
    ordered: dict[str, Any] = {"summary": summarise(results), "environment": environment()}
    for split in ("unseen_values", "unseen_templates"):
        ordered[split] = dict(sorted(results.get(split, {}).items()))
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")
    return ordered


if __name__ == "__main__":
    main()
