"""Both phases of one workload together: what a request takes of a rank, and what its user gets."""

from msgspec import Struct

from deepinfer.config.workloads import SteadyWorkload
from deepinfer.plan.cost.labels import Label, labelled
from deepinfer.plan.cost.types import DecodeCost, DecodePoint, PrefillCost, Tradeoff


class Estimate(Struct, frozen=True, kw_only=True):
    """Prefill and decode, on ranks of their own or in turns on the same. Rates are by the last way of reckoning."""

    workload: SteadyWorkload
    prefill: PrefillCost
    decode: DecodeCost
    takes_turns: bool
    stand_in: str  # architecture whose calibration stands in for a chip's own; may be empty

    @property
    def label(self) -> Label:
        return self.prefill.steps[-1].label

    @property
    def said(self) -> str:
        """The label in words."""
        return labelled(self.label, self.stand_in)

    def gpu_seconds(self, point: DecodePoint) -> tuple[float, float]:
        """Seconds of a rank that a request takes: of prefill, and of decode at `point` of the curve."""
        answer = self.workload.output_tokens / point.tokens_per_s_per_gpu[-1]
        return self.prefill.computed_tokens / self.prefill.tokens_per_s_per_gpu[-1], answer

    def decode_share(self, point: DecodePoint) -> float:
        """Part of a rank's time that answers get."""
        prompt_s, answer_s = self.gpu_seconds(point)
        return answer_s / (prompt_s + answer_s) if self.takes_turns else 1.0

    def tradeoff(self, point: DecodePoint) -> Tradeoff:
        """Both rates of the headline at `point`."""
        workload = self.workload
        return Tradeoff(
            sequences=point.sequences,
            tokens_per_s_per_user=point.tokens_per_s_per_user[-1] * self.decode_share(point),
            tokens_per_s_per_gpu=(workload.prompt_tokens + workload.output_tokens) / sum(self.gpu_seconds(point)),
        )

    @property
    def user_rate(self) -> float:
        """Tokens/s of a user at the point where the plan runs."""
        return self.tradeoff(self.decode.point).tokens_per_s_per_user

    @property
    def contents_users(self) -> bool:
        """Whether a user gets what the workload asks for, if only alone on a rank."""
        wanted = self.workload.tokens_per_s_per_user
        return wanted is None or self.user_rate >= wanted
