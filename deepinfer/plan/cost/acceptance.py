"""How many tokens a verified step yields: 1 without drafts, published figures for the model's own drafter."""

from typing import Literal

from msgspec import Struct

GOLDEN_DEPTH, GOLDEN_TOKENS = 5, 3.51
GOLDEN_CHANCE = 0.778544  # that a slot is right when those before it are: gives 3.51 at depth 5
GOLDEN = (
    "InferenceX's golden acceptance length of V4.1-Flash with DSpark, 3.51 at depth 5 "
    "(https://github.com/SemiAnalysisAI/InferenceX, golden_al_distribution)"
)
UNKNOWN = "unknown for drafts looked up in the text; set workload.accepted_tokens"


class Yield(Struct, frozen=True, kw_only=True):
    """What a step does for one sequence: rows it checks, slots a drafter fills, tokens it yields on average."""

    rows_each: int = 1
    drafts: int = 0
    accepted: float = 1.0
    source: str = "one token a step"


def yield_of(kind: str, depth: int, verify_length: int, accepted: float | Literal["auto"]) -> Yield:
    """The yield of a kind of speculation; `accepted` from the workload wins over what was published."""
    if not depth:
        return Yield()
    rows, slots = 1 + (verify_length or depth), 0 if kind == "ngram" else depth
    if accepted != "auto":
        return Yield(rows_each=rows, drafts=slots, accepted=accepted, source="workload.accepted_tokens")
    if kind == "ngram":
        return Yield(rows_each=rows, drafts=slots, accepted=1.0, source=UNKNOWN)
    tokens = GOLDEN_TOKENS if rows == 1 + GOLDEN_DEPTH else geometric(GOLDEN_CHANCE, rows - 1)
    source = GOLDEN if rows == 1 + GOLDEN_DEPTH else f"{GOLDEN}; a draft as likely right at every slot"
    return Yield(rows_each=rows, drafts=slots, accepted=tokens, source=source)


def geometric(chance: float, depth: int) -> float:
    """Tokens of a step when every draft after right ones is right with the same chance: 1 + p + p² + … + p^depth."""
    return sum(chance**slot for slot in range(depth + 1))
