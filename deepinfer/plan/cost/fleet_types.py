"""What a fleet consists of, and what a layout sustains."""

from deepinfer.plan.cost.labels import Label
from deepinfer.plan.frozen import Frozen


class Need(Frozen, frozen=True, kw_only=True):
    """How much of one role a traffic needs."""

    role: str
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    ranks_exact: float  # that would be busy all the time
    replicas: int
    ranks: int
    nodes: int
    utilisation: float


class Sensitivity(Frozen, frozen=True, kw_only=True):
    """What a fleet needs when one free parameter is another."""

    key: str
    value: float
    ranks_exact: dict[str, float]  # by role
    ranks: int


class FleetPlan(Frozen, frozen=True, kw_only=True):
    """Ranks of each role that carry a traffic at its peak."""

    requests_per_s: float
    prompt_tokens_per_s: float
    computed_tokens_per_s: float
    answer_tokens_per_s: float
    output_share: float
    peak_to_mean: float
    utilisation: float  # part of its time that a rank may be busy
    needs: tuple[Need, ...]
    ranks: int
    nodes: int
    tokens_per_s_per_gpu: float  # prompts with hits and answers, of all ranks that are needed
    free: tuple[str, ...]  # values that no model or chip fixes
    sensitivity: tuple[Sensitivity, ...]
    label: Label


class Sustained(Frozen, frozen=True, kw_only=True):
    """The traffic that the layout as planned carries, in requests of the workload's size."""

    requests_per_s: float
    by_role: dict[str, float]  # what each role alone could do
    limit: str  # the role that can do least
    busy: float  # share of their time that ranks work: workload.utilisation
    replicas: dict[str, int]  # of the roles that would have to grow for balance, how many there would be
    rank_ratio: float  # decode ranks for each prefill rank where both are equally busy; 0 on shared ranks
    label: Label
