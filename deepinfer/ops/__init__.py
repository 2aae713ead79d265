"""Typed op signatures, their pure-torch twins, and the record of them that a model is built from."""

from deepinfer.ops.native import native
from deepinfer.ops.record import Ops
from deepinfer.ops.reference import reference

__all__ = ["Ops", "native", "reference"]
