"""The released model as a shape, chips from the option files, and what a `cost` option makes of a chip."""

from collections.abc import Callable

import pytest

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.config.chips import Chip
from deepinfer.config.cost_facts import probe_cost
from deepinfer.config.errors import Refused
from deepinfer.config.facts import chip_names
from deepinfer.config.specs import Spec
from deepinfer.plan.cost.calibration import calibration_of
from deepinfer.plan.cost.shape import Scope, Shape
from deepinfer.plan.cost.types import Calibration
from deepinfer.plan.cost.v41 import shape_of
from deepinfer.plan.types import Plan


@pytest.fixture
def flash_config(plan_of: Callable[..., Plan]) -> V41Config:
    return plan_of("hardware=gb200", "parallel=ep64").model.config


@pytest.fixture
def flash(flash_config: V41Config) -> Shape:
    """V4.1-Flash without its drafter."""
    return shape_of(flash_config, CacheLayout.of(flash_config, dtype="bfloat16"))


@pytest.fixture
def drafting_flash(flash_config: V41Config) -> Shape:
    return shape_of(flash_config, CacheLayout.of(flash_config, dtype="bfloat16"), num_draft_layers=3)


@pytest.fixture
def chip_of(spec_of: Callable) -> Callable[[str], Chip]:
    return lambda name: spec_of(f"hardware={name}").hardware


@pytest.fixture
def calibrate(spec_of: Callable[..., Spec]) -> Callable[..., Calibration]:
    """The calibration of some overrides, hardware named among them. Raises Refused as a plan of them would."""

    def make(*overrides: str) -> Calibration:
        spec = spec_of(*overrides)
        assert isinstance(spec.hardware, Chip)
        found = probe_cost(spec.cost, [spec.hardware], chip_names)
        if found.problems:
            raise Refused(found.problems)
        (option,) = (text.removeprefix("hardware=") for text in overrides if text.startswith("hardware="))
        return calibration_of(spec.cost, spec.hardware, found, option)

    return make


@pytest.fixture
def active_weights() -> Callable[..., float]:
    """How many weights of a shape a row of the given scopes is multiplied with."""

    def count(shape: Shape, *scopes: Scope) -> float:
        dense = sum(p.weights * p.per_row for p in shape.products if p.scope in scopes and p.weight_bytes)
        return dense + sum(e.weights * e.chosen * e.layers for e in shape.experts if e.scope in scopes)

    return count
