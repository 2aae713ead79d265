"""The catalogue of ops: which backends there are, what each requires, and which one an op takes.

Chips, toolkits and libraries are compared as data; no backend is imported. A backend without code in this version can
be planned with. `auto` takes it only for hardware that this version cannot run on at all, where a plan is all there is.
"""

from collections.abc import Iterable, Mapping

import msgspec

from deepinfer.config.chips import Chip
from deepinfer.config.errors import listed, nearest
from deepinfer.config.fused import runs_fused
from deepinfer.config.runnable import plan_only
from deepinfer.plan.ledger import Ledger, plan_problem
from deepinfer.plan.types import OpChoice, Resident

OPS = {  # field of the Ops record → what it does
    "linear": "matrix product",
    "grouped_linear": "block-diagonal matrix product of the attention output",
    "rms_norm": "RMSNorm",
    "quantise_activation": "FP8 activations",
    "quantise_index": "FP4 index queries and keys",
    "rotate": "rotary embedding and its inverse",
    "hyper_coefficients": "coefficients of the residual streams",
    "hyper_collapse": "streams to one row",
    "hyper_mix": "one row back into the streams",
    "write_rows": "packing rows into the caches",
    "read_rows": "unpacking rows of the caches",
    "attention": "window and selected entries under one softmax with sinks",
    "pool_pairs": "two tokens to one entry",
    "index_scores": "scores of compressed entries",
    "best_entries": "top-k",
    "candidate_blocks": "blocks that later layers may choose from",
    "keep_candidates": "scores outside those blocks dropped",
    "router_scores": "scores of experts",
    "choose_experts": "choice and weights of experts",
    "swiglu": "gated activation of an expert",
    "routed_experts": "the chosen experts of every row",
    "engram_rows": "n-gram hash and gather",
    "engram_add": "gate and addition of the n-gram memory",
}
CLASS_OP = {  # class of weights → the op whose backend says how they lie in memory
    "embed": "linear",
    "head": "linear",
    "dense": "linear",
    "experts": "routed_experts",
    "engram": "engram_rows",
    "draft": "linear",
}
HOPPER = "sm90"
NOT_RUN_HERE = "adapters tested against stubs, not run here"
PARTS_NOT_RUN_HERE = (
    "adapters tested against stubs, not run here; pooling and the block-diagonal product by torch itself"
)


class Backend(msgspec.Struct, frozen=True, kw_only=True):
    """One way to carry out ops. Empty `architectures` or `dtypes` means any, `lacks` names ops it has not.

    `hopper_only`: ops whose kernels are written in Hopper's own instructions; the backend as a whole is then for sm90 alone.
    `implementation` makes the record of ops, of which a plan may take some fields only; `fused` makes the record of fused
    operations, of which a chip that `runs_fused` takes all. Those read weights as they are stored.
    """

    name: str
    kinds: tuple[str, ...]  # of hardware
    architectures: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()  # of the model
    lacks: tuple[str, ...] = ()
    hopper_only: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()  # distributions; lowest versions are in config/libraries.py
    resident: Resident
    implementation: str
    fused: str = ""
    in_this_version: bool
    standing: str = "no code in this version"  # said of what can only be planned
    about: str


BACKENDS = (
    Backend(
        name="reference",
        kinds=("cpu", "cuda", "ascend", "virtual"),
        resident="expanded",
        implementation="deepinfer.ops.reference:reference",
        fused="deepinfer.ops.device:twins",
        in_this_version=True,
        about="plain torch, batch-invariant; the twin that every kernel is checked against",
    ),
    Backend(
        name="native",
        kinds=("cpu",),
        dtypes=("float32",),
        lacks=("linear", "grouped_linear", "attention", "pool_pairs", "router_scores", "engram_rows", "engram_add"),
        libraries=("numba",),
        resident="expanded",
        implementation="deepinfer.ops.native:native",
        in_this_version=True,
        about="compiled loops for a CPU, bit-equal to the reference",
    ),
    Backend(
        name="triton",
        kinds=("cuda",),
        architectures=("sm90", "sm100", "sm103"),
        hopper_only=("linear", "grouped_linear", "attention", "index_scores", "routed_experts"),
        libraries=("triton", "cuda-bindings", "nvidia-cuda-nvrtc"),
        dtypes=("bfloat16",),
        resident="packed",
        implementation="deepinfer.ops.hopper:hopper",
        fused="deepinfer.ops.device_choice:device_ops",
        in_this_version=True,
        about="our own kernels for Hopper, Triton and CUDA C++; some ops of them for Blackwell too",
    ),
    Backend(
        name="deepseek",
        kinds=("cuda",),
        architectures=("sm100", "sm103"),
        lacks=("pool_pairs",),
        libraries=("deepinfer-gemm", "deepinfer-flashmla", "tile-kernels", "tokenspeed-deepselect", "deepinfer-ep"),
        resident="packed",
        implementation="deepinfer.ops.deepseek:deepseek",
        in_this_version=False,
        standing=NOT_RUN_HERE,
        about="DeepSeek's DeepGEMM, FlashMLA, TileKernels, DeepSelect and DeepEP; Blackwell only",
    ),
    Backend(
        name="ascend",
        kinds=("ascend",),
        architectures=("ascend950",),
        libraries=("torch-npu", "deepinfer-flashmla", "tile-kernels"),
        resident="packed",
        implementation="deepinfer.ops.ascend:ascend",
        in_this_version=False,
        standing=PARTS_NOT_RUN_HERE,
        about="DeepSeek's FlashMLA and TileKernels for Ascend 950, the vendor's torch-npu for the products",
    ),
)
BY_NAME = {backend.name: backend for backend in BACKENDS}


def choose_ops(
    chip: Chip, dtype: str, kernels_kind: str, pins: Mapping[str, str], ledger: Ledger
) -> tuple[OpChoice, ...]:
    """A backend for every op: the pinned one, the one asked for as a whole, or the first of the chip's list."""
    bad = set(_refuse_pins(pins, chip, dtype, ledger))
    if kernels_kind not in ("auto", *BY_NAME):
        ledger.refuse(plan_problem(f"kernels={kernels_kind}", "no such backend", f"there are {listed(BY_NAME)}"))
        kernels_kind = "auto"
    elif kernels_kind != "auto":
        reason = unfit(BY_NAME[kernels_kind], None, chip, dtype)
        if reason:
            ledger.refuse(plan_problem(f"kernels={kernels_kind}", reason, _able(chip, dtype), "kernels=auto"))
            kernels_kind = "auto"
    good_pins = {op: backend for op, backend in pins.items() if op not in bad}
    return tuple(_choose(op, chip, dtype, kernels_kind, good_pins) for op in OPS)


def unfit(backend: Backend, op: str | None, chip: Chip, dtype: str) -> str:
    """Why a backend cannot do an op on a chip for a model of `dtype`; empty when it can."""
    architecture = chip.architecture.value
    if chip.kind not in backend.kinds:
        return f"{backend.name} is for {listed(backend.kinds)}, the chip is {chip.kind}"
    if backend.architectures and architecture not in backend.architectures:
        return f"{backend.name} is built for {listed(backend.architectures)}, the chip is {architecture}"
    if backend.hopper_only and architecture != HOPPER and (op is None or op in backend.hopper_only):
        what = op or ", ".join(backend.hopper_only)
        return f"{backend.name} computes {what} with Hopper's own instructions ({HOPPER}), the chip is {architecture}"
    if backend.dtypes and dtype not in backend.dtypes:
        return f"{backend.name} computes in {listed(backend.dtypes)}, model.dtype is {dtype}"
    if op in backend.lacks:
        return f"{backend.name} has no such op"
    return ""


def used_backends(ops: Iterable[OpChoice]) -> list[Backend]:
    """The backends of a plan, in catalogue order."""
    names = {choice.backend for choice in ops}
    return [backend for backend in BACKENDS if backend.name in names]


def _choose(op: str, chip: Chip, dtype: str, kernels_kind: str, pins: Mapping[str, str]) -> OpChoice:
    if op in pins:
        return _choice(op, BY_NAME[pins[op]], chip, f"pinned by kernels.ops.{op}")
    if kernels_kind != "auto" and not unfit(BY_NAME[kernels_kind], op, chip, dtype):
        return _choice(op, BY_NAME[kernels_kind], chip, f"kernels={kernels_kind}", "reference")
    passed_over = []
    only_planned = plan_only(chip.kind, chip.architecture.value)
    for name in chip.op_backends:
        backend = BY_NAME.get(name)
        if backend is None:
            passed_over.append(f"{name} is unknown")
        elif reason := unfit(backend, op, chip, dtype):
            passed_over.append(reason)
        elif not backend.in_this_version and not only_planned:
            passed_over.append(f"{name} is not in this version")
        else:
            rest = chip.op_backends[chip.op_backends.index(name) + 1 :]
            order = "first" if not passed_over else "first that can"
            missing = "" if backend.in_this_version else f"; planned, {backend.standing}"
            reason = f"{order} of the chip's list{missing}"
            return _choice(op, backend, chip, reason, ", ".join(passed_over) or listed(rest[:1]))
    return _choice(op, BY_NAME["reference"], chip, "nothing else can", ", ".join(passed_over))


def _choice(op: str, backend: Backend, chip: Chip, reason: str, runner_up: str = "") -> OpChoice:
    fused = backend.fused if runs_fused(chip.kind, chip.architecture.value) else ""
    return OpChoice(
        op=op,
        backend=backend.name,
        implementation=fused or backend.implementation,
        resident="packed" if fused else backend.resident,
        reason=reason,
        runner_up="" if runner_up in (backend.name, "nothing") else runner_up,
    )


def _refuse_pins(pins: Mapping[str, str], chip: Chip, dtype: str, ledger: Ledger) -> Iterable[str]:
    for op, name in pins.items():
        asked = f"kernels.ops.{op}={name}"
        if op not in OPS:
            close = nearest(op, OPS)
            fix = f"kernels.ops.{close}={name}" if close else ""
            ledger.refuse(plan_problem(asked, f"no op {op!r}", f"there are {listed(OPS)}", fix))
        elif name not in BY_NAME:
            close = nearest(name, BY_NAME)
            fix = f"kernels.ops.{op}={close}" if close else ""
            ledger.refuse(plan_problem(asked, f"no backend {name!r}", f"there are {listed(BY_NAME)}", fix))
        elif reason := unfit(BY_NAME[name], op, chip, dtype):
            ledger.refuse(plan_problem(asked, reason, _able(chip, dtype), f"kernels.ops.{op}=reference"))
        else:
            continue
        yield op


def _able(chip: Chip, dtype: str) -> str:
    able = [backend.name for backend in BACKENDS if not unfit(backend, None, chip, dtype)]
    return f"{chip.name} can take {listed(able)}"
