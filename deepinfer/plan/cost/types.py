"""What the cost of a plan consists of. Every figure says how it was come by."""

from typing import Literal

from deepinfer.plan.frozen import Frozen

Label = Literal["roofline", "calibrated", "measured"]
Kind = Literal["prefill", "decode"]


class Calibration(Frozen, frozen=True, kw_only=True):
    """How real steps fall short of a data sheet. As it stands it is the roofline: every share 1, no latency.

    Shares are of the chip's figures: `flops_share` by dtype ("f8_e4m3") or by part and dtype ("attention/bf16"),
    `bandwidth_share` by what is read ("weights", "cache", "tables", "streams") or by part and that ("index/cache"),
    `link_share` by link.
    """

    name: str = "roofline"
    label: Label = "roofline"
    source: str = ""  # where the shares were read or measured
    flops_share: dict[str, float] = {}
    default_flops_share: float = 1.0
    bandwidth_share: dict[str, float] = {}
    default_bandwidth_share: float = 1.0
    link_share: dict[str, float] = {}
    default_link_share: float = 1.0
    parts_overlap: bool = True  # False: parts follow each other, each takes the longer of its compute and its memory
    counts_streams: bool = False  # rows between layers go through memory
    hidden_links: float = 1.0  # share of link time that passes behind computation
    layer_latency_s: float = 0.0
    collective_latency_s: float = 0.0
    step_latency_s: float = 0.0
    system_share: float = 1.0  # of the time that the parts leave: scheduling, padding, imbalance

    @property
    def is_roofline(self) -> bool:
        return self.label == "roofline"


class Figure(Frozen, frozen=True, kw_only=True):
    """One number for people and for sweeps. Seconds, tokens, bytes or FLOPs, as `unit` says."""

    name: str
    value: float
    unit: str
    label: Label


class PartWork(Frozen, frozen=True, kw_only=True):
    """What one part of the model takes of one rank in one step, all its layers together."""

    part: str
    layers: int
    flops: dict[str, float]  # by dtype
    weight_bytes: float
    cache_bytes: float
    table_bytes: float  # gathered rows of embeddings and n-gram tables
    stream_bytes: float  # rows on their way from layer to layer

    def bytes_of(self, kind: str) -> float:
        """Bytes of "weights", "cache", "tables" or "streams"."""
        return {
            "weights": self.weight_bytes,
            "cache": self.cache_bytes,
            "tables": self.table_bytes,
            "streams": self.stream_bytes,
        }[kind]


class LinkWork(Frozen, frozen=True, kw_only=True):
    """Bytes that one rank sends over one link in one step."""

    link: str
    what: Literal["dispatch", "combine", "context", "engram", "transfer"]
    num_bytes: float
    bytes_per_s: float
    calls: int


class Work(Frozen, frozen=True, kw_only=True):
    """What one step takes of one rank."""

    parts: tuple[PartWork, ...]
    links: tuple[LinkWork, ...]
    rows: float  # tokens that the rank computes
    layers: int

    def flops(self) -> dict[str, float]:
        """FLOPs of the step by dtype."""
        found: dict[str, float] = {}
        for part in self.parts:
            for dtype, flops in part.flops.items():
                found[dtype] = found.get(dtype, 0.0) + flops
        return found

    def num_bytes(self, *kinds: str) -> float:
        """Memory traffic of the step, of the given kinds."""
        return sum(part.bytes_of(kind) for part in self.parts for kind in kinds)


class PartTime(Frozen, frozen=True, kw_only=True):
    """How long one part of a step computes and reads."""

    part: str
    compute_s: float
    memory_s: float


class StepTime(Frozen, frozen=True, kw_only=True):
    """How long a step takes, what holds it up, and what would move that."""

    time_s: float
    compute_s: dict[str, float]  # by the dtype that the chip computes in
    memory_s: float
    links_s: dict[str, float]
    latency_s: float
    parts: tuple[PartTime, ...]
    bound: str  # "compute f8_e4m3", "memory", "link nvlink", "latency"
    bound_part: str  # the part that takes most of it
    label: Label


class PrefillCost(Frozen, frozen=True, kw_only=True):
    """Steps full of prompt tokens, and one prompt on an idle engine. Bytes and FLOPs are of one rank and step."""

    role: str
    chip: str
    prompt_tokens: int
    computed_tokens: float  # of one prompt: the rest was in the cache
    step_tokens: float  # of one attention rank
    flops: dict[str, float]  # of a computed token, by dtype
    weight_bytes: float
    cache_bytes: float
    link_bytes: dict[str, float]  # by link
    transfer_bytes: float  # cache of one prompt on its way to a decode rank
    parts: tuple[PartWork, ...]
    steps: tuple[StepTime, ...]  # roofline first; then calibrated, where there is one
    tokens_per_s_per_gpu: tuple[float, ...]  # computed tokens; one for each of `steps`
    ttft_s: tuple[float, ...]
    moves: str  # what would make it faster


class DecodePoint(Frozen, frozen=True, kw_only=True):
    """A step that so many sequences of an attention rank share."""

    sequences: int
    steps: tuple[StepTime, ...]
    tokens_per_s_per_gpu: tuple[float, ...]
    tokens_per_s_per_user: tuple[float, ...]


class DecodeCost(Frozen, frozen=True, kw_only=True):
    """Answers: a curve over sequences, and the point where it is run."""

    role: str
    chip: str
    context_tokens: int  # mean length of a sequence
    rows_each: int  # rows of a sequence in a step: one and the drafts that are checked
    accepted_tokens: float  # that a step yields
    accepted_source: str
    most_sequences: int  # of an attention rank
    curve: tuple[DecodePoint, ...]
    point: DecodePoint
    parts: tuple[PartWork, ...]  # at the point
    link_bytes: dict[str, float]
    moves: str


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
    needs: tuple[Need, ...]
    ranks: int
    nodes: int
    tokens_per_s_per_gpu: float  # prompts with hits and answers, of all ranks that are needed
    free: tuple[str, ...]  # values that nobody gave or published
    sensitivity: tuple[Sensitivity, ...]
    label: Label


class CostPlan(Frozen, frozen=True, kw_only=True):
    """What a plan costs. `headline` holds the figures that sweeps, tuning and comparisons read by name."""

    headline: tuple[Figure, ...] = ()
    prefill: PrefillCost | None = None
    decode: DecodeCost | None = None
    decode_share: float = 1.0  # part of a rank's time that answers get; prompts take the rest on the same ranks
    fleet: FleetPlan | None = None
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def figure(self, name: str) -> Figure:
        """The headline called `name`; KeyError where this plan has none."""
        for figure in self.headline:
            if figure.name == name:
                return figure
        raise KeyError(name)
