"""A calibration by our own kernels' timings, for plans whose every op they carry out, on a chip that they were timed on."""

from collections.abc import Sequence

from msgspec import structs

from deepinfer.arch.config import V41Config
from deepinfer.config.chips import Chip
from deepinfer.config.costs import CalibratedCost, Cost, KernelFigures
from deepinfer.plan.cost.kernel_time import KernelTime
from deepinfer.plan.cost.types import Calibration
from deepinfer.plan.types import OpChoice

BACKEND = "triton"


def with_own_kernels(
    calibration: Calibration, cost: Cost, chip: Chip, ops: Sequence[OpChoice], config: V41Config
) -> Calibration:
    """`calibration` with its shares of computation and memory replaced by kernels' times; as it is where none fit.

    Links keep their shares and latency: no kernel's timing says anything of them.
    """
    timed = cost.own_kernels.values() if isinstance(cost, CalibratedCost) else ()
    own = next((one for one in timed if one.chip == chip.name and one.hidden_size == config.hidden_size), None)
    if own is None or {choice.backend for choice in ops} != {BACKEND}:
        return calibration
    return structs.replace(
        calibration,
        name=f"our kernels on {own.device}",
        source=(
            f"our own kernels, timed one by one on an {own.device} ({own.source}, {own.date}); a step is the sum of its "
            f"launches and {own.layer_latency_s.value * 1e6:.0f} µs a layer; links by the shares of {calibration.name}"
        ),
        kernels={name: kernel_time(figures) for name, figures in own.kernels.items()},
        multiprocessors=own.multiprocessors,
        sheet_bytes_per_s=own.sheet_bytes_per_s,
        sheet_flops_per_s=own.sheet_flops_per_s,
        system_share=1.0,
        layer_latency_s=own.layer_latency_s.value,
    )


def kernel_time(figures: KernelFigures) -> KernelTime:
    given = {name: value for name, value in structs.asdict(figures).items() if value is not None}
    return KernelTime(**given)
