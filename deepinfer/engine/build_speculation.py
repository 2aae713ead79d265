"""The parts of speculation that a plan chose: verifier, drafter, and who says how many drafts are checked."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer.config.env import foreign
from deepinfer.config.processor import machine_type
from deepinfer.engine.build_model import load_implementation
from deepinfer.engine.decode_state import DecodeState
from deepinfer.engine.limits import EngineLimits
from deepinfer.interfaces import Drafter, Verifier, VerifyLengths
from deepinfer.speculation.back_off import BackOff
from deepinfer.speculation.budget import ConfidenceBudget
from deepinfer.speculation.cost_curve import CostCurve
from deepinfer.speculation.coupled import CoupledVerifier
from deepinfer.speculation.curve_measurement import measure_curve
from deepinfer.speculation.curve_store import CurveStore, not_stored
from deepinfer.speculation.fixed import FixedLengths
from deepinfer.speculation.rejection import RejectionVerifier

if TYPE_CHECKING:
    from deepinfer.engine.build_model import LoadedModel
    from deepinfer.engine.build_seat import SharedCurve
    from deepinfer.engine.device import StepClocked
    from deepinfer.model.cache_storage import ModelCache
    from deepinfer.plan.types import Plan
    from deepinfer.sampling.sampler import Sampler

ENGINE_KEYS = (
    "depth",
    "verify",
    "verify_length",
    "back_off",
    "cost_curve",
)  # the rest of an option's keys are the drafter's
# Of rows that are timed at start-up: a few seconds on a CPU, and once for each plan and machine.
MOST_S, MOST_SIZES = 1.0, 20


@dataclass(frozen=True)
class Speculation:
    """`drafter` None: nothing is drafted, and the verifier samples plain rows."""

    verifier: Verifier
    drafter: Drafter | None = None
    notices: tuple[str, ...] = ()


def build_speculation(
    plan: Plan, loaded: LoadedModel, cache: ModelCache, sampler: Sampler, folder: Path | None
) -> Speculation:
    """What `plan.drafting` asks for. Raises ValueError for a calibration file that is damaged."""
    verifier, depth = verifier_of(plan, sampler), plan.drafting.depth
    if plan.drafting.num_draft_layers:
        from deepinfer.model.dspark import DSparkModel
        from deepinfer.speculation.calibration import read_calibration
        from deepinfer.speculation.dspark import DSpark

        config, numerics = plan.model.config, plan.numerics
        model = DSparkModel(
            config,
            loaded.weights,
            loaded.ops,
            numerics=numerics.numerics,
            dtype=numerics.dtype,
            dispatch=loaded.dispatch,
        )
        calibration = read_calibration(folder, numerics.verify, config.dspark_block_size)
        dspark = DSpark(model, cache, depth=depth, calibration=calibration, temperatures=sampler.temperatures)
        return Speculation(verifier, dspark, (calibration.notice,) if calibration.notice else ())
    return Speculation(verifier, token_drafter(plan))


def verifier_of(plan: Plan, sampler: Sampler) -> Verifier:
    """Who judges drafts, and samples plain rows where there are none."""
    return RejectionVerifier(sampler) if plan.numerics.verify == "rejection" else CoupledVerifier(sampler)


def token_drafter(plan: Plan) -> Drafter | None:
    """A drafter that proposes from tokens alone; None where nothing is drafted, or where the checkpoint's module drafts."""
    node = plan.node("drafter")
    if not node.implementation or plan.drafting.num_draft_layers:
        return None
    keys = {key: value for key, value in node.settings.items() if key not in ENGINE_KEYS}
    drafter: Drafter = load_implementation(node.implementation)(depth=plan.drafting.depth, **keys)
    return drafter


def decode_state(plan: Plan, limits: EngineLimits) -> DecodeState:
    """The executor's memory of running sequences."""
    return DecodeState(
        limits.max_num_seqs,
        limits.max_model_len,
        limits.ngram_size,
        depth=limits.draft_depth,
        verify_length=plan.drafting.verify_length,
    )


def build_lengths(
    plan: Plan, limits: EngineLimits, executor: StepClocked | None, shared: SharedCurve | None = None
) -> tuple[VerifyLengths | None, tuple[str, ...]]:
    """Who decides how many drafts are checked, None where nothing is drafted; and what the user should know of it.

    `executor` None is a simulated one, whose steps all cost the same. `shared`: one rank of several measures for all.
    """
    if not limits.draft_depth:
        return None, ()
    settings = plan.node("drafter").settings
    if plan.drafting.kind != "dspark":
        return FixedLengths(plan.drafting.verify_length, BackOff() if settings.get("back_off", True) else None), ()
    curve, notice = None, ""
    if executor is not None and settings["cost_curve"] == "measured":
        measured = partial(_curve, plan, limits, executor)
        curve, notice = measured() if shared is None else shared(measured)
        executor.keep_sizes(curve.rows, curve.forward_s)
    plain_s = None if curve is None else partial(_plain_s, curve)
    back_off = BackOff(plain_s) if settings["back_off"] else None
    return ConfidenceBudget(limits.draft_depth, curve, back_off), (notice,) if notice else ()


def _curve(plan: Plan, limits: EngineLimits, executor: StepClocked) -> tuple[CostCurve, str]:
    from deepinfer.engine.measuring_line import MeasuringLine
    from deepinfer.engine.step_timer import StepTimer

    timer = StepTimer(
        executor,
        max_model_len=limits.max_model_len,
        block_tokens=limits.block_tokens,
        num_blocks=limits.num_blocks,
    )
    most_rows = min(limits.max_num_batched_tokens, limits.max_num_seqs * (1 + limits.draft_depth))
    sizes = [size for size in executor.row_sizes if size < most_rows]

    def measure() -> CostCurve:
        with MeasuringLine() as line:
            return measure_curve(
                timer,
                most_rows=most_rows,
                most_sequences=limits.max_num_seqs,
                sizes=[*sizes, most_rows] if sizes else (),
                most_sizes=MOST_SIZES,
                most_s=MOST_S,
                report=line.report,
            )

    if folder := curve_folder():
        curve, notice = CurveStore(folder, _curve_key(plan, limits)).curve(measure)
    else:
        curve = measure()
        notice = not_stored("without a home directory: set XDG_CACHE_HOME to the absolute path of a folder")
    return curve, notice


def _curve_key(plan: Plan, limits: EngineLimits) -> dict[str, Any]:
    return {
        "plan": plan.rank_digest,
        "device": plan.hardware.name,
        "machine": machine_type(),
        "python": platform.python_version(),
        "deepinfer": sys.modules["deepinfer"].__version__,  # which an uninstalled checkout has no metadata of
        **{name: version(name) for name in ("torch", "numpy", "numba")},
        "rows": limits.max_num_seqs * (1 + limits.draft_depth),
    }


def curve_folder() -> Path | None:
    """Where cost curves are kept; None where there is neither a home directory nor a cache of the user's. A relative
    XDG_CACHE_HOME is ignored, as its specification says."""
    xdg = foreign().xdg_cache_home
    if xdg and Path(xdg).is_absolute():
        return Path(xdg) / "deepinfer"
    try:
        home = Path.home()
    except RuntimeError:
        return None
    return home / ".cache" / "deepinfer" if home.is_absolute() else None


def _plain_s(curve: CostCurve, num_sequences: int) -> float:
    return float(curve.predict(num_sequences, num_sequences, drafted=False))
