"""Published points, what they ran on, and what the cost model says of them."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct, structs

from deepinfer.config.chips import Chip, Fact
from deepinfer.config.compose import load
from deepinfer.config.costs import CalibratedCost, Cost
from deepinfer.config.facts import probe
from deepinfer.plan.cost.calibration import calibration_of
from deepinfer.plan.cost.links import Group, remote_ranks
from deepinfer.plan.cost.shape import KeyScan, Product, Shape
from deepinfer.plan.cost.timing import step_time
from deepinfer.plan.cost.types import Calibration, LinkWork, Work
from deepinfer.plan.cost.work import Prompt, decode_work, prefill_work
from deepinfer.plan.resolve import resolve

HERE = Path(__file__).parent
SPLIT_FROM = 8 << 20  # weights from which tensor parallelism divides a product; smaller ones are on every rank


class Layout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    num_ranks: int
    expert: int
    redundant_experts: int = 0
    tensor: int = 1  # a layout that deepinfer does not offer


class Prefill(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt_tokens: int
    step_tokens: int
    cached_share: float = 0.0
    nodes_per_row: float | None = None  # other nodes that a row is sent to, once each, where routing limits them
    counts_hits: bool = False


class Decode(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sequences: int
    context_tokens: int
    rows_each: int = 1
    drafts: int = 0
    accepted: float = 1.0
    per_user: bool = False


class Point(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published figure: of a cost-only model in a layout, or of a plan's headline."""

    name: str
    value: float
    source: str
    machine: str
    status: str = "published"
    taken: str = ""
    fit: bool = False
    unfit: str = ""
    model: str = ""
    hardware: list[str] = []
    layout: Layout | None = None
    prefill: Prefill | None = None
    decode: Decode | None = None
    plan: list[str] = []
    figure: str = ""


class ModelFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cost-only model: its shape, what differs in prefill, and shares of parts that only it has."""

    published: dict[str, Any]
    shape: Shape
    prefill_scans: tuple[KeyScan, ...] = ()
    shares: dict[str, dict[str, dict[str, dict[str, Any]]]] = {}


def read_points() -> list[Point]:
    return msgspec.convert(yaml.safe_load((HERE / "points.yaml").read_text())["points"], list[Point])


def read_model(name: str) -> ModelFile:
    return msgspec.convert(yaml.safe_load((HERE / "models" / f"{name}.yaml").read_text()), ModelFile)


def predict(point: Point, system_share: float | None) -> float:
    """The figure of `point`; by the roofline where no system share is given."""
    cost = "roofline" if system_share is None else "calibrated"
    if point.plan:
        given = [] if system_share is None else [f"cost.system_share={system_share:.6f}"]
        spec = load("model=v41_flash", *point.plan, f"cost={cost}", *given)
        return resolve(spec, probe(spec)).cost.figure(point.figure).value
    chip, chosen = _chip_and_cost(tuple(point.hardware), cost)
    model = read_model(point.model)
    if isinstance(chosen, CalibratedCost) and system_share is not None:
        fitted = Fact(value=system_share, source="fitted here", date="")
        chosen = structs.replace(chosen, system_share=fitted)
    calibration = _with_model(calibration_of(chosen, chip), model, chip)
    return _prefill(point, model, chip, calibration) if point.prefill else _decode(point, model, chip, calibration)


@cache
def _chip_and_cost(hardware: tuple[str, ...], cost: str) -> tuple[Chip, Cost]:
    spec = load(*hardware, f"cost={cost}")
    return spec.hardware, spec.cost


def _with_model(calibration: Calibration, model: ModelFile, chip: Chip) -> Calibration:
    """The calibration with the shares of parts that only this model has; a newer Blackwell takes the older one's."""
    if calibration.is_roofline:
        return calibration
    own = model.shares.get(chip.architecture.value) or model.shares.get("sm100") or {}
    flops = {key: fact["value"] for key, fact in own.get("flops", {}).items()}
    bandwidth = {key: fact["value"] for key, fact in own.get("bandwidth", {}).items()}
    return structs.replace(
        calibration,
        flops_share=calibration.flops_share | flops,
        bandwidth_share=calibration.bandwidth_share | bandwidth,
    )


def _group(point: Point, chip: Chip) -> Group:
    layout = point.layout
    return Group(
        chip=chip,
        num_ranks=layout.num_ranks,
        expert=layout.expert,
        redundant_experts=layout.redundant_experts,
    )


def _prefill(point: Point, model: ModelFile, chip: Chip, calibration: Calibration) -> float:
    case, group = point.prefill, _group(point, chip)
    prompt = Prompt(tokens=case.prompt_tokens, cached=case.prompt_tokens * case.cached_share)
    shape = structs.replace(model.shape, scans=model.prefill_scans or model.shape.scans)
    work = prefill_work(shape, group, prompt, case.step_tokens / prompt.computed)
    if case.nodes_per_row is not None:
        work = _once_a_node(work, shape, group, case.nodes_per_row)
    tokens = case.step_tokens / (1 - case.cached_share) if case.counts_hits else case.step_tokens
    return tokens / step_time(work, chip, calibration).time_s


def _once_a_node(work: Work, shape: Shape, group: Group, nodes_per_row: float) -> Work:
    """Rows cross the network once for each node that has one of their experts, not once for each rank."""
    experts = shape.experts[0]
    sent = remote_ranks(experts.experts + group.redundant_experts, experts.chosen, group.expert)
    near = next(link.devices for name, link in group.chip.links.items() if name == "nvlink")
    scale = nodes_per_row / (sent * (group.expert - near) / (group.expert - 1))
    links = [
        structs.replace(link, num_bytes=link.num_bytes * scale) if link.link == "network" else link
        for link in work.links
    ]
    return structs.replace(work, links=tuple(links))


def _decode(point: Point, model: ModelFile, chip: Chip, calibration: Calibration) -> float:
    case, ranks = point.decode, point.layout.tensor
    shape = tensor_split(model.shape, ranks) if ranks > 1 else model.shape
    work = decode_work(
        shape,
        _group(point, chip),
        case.sequences,
        case.context_tokens,
        rows_each=case.rows_each,
        drafts=case.drafts,
        accepted=case.accepted,
    )
    if ranks > 1:
        work = structs.replace(work, links=(*work.links, _all_reduces(shape, chip, case)))
    per_user = case.accepted / step_time(work, chip, calibration).time_s
    return per_user if case.per_user else per_user * case.sequences


def tensor_split(shape: Shape, ranks: int) -> Shape:
    """What one of `ranks` tensor-parallel ranks has of a model: a part of large products, heads and every expert."""

    def split(product: Product) -> Product:
        divided = product.inputs * product.outputs >= SPLIT_FROM
        return structs.replace(product, outputs=product.outputs // ranks) if divided else product

    return structs.replace(
        shape,
        products=tuple(split(product) for product in shape.products),
        scans=tuple(structs.replace(scan, flops=scan.flops / ranks) for scan in shape.scans),
        experts=tuple(
            structs.replace(e, weights=e.weights // ranks, num_bytes=e.num_bytes // ranks) for e in shape.experts
        ),
    )


def _all_reduces(shape: Shape, chip: Chip, case: Decode) -> LinkWork:
    """Two a layer, after attention and after the experts; each rank sends a row's hidden state nearly twice."""
    hidden_bytes = 2 * next(t.num_bytes for t in shape.traffic if t.part == "embed")
    calls = 2 * shape.layers
    sent = calls * hidden_bytes * case.sequences * case.rows_each
    return LinkWork(link="nvlink", what="combine", num_bytes=sent, bytes_per_s=chip.links["nvlink"].value, calls=calls)
