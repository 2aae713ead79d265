"""What makes a step faster: settings that were tried with the same model of costs, else the fact of the chip to better.

Nothing is advised that does not improve the figure in question by a visible amount.
"""

from collections.abc import Callable, Iterable

from msgspec import Struct, structs

from deepinfer.plan.cost.acceptance import yield_of
from deepinfer.plan.cost.both import Estimate
from deepinfer.plan.cost.candidates import KEPT_ROWS, Candidate, decode_candidates, prefill_candidates
from deepinfer.plan.cost.links import Group, Route
from deepinfer.plan.cost.phases import Side, decode_point, prefill_cost
from deepinfer.plan.cost.room import Room
from deepinfer.plan.cost.sides import model_of
from deepinfer.plan.cost.types import DecodeCost, DecodePoint, StepTime
from deepinfer.plan.cost.work import Prompt
from deepinfer.plan.quantities import amount, duration

VISIBLE = 1.02  # an improvement of less than this is within what three digits show
SHOWN = 2


class Tried(Struct, frozen=True, kw_only=True):
    """A candidate's figure beside the plan's own."""

    override: str
    before: float
    after: float

    @property
    def gain(self) -> float:
        return self.after / self.before


class Trials(Struct, frozen=True, kw_only=True):
    """What candidates are tried on: one role's side and memory, beside prompts where it takes turns with them."""

    estimate: Estimate
    side: Side
    room: Room
    other_nodes: int  # of other roles
    prompt: Prompt

    @property
    def for_users(self) -> bool:
        """Whether users set the limit: then their rate is in question, as many as they are, else a rank's."""
        return self.estimate.decode.limit == "user"

    def rate(self, candidate: Candidate) -> float:
        """Tokens/s of a user or of a rank; 0 where users would get less than they are promised."""
        decode, workload, drafting = self.estimate.decode, self.estimate.workload, candidate.setting.drafting
        found = yield_of(drafting.kind, drafting.depth, drafting.verify_length, workload.accepted_tokens)
        side = _changed(self.side, self.room, candidate)
        count = decode.point.sequences if self.for_users else candidate.sequences
        point = decode_point(side, decode.context_tokens, count, found)
        wanted = workload.tokens_per_s_per_user
        if wanted is None:
            return point.tokens_per_s_per_gpu[-1]
        user = point.tokens_per_s_per_user[-1] * self._decode_share(side, candidate, point)
        if self.for_users:
            return user
        return point.tokens_per_s_per_gpu[-1] if user >= wanted else 0.0

    def _decode_share(self, side: Side, candidate: Candidate, point: DecodePoint) -> float:
        """Part of a rank's time that answers get, with prompts as the candidate computes them."""
        if not self.estimate.takes_turns:
            return 1.0
        prefill = prefill_cost(side, self.prompt, candidate.setting.step_tokens)
        prompt_s = prefill.computed_tokens / prefill.tokens_per_s_per_gpu[-1]
        answer_s = self.estimate.workload.output_tokens / point.tokens_per_s_per_gpu[-1]
        return answer_s / (answer_s + prompt_s)


def decode_moves(trials: Trials) -> str:
    """What gives a rank more answers; where users set the limit, what gives them a higher rate as many as they are."""
    estimate, decode = trials.estimate, trials.estimate.decode
    before = estimate.user_rate if trials.for_users else decode.point.tokens_per_s_per_gpu[-1]
    tried = [
        Tried(override=candidate.override, before=before, after=trials.rate(candidate))
        for candidate in decode_candidates(trials.room, decode, trials.other_nodes)
    ]
    unit = "tokens/s a user" if trials.for_users else "tokens/s a rank"
    return _said(tried, amount, f" {unit} ({estimate.said})") or _decode_rule(decode)


def prefill_moves(trials: Trials, transfer: Route | None) -> str:
    """What computes prompts faster; where the first token comes too late, what brings it earlier."""
    estimate, prompt = trials.estimate, trials.prompt
    prefill, late = estimate.prefill, estimate.workload.ttft_s
    for_users = late is not None and prefill.ttft_s[-1] > late

    def speed(candidate: Candidate) -> float:
        taken = structs.replace(prompt, keep=KEPT_ROWS) if candidate.compacts else prompt
        side = _changed(trials.side, trials.room, candidate)
        found = prefill_cost(side, taken, candidate.setting.step_tokens, transfer)
        return 1 / found.ttft_s[-1] if for_users else found.tokens_per_s_per_gpu[-1]

    before = 1 / prefill.ttft_s[-1] if for_users else prefill.tokens_per_s_per_gpu[-1]
    tried = [
        Tried(override=candidate.override, before=before, after=speed(candidate))
        for candidate in prefill_candidates(trials.room, prefill.steps[-1], trials.other_nodes)
    ]
    if for_users:
        found = _said(tried, lambda speed: duration(1 / speed), f" to the first token ({estimate.said})")
    else:
        found = _said(tried, amount, f" tokens/s a rank ({estimate.said})")
    return found or _chip_rule(prefill.steps[-1])


def _changed(side: Side, room: Room, candidate: Candidate) -> Side:
    """The side as the candidate has it, reckoned one way only: the last."""
    setting, group, shape = candidate.setting, side.group, side.shape
    if setting.drafting.num_draft_layers != room.scene.case.drafting.num_draft_layers:
        shape = model_of(room.scene, setting.drafting.num_draft_layers)
    changed: Group = structs.replace(group, num_ranks=setting.ranks, expert=setting.expert, engram=setting.engram)
    return structs.replace(side, shape=shape, group=changed, calibrations=side.calibrations[-1:])


def _said(tried: Iterable[Tried], write: Callable[[float], str], unit: str) -> str:
    good = sorted((trial for trial in tried if trial.gain >= VISIBLE), key=lambda trial: -trial.gain)[:SHOWN]
    return "; or ".join(f"{trial.override}: {write(trial.before)} → {write(trial.after)}{unit}" for trial in good)


def _decode_rule(decode: DecodeCost) -> str:
    """What no setting that was tried moves: the length of requests, or the chip."""
    chip = _chip_rule(decode.point.steps[-1])
    if decode.limit == "cache":
        return f"shorter requests or more memory, for the cache is full; {chip}"
    return chip


def _chip_rule(step: StepTime) -> str:
    kind, _, what = step.bound.partition(" ")
    return {
        "compute": f"a chip with a higher {what} peak",
        "memory": "a chip with more memory bandwidth",
        "link": f"a faster {what}",
        "latency": "less time between the kernels of a layer",
    }[kind]
