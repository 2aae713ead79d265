"""Fit the confidences of a measured drafter, judge them on documents not fitted on, and write what was found.

    python -m examples.tiny_model.draft_calibrate --blocks runs/drafter/blocks.npz --output runs/drafter \\
        --confidence-log benchmarks/data/draft_confidence.npz

Writes draft_calibration.json (what the engine reads), draft_eval.json (the report) and, if asked, a small log of calibrated
confidences for studies of verify lengths. Fitted on documents of even number, judged on those of odd number.

Shapes: R rounds · K slots of a block · N rounds of the log.
"""

import argparse
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deepinfer.speculation.calibration_fit import calibration_error, fit_block, sigmoid, survival
from examples.tiny_model.draft_documents import TEMPERATURES
from examples.tiny_model.draft_measure import HELD_OUT_SEED, MEASURED_TOKENS, VERIFY_MODES

LOG_ROUNDS = 14_000  # of each temperature in the confidence log
LOG_SEED = 3
CALIBRATION_FILE, REPORT_FILE = "draft_calibration.json", "draft_eval.json"


class Rounds(NamedTuple):
    """Rounds of one verify mode and temperature. `logits_RK` is NaN where a slot lies after an accepted end of sentence."""

    logits_RK: np.ndarray
    accepted_RK: np.ndarray  # this draft and all before it
    count_R: np.ndarray  # accepted drafts
    exists_R: np.ndarray  # tokens that the document still had
    document_R: np.ndarray
    family_R: np.ndarray

    def where(self, mask_R: np.ndarray) -> "Rounds":
        return Rounds(*(column[mask_R] for column in self))


def rounds_of(blocks: dict[str, np.ndarray], verify: str, temperature: float) -> Rounds:
    """Rounds that a cut-off document leaves incomplete are dropped."""

    def column(name: str) -> np.ndarray:
        return blocks[f"{verify}/{name}"]

    slots = column("confidence").shape[1]
    keep = np.isclose(column("temperature").astype(np.float64), temperature, atol=1e-3)
    keep &= column("ended") | (column("exists") == slots)
    count, exists = column("accepted")[keep].astype(np.int64), column("exists")[keep].astype(np.int64)
    slot = np.arange(slots)
    over = (count == exists)[:, None] & (slot >= exists[:, None])
    logits = np.where(over, np.nan, column("confidence")[keep].astype(np.float64))
    accepted = slot < count[:, None]
    return Rounds(logits, accepted, count, exists, column("document")[keep], column("family")[keep])


def errors(rounds: Rounds, scale_K: np.ndarray, offset_K: np.ndarray) -> dict[str, list[float]]:
    """Calibration error by slot: of the chance that a draft and all before it survive, and of the draft's own, given those."""
    chance_RK = sigmoid(rounds.logits_RK * scale_K + offset_K)
    judged_RK = np.isfinite(rounds.logits_RK)
    cumulative_RK = survival(chance_RK)
    reached_RK = judged_RK & (np.arange(len(scale_K)) <= rounds.count_R[:, None])
    of_survival, of_slot = [], []
    for slot in range(len(scale_K)):
        labels = rounds.accepted_RK[:, slot].astype(np.float64)
        judged, reached = judged_RK[:, slot], reached_RK[:, slot]
        of_survival.append(round(calibration_error(cumulative_RK[judged, slot], labels[judged]), 4))
        of_slot.append(round(calibration_error(chance_RK[reached, slot], labels[reached]), 4))
    return {"survival": of_survival, "conditional": of_slot}


def acceptance(rounds: Rounds) -> dict[str, Any]:
    """Tokens of a round with its bonus: over all rounds (a document's end cuts the last), and over rounds with room for all."""
    slots = rounds.accepted_RK.shape[1]
    emitted = np.minimum(rounds.count_R + 1, rounds.exists_R)
    full = rounds.exists_R > slots - 1
    judged = np.isfinite(rounds.logits_RK)
    conditional = []
    for slot in range(slots):
        reached = judged[:, slot] & (rounds.count_R >= slot)
        share = rounds.accepted_RK[reached, slot].mean() if reached.any() else float("nan")
        conditional.append(round(float(share), 4) if reached.any() else None)
    return {
        "rounds": len(emitted),
        "tokens_per_round": round(float(emitted.mean()), 3),
        "full_rounds": int(full.sum()),
        "accepted_length_of_full_rounds": round(float((rounds.count_R[full] + 1).mean()), 3) if full.any() else None,
        "conditional_acceptance": conditional,
    }


def report_pair(rounds: Rounds, names: np.ndarray) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """What one verify mode and temperature gives, its scale [K] and offset [K]."""
    even = rounds.document_R % 2 == 0
    fitted, held = rounds.where(even), rounds.where(~even)
    scale_K, offset_K = fit_block(fitted.logits_RK, fitted.accepted_RK)
    slots = len(scale_K)
    families = {str(names[f]): acceptance(rounds.where(rounds.family_R == f)) for f in np.unique(rounds.family_R)}
    record = {
        "all": acceptance(rounds),
        "rounds_fitted": len(fitted.count_R),
        "rounds_judged": len(held.count_R),
        "calibration_error_raw": errors(held, np.ones(slots), np.zeros(slots)),
        "calibration_error_fitted": errors(held, scale_K, offset_K),
        "families": dict(sorted(families.items())),
    }
    return record, scale_K, offset_K


def confidence_log(
    parts: list[tuple[Rounds, float, np.ndarray, np.ndarray]], names: np.ndarray
) -> dict[str, np.ndarray]:
    """Calibrated conditional confidences of rounds, rarer families drawn more often, with what full verification accepted."""
    rng, columns = np.random.default_rng(LOG_SEED), []
    for rounds, temperature, scale_K, offset_K in parts:
        full = np.flatnonzero(rounds.exists_R >= rounds.logits_RK.shape[1])
        sizes = np.bincount(rounds.family_R[full], minlength=len(names))
        weight = 1.0 / sizes[rounds.family_R[full]] ** 0.5
        order = np.argsort(-np.log(rng.random(len(full))) / weight)[:LOG_ROUNDS]
        rows = np.sort(full[order])
        chance = sigmoid(rounds.logits_RK[rows] * scale_K + offset_K).astype(np.float16)
        tempered = np.full(len(rows), temperature, np.float16)
        columns.append(
            (chance, rounds.count_R[rows].astype(np.uint8), rounds.family_R[rows].astype(np.uint8), tempered)
        )
    confidence, accepted, family, temperature_N = (np.concatenate(column) for column in zip(*columns, strict=True))
    return {
        "confidence": confidence, "accepted": accepted, "family": family, "temperature": temperature_N, "families": names
    }  # fmt: skip


def calibrate(blocks: dict[str, np.ndarray], provenance: dict[str, Any]) -> tuple[dict, dict, dict[str, np.ndarray]]:
    """Calibration file, report, and the log of coupled rounds at temperatures 1 and 0."""
    names = blocks["families"]
    fits, pairs, logged = [], {}, []
    for verify in VERIFY_MODES:
        for temperature in TEMPERATURES:
            rounds = rounds_of(blocks, verify, temperature)
            record, scale_K, offset_K = report_pair(rounds, names)
            pairs[f"{verify}, temperature {temperature:g}"] = record
            rounded = {
                "scale": [round(float(x), 4) for x in scale_K], "offset": [round(float(x), 4) for x in offset_K]
            }  # fmt: skip
            fits.append({"verify": verify, "temperature": temperature, **rounded})
            if verify == "coupled" and temperature in (0.0, 1.0):
                logged.append((rounds, temperature, scale_K, offset_K))
    file = {"format": 1, "fits": fits, "provenance": provenance}
    return file, {"provenance": provenance, "pairs": pairs}, confidence_log(logged, names)


def main(argv: Iterable[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=Path, required=True, help="what draft_measure wrote")
    parser.add_argument("--output", type=Path, required=True, help="folder of the two JSON files")
    parser.add_argument("--confidence-log", type=Path)
    arguments = parser.parse_args(list(argv) if argv is not None else None)
    with np.load(arguments.blocks) as stored:
        blocks = dict(stored)
    provenance = {
        "documents": f"held-out prompts of every family of up to {MEASURED_TOKENS} tokens, the target's own continuations, "
        "a third each at every temperature; greedy repeats count once",
        "fields": "tokens_per_round: over all rounds, bonus included, the last round of a document cut by its end; "
        "accepted_length_of_full_rounds: accepted drafts + 1 where five more tokens were to come; calibration errors: 20 bins, "
        "on documents that were not fitted on, of a draft's survival (it and all before it) and conditional on those before",
        "held_out_seed": HELD_OUT_SEED,
        "blocks_sha256": hashlib.sha256(arguments.blocks.read_bytes()).hexdigest(),
        "computed_in": "float32 training forward, quantised weights, activations and caches",
    }
    file, report, log = calibrate(blocks, provenance)
    for name, content in ((CALIBRATION_FILE, file), (REPORT_FILE, report)):
        (arguments.output / name).write_text(json.dumps(content, indent=1) + "\n")
    if arguments.confidence_log is not None:
        arguments.confidence_log.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(arguments.confidence_log, **log)  # type: ignore[arg-type]
    for pair, record in report["pairs"].items():
        whole, error = record["all"], record["calibration_error_fitted"]["survival"]
        told = f"{whole['accepted_length_of_full_rounds']} of {whole['full_rounds']} full rounds"
        print(f"{pair}: {whole['tokens_per_round']} tokens a round, {told}; raw "
              f"{record['calibration_error_raw']['survival']} fitted {error}")  # fmt: skip


if __name__ == "__main__":
    main()
