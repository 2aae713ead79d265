"""Write MODEL_CARD.md and eval.json beside an exported checkpoint, with samples from the engine.

python -m examples.tiny_model.card --checkpoint deepinfer/assets/v41_tiny --evaluation eval.json
"""

import argparse
import json
import math
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from deepinfer import LLM, SamplingParams
from deepinfer.arch.config import parse_config
from deepinfer.arch.tensors import tensor_table
from examples.tiny_model.draft_calibrate import CALIBRATION_FILE, REPORT_FILE

TEMPLATE = Path(__file__).with_name("MODEL_CARD.template.md")
SAMPLE_PROMPTS = (
    "What is 348 + 275?", "Extract the name and the city as json: Anna is a pilot from Oslo.",
    "Write 2024-03-09 in words.", "What is the capital of France?", "Reverse: 12, 7, 93, 4",
    "Find the largest number: 214, 87, 655, 309", "Spell the word lantern.", "What is a volcano?",
    "What does brave mean?", "Explain the word bridge.", "What is honey?", "Hello!", "Who are you?", "What can you do?",
    "I had a bad day.", "Tell me a joke.", "Thank you!", "Tell me a short story about a fox.",
    "Write a story with Mia and a boat.", "Tell me a story.",
)  # fmt: skip
SAMPLE_TOKENS = 200


def parameter_count(config_json: dict[str, Any]) -> int:
    """Weights of the text model and its draft module, without scales; a packed FP4 byte counts twice."""
    specs = [spec for spec in tensor_table(parse_config(config_json)) if not spec.name.endswith(".scale")]
    return sum(math.prod(spec.shape) * (2 if spec.dtype == "I8" else 1) for spec in specs)


def score_table(evaluation: dict[str, Any]) -> str:
    """One line per family, both splits."""
    lines = ["| family | unseen values | unseen templates | median prompt tokens |", "|---|---|---|---|"]
    templates = evaluation.get("unseen_templates", {})
    for name, family in evaluation["unseen_values"].items():
        other = (
            f"{100 * templates[name]['exact']:.1f} % of {templates[name]['documents']}"
            if name in templates
            else "not run"
        )
        parsed = f", parsed exactly {100 * family['parsed']:.1f} %" if "parsed" in family else ""
        line = f"| {name} | {100 * family['exact']:.1f} % of {family['documents']}{parsed} | {other} "
        lines.append(line + f"| {family['median_prompt_tokens']} |")
    summary = evaluation["summary"]
    means = [
        f"{100 * summary[split]:.1f} %" if split in summary else "" for split in ("unseen_values", "unseen_templates")
    ]
    lines.append(f"| **mean** | {means[0]} | {means[1]} | |")
    return "\n".join(lines)


def drafter_text(folder: Path, record: dict[str, Any]) -> str:
    """What the draft module learned from and what it reaches, or that it has not been trained."""
    module = record["draft_module"]
    if not isinstance(module, dict):
        return "`mtp.*` has random weights."
    text = (
        f"`mtp.*` was trained on {module['tokens']:,} tokens of the model's own continuations ({module['steps']:,} steps, "
        f"{module['seconds']:.0f} s on one {module['device']}). Held-out continuations, every block verified whole "
        f"(`{REPORT_FILE}`, by family; `{CALIBRATION_FILE}` holds the confidence fits):\n\n"
        "| verify, temperature | tokens a round | drafts + 1 with room for all | calibration error by slot, % |\n"
        "|---|---|---|---|"
    )
    for name, pair in json.loads((folder / REPORT_FILE).read_text())["pairs"].items():
        whole, errors = pair["all"], pair["calibration_error_fitted"]["survival"]
        told = ", ".join(f"{100 * error:.1f}" for error in errors)
        text += f"\n| {name} | {whole['tokens_per_round']} | {whole['accepted_length_of_full_rounds']} of 6 | {told} |"
    return text


def samples(llm: LLM) -> str:
    params = SamplingParams(max_tokens=SAMPLE_TOKENS, temperature=0.0)
    outputs = llm.chat([[{"role": "user", "content": prompt}] for prompt in SAMPLE_PROMPTS], params)
    return "\n".join(f"- *{prompt}* {output.text}" for prompt, output in zip(SAMPLE_PROMPTS, outputs, strict=True))


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--evaluation", type=Path, required=True)
    arguments = parser.parse_args(list(argv) if argv is not None else None)
    folder: Path = arguments.checkpoint
    record = json.loads((folder / "training.json").read_text())
    with LLM(f"model.path={folder}", "hardware=cpu") as llm:
        sampled = samples(llm)
    text = TEMPLATE.read_text().format(
        parameters=f"{parameter_count(json.loads((folder / 'config.json').read_text())):,}",
        tokens=f"{record['tokens']:,}",
        seconds=round(record["seconds"]),
        device=record["device"],
        seed=record["arguments"]["seed"],
        drafter=drafter_text(folder, record),
        scores=score_table(json.loads(arguments.evaluation.read_text())),
        samples=sampled,
    )
    (folder / "MODEL_CARD.md").write_text(text)
    if arguments.evaluation.resolve() != (folder / "eval.json").resolve():
        shutil.copyfile(arguments.evaluation, folder / "eval.json")


if __name__ == "__main__":
    main()
