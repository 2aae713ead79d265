"""The released model as a shape, and chips from the option files."""

from collections.abc import Callable

import pytest

from deepinfer.arch.cache import CacheLayout
from deepinfer.arch.config import V41Config
from deepinfer.config.chips import Chip
from deepinfer.plan.cost.shape import Shape
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
