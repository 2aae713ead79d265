"""Python distributions that deepinfer uses or can use: lowest version, which extra brings it, what it is for."""

from pathlib import Path

from msgspec import Struct

IN_CHECKOUT = Path(__file__).parents[2].joinpath("pyproject.toml").is_file()  # else the package came in a wheel


class Library(Struct, frozen=True, kw_only=True):
    """One distribution. Without an `extra` it is in the default install; `how` replaces the usual way to get it."""

    name: str
    at_least: str = ""
    below: str = ""  # the first version that is too new
    extra: str = ""
    why: str
    how: str = ""

    @property
    def get(self) -> str:
        """What to type to have it: by the extra in a checkout, by its own name where a wheel is installed."""
        if not IN_CHECKOUT:
            floor = f">={self.at_least}" if self.at_least else ""
            ceiling = f",<{self.below}" if self.below else ""
            return self.how.replace("-e '.[sm100]'", self.name) or f"pip install '{self.name}{floor}{ceiling}'"
        return self.how or (f"pip install -e '.[{self.extra}]'" if self.extra else "pip install -e .")

    def get_by(self, extra: str) -> str:
        """The same by another extra that has it, too."""
        return self.get.replace(f"'.[{self.extra}]'", f"'.[{extra}]'")


_SOURCE = "pip install --no-build-isolation -e '.[sm100]'"  # built against the torch that is installed

LIBRARIES = (
    Library(name="hydra-core", at_least="1.3.8", below="1.5", why="composes the configuration"),
    Library(name="omegaconf", at_least="2.3", why="Hydra's data"),
    Library(name="msgspec", at_least="0.19", why="typed configuration and plans"),
    Library(name="numpy", at_least="1.26", why="scheduler and sampler state"),
    Library(name="torch", at_least="2.11", below="2.14", why="the model"),
    Library(name="safetensors", at_least="0.5", why="checkpoints"),
    Library(name="tokenizers", at_least="0.21", why="text to tokens"),
    Library(name="huggingface_hub", at_least="1.0", why="fetches released weights"),
    Library(name="deepseek-recipe", at_least="0.2.0", below="0.3", why="DeepSeek's chat format"),
    Library(name="llguidance", at_least="1.9", why="structured output"),
    Library(name="rich", at_least="13.7", why="tables and progress"),
    Library(name="numba", at_least="0.61", why="fused loops on a CPU"),
    Library(name="pyyaml", at_least="6", why="configuration files"),
    Library(name="tqdm", at_least="4.66", why="progress of downloads"),
    Library(name="fastapi", at_least="0.115", why="HTTP server"),
    Library(name="uvicorn", at_least="0.30", why="HTTP server"),
    Library(name="httptools", at_least="0.6", why="HTTP server: reads requests"),
    Library(name="uvloop", at_least="0.20", why="HTTP server: its event loop"),
    Library(name="prometheus-client", at_least="0.20", why="metrics"),
    Library(name="xgrammar", at_least="0.2", extra="xgrammar", why="grammar=xgrammar; brings transformers"),
    Library(name="opentelemetry-sdk", at_least="1.30", extra="otel", why="traces"),
    Library(name="opentelemetry-exporter-otlp-proto-http", at_least="1.30", extra="otel", why="traces"),
    Library(name="optuna", at_least="5", extra="tune", why="searches the configuration"),
    Library(name="matplotlib", at_least="3.9", extra="plot", why="plots of benchmarks"),
    Library(name="ray", at_least="2.40", extra="ray", why="launcher=ray"),
    Library(name="aiconfigurator-core", at_least="0.12", below="0.13", extra="calibrate", why="cost=aiconfigurator"),
    Library(name="pyarrow", at_least="15", extra="calibrate", why="cost=aiconfigurator: reads its tables"),
    Library(name="triton", at_least="3.6", extra="sm90", why="kernels=triton"),
    Library(name="cuda-bindings", at_least="13", extra="sm90", why="kernels=triton: CUDA C++ kernels, their launches"),
    Library(
        name="nvidia-cuda-nvrtc", at_least="13", extra="sm90", why="kernels=triton: CUDA C++ kernels, their compiler"
    ),
    Library(name="deepinfer-gemm", extra="sm100", why="kernels=deepseek: DeepGEMM", how=_SOURCE),
    Library(name="deepinfer-flashmla", extra="sm100", why="kernels=deepseek: FlashMLA", how=_SOURCE),
    Library(name="tile-kernels", at_least="2.1", extra="sm100", why="kernels=deepseek: mHC and n-grams", how=_SOURCE),
    Library(name="tokenspeed-deepselect", extra="sm100", why="kernels=deepseek: DeepSelect, top-k"),
    Library(name="deepinfer-ep", extra="sm100", why="kernels=deepseek: DeepEP, experts across ranks", how=_SOURCE),
    Library(name="sgl-flash-mla", extra="sm90-bench", why="a peer for attention benchmarks on Hopper"),
    Library(name="transformers", at_least="5.20", extra="bench", why="a peer for end-to-end benchmarks"),
    Library(
        name="torch-npu",
        at_least="2.13",
        why="torch on Ascend",
        how="pip install torch-npu, of the same release as torch and after CANN",
        extra="ascend",
    ),
)
BY_NAME = {library.name: library for library in LIBRARIES}
