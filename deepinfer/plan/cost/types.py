"""What the cost of a plan consists of. Every figure says how it was come by."""

from typing import Literal

from deepinfer.plan.cost.fleet_types import FleetPlan, Sustained
from deepinfer.plan.cost.kernel_time import KernelTime
from deepinfer.plan.cost.labels import Label, labelled
from deepinfer.plan.frozen import Frozen

Limit = Literal["scheduler", "cache", "user"]


class Calibration(Frozen, frozen=True, kw_only=True):
    """How real steps fall short of a data sheet. As it stands it is the roofline: every share 1, no latency.

    Shares are of the chip's figures: `flops_share` by dtype ("f8_e4m3") or by part and dtype ("attention/bf16"),
    `bandwidth_share` by what is read ("weights", "cache", "tables", "streams") or by part and that ("index/cache"),
    `link_share` by link.
    """

    name: str = "roofline"
    label: Label = "roofline"
    source: str = ""  # where the shares were read or measured
    stand_in: str = ""  # architecture whose shares are taken for want of the chip's own
    flops_share: dict[str, float] = {}
    default_flops_share: float = 1.0
    bandwidth_share: dict[str, float] = {}
    default_bandwidth_share: float = 1.0
    link_share: dict[str, float] = {}
    default_link_share: float = 1.0
    parts_overlap: bool = True  # False: parts follow each other, each takes the longer of its compute and its memory
    counts_streams: bool = False  # rows between layers go through memory
    layer_latency_s: float = 0.0
    collective_latency_s: float = 0.0
    system_share: float = 1.0  # of the time that the parts leave: scheduling, padding, imbalance
    kernels: dict[
        str, KernelTime
    ] = {}  # where there are any, a step is the sum of its launches, and shares are of links only
    multiprocessors: int = 1  # of the chip that `kernels` were timed on, and its data sheet:
    sheet_bytes_per_s: float = 1.0
    sheet_flops_per_s: float = 1.0  # in the dtype that our exact products compute in

    @property
    def is_roofline(self) -> bool:
        return self.label == "roofline"


class Figure(Frozen, frozen=True, kw_only=True):
    """One number for people and for sweeps. Seconds, tokens, bytes or FLOPs, as `unit` says."""

    name: str
    value: float
    unit: str
    label: Label
    stand_in: str = ""  # architecture whose calibration was applied for want of the chip's own

    @property
    def said(self) -> str:
        """How it was come by, in words: "roofline", "calibrated", "calibrated by sm90's shares"."""
        return labelled(self.label, self.stand_in)


FIELDS = {"weights": "weight_bytes", "cache": "cache_bytes", "tables": "table_bytes", "streams": "stream_bytes"}


class PartWork(Frozen, frozen=True, kw_only=True):
    """What one part of the model takes of one rank in one step, all its layers together."""

    part: str
    flops: dict[str, float]  # by dtype
    weight_bytes: float
    cache_bytes: float
    table_bytes: float  # gathered rows of embeddings and n-gram tables
    stream_bytes: float  # rows on their way from layer to layer

    def bytes_of(self, kind: str) -> float:
        """Bytes of "weights", "cache", "tables" or "streams"."""
        return float(getattr(self, FIELDS[kind]))


class LinkWork(Frozen, frozen=True, kw_only=True):
    """Bytes that one rank sends over one link in one step."""

    link: str
    what: Literal["dispatch", "combine", "context", "engram", "transfer"]
    num_bytes: float
    bytes_per_s: float
    calls: int


class LaunchWork(Frozen, frozen=True, kw_only=True):
    """Equal launches of one kernel in one step: bytes and FLOPs of all together, sizes of one; see kernel_time.py."""

    part: str
    op: str
    calls: float
    num_bytes: float
    flops: float = 0.0
    length: float = 0.0
    rows: float = 0.0  # 0 where they are no matter
    outputs: float = 0.0  # of a product
    ragged: bool = False  # `rows` are an average over experts


class Work(Frozen, frozen=True, kw_only=True):
    """What one step takes of one rank."""

    parts: tuple[PartWork, ...]
    links: tuple[LinkWork, ...]
    rows: float  # tokens that the rank computes
    layers: int
    launches: tuple[LaunchWork, ...] = ()  # of kernels, where the shape says which

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

    time_s: float  # (the longer of `body_s` and links, + latency) ÷ system_share
    body_s: float  # of all parts
    compute_s: dict[str, float]  # by the dtype that the chip computes in
    memory_s: float
    links_s: dict[str, float]
    latency_s: float
    system_share: float
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
    moves: str = ""  # what makes it faster, tried, or else the fact of the chip that would


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
    limit: Limit  # what keeps the point from more of them
    asked_sequences: int  # scheduler.max_num_seqs
    curve: tuple[DecodePoint, ...]
    point: DecodePoint
    parts: tuple[PartWork, ...]  # at the point
    link_bytes: dict[str, float]
    moves: str = ""


class Tradeoff(Frozen, frozen=True, kw_only=True):
    """The two rates of the headline, had so many sequences shared a step."""

    sequences: int  # of an attention rank
    tokens_per_s_per_user: float
    tokens_per_s_per_gpu: float


class CostPlan(Frozen, frozen=True, kw_only=True):
    """What a plan costs. `headline` holds the figures that sweeps, tuning and comparisons read by name."""

    headline: tuple[Figure, ...] = ()
    prefill: PrefillCost | None = None
    decode: DecodeCost | None = None
    tradeoff: tuple[Tradeoff, ...] = ()  # along the curve of `decode`, under the label of the headline
    decode_share: float = 1.0  # part of a rank's time that answers get; prompts take the rest on the same ranks
    sustained: Sustained | None = None
    fleet: FleetPlan | None = None
    stand_ins: dict[str, str] = {}  # role → architecture whose calibration stands in for its chip's
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def figure(self, name: str) -> Figure:
        """The headline called `name`; KeyError where this plan has none."""
        for figure in self.headline:
            if figure.name == name:
                return figure
        raise KeyError(name)
