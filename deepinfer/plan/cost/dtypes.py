"""What model.dtype changes beside the weights: the products and the rows between layers that the release has in BF16."""

from typing import TypeVar

from msgspec import structs

from deepinfer.plan.cost.shape import Experts, KeyScan, Product, RowTraffic, Shape

RELEASED_DTYPE, RELEASED_BYTES = "bf16", 2
Scored = TypeVar("Scored", Product, KeyScan)


def computed_in_dtype(shape: Shape, dtype: str, item_bytes: int) -> Shape:
    """The shape with activations in `dtype`. Packed weights keep their bytes, and FP8 and FP4 products their format."""
    if dtype == RELEASED_DTYPE:
        return shape
    ratio = item_bytes / RELEASED_BYTES
    return structs.replace(
        shape,
        products=tuple(_as(product, dtype) for product in shape.products),
        scans=tuple(_as(scan, dtype) for scan in shape.scans),
        experts=tuple(_returning(experts, ratio) for experts in shape.experts),
        traffic=tuple(_moved(traffic, ratio) for traffic in shape.traffic),
    )


def _as(item: Scored, dtype: str) -> Scored:
    return structs.replace(item, dtype=dtype) if item.dtype == RELEASED_DTYPE else item


def _returning(experts: Experts, ratio: float) -> Experts:
    """Rows go out as FP8 and come back in the dtype of the model."""
    return structs.replace(experts, combine_bytes=round(experts.combine_bytes * ratio))


def _moved(traffic: RowTraffic, ratio: float) -> RowTraffic:
    return structs.replace(traffic, num_bytes=traffic.num_bytes * ratio) if traffic.kind == "stream" else traffic
