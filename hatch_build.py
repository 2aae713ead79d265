"""Build hook: a wheel carries conf/ and kernels/ inside the package; an editable install reads them in place."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Ship(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "standard":
            build_data["force_include"] |= {"conf": "deepinfer/conf", "kernels": "deepinfer/kernels"}
