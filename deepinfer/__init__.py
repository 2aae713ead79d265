"""A declarative inference and deployment framework for DeepSeek-V4.1-Flash."""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deepinfer.api import LLM, RequestOutput, SamplingParams
    from deepinfer.config.errors import Refused

__version__ = "0.1.0"
__all__ = ["LLM", "Refused", "RequestOutput", "SamplingParams", "__version__"]

# conf/ and kernels/ sit beside the package in a checkout and inside it in a wheel; widening
# __path__ lets one name, deepinfer.conf or deepinfer.kernels, serve both.
_checkout = Path(__file__).resolve().parents[1]
if (_checkout / "pyproject.toml").is_file() and (_checkout / "conf").is_dir():
    __path__.append(str(_checkout))


def __getattr__(name: str) -> Any:
    """Load the library door on first use, so that `plan` and `--help` never import torch."""
    if name in ("LLM", "SamplingParams", "RequestOutput"):
        return getattr(import_module("deepinfer.api"), name)
    if name == "Refused":
        return import_module("deepinfer.config.errors").Refused
    raise AttributeError(f"module 'deepinfer' has no attribute {name!r}")
