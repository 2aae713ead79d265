"""DeepSeek's kernel packages: import name, distribution, the version that the adapters were written against, and the chips.

The adapters are deepinfer/ops/deepseek_*.py. Other distributions bring some of these import names for other chips.
"""

from dataclasses import dataclass

BLACKWELL, ASCEND = ("sm100", "sm103"), "ascend950"


@dataclass(frozen=True)
class KernelPackage:
    """`marks`: dotted function, and an argument of it or "", that only the builds for `architectures` have."""

    name: str
    distribution: str
    version: str
    architectures: tuple[str, ...]  # that its kernels for V4.1 run on
    marks: tuple[tuple[str, str], ...]
    namesakes: tuple[str, ...] = ()  # distributions with the same import name, for other chips

    @property
    def get(self) -> str:
        return f"pip install --no-build-isolation {self.distribution}"


KERNEL_PACKAGES = (
    KernelPackage(
        name="flash_mla",
        distribution="deepinfer-flashmla",
        version="1.0.0",
        architectures=(*BLACKWELL, ASCEND),
        marks=(
            ("flash_mla_with_kvcache", "enable_batch_invariant"),
            ("fused_norm_rope_attn_rope_cast.decode", "cos_sin_cache"),
        ),
        namesakes=("sgl-flash-mla",),
    ),
    KernelPackage(
        name="deep_gemm",
        distribution="deepinfer-gemm",
        version="2.8.2",
        architectures=BLACKWELL,
        marks=(("mega_mhc", ""), ("bf16_mega_gate", ""), ("fp8_fp4_mqa_logits", "")),
    ),
    KernelPackage(
        name="tile_kernels",
        distribution="tile-kernels",
        version="2.1.0",
        architectures=(*BLACKWELL, ASCEND),
        marks=(("quant.norm_forward_and_per_token_cast", "with_out_bf16"),),
    ),
    KernelPackage(
        name="deep_select",
        distribution="tokenspeed-deepselect",
        version="1.0.0.post20260910",
        architectures=BLACKWELL,
        marks=(("topk", "output_idx_offset"),),
    ),
    KernelPackage(
        name="deep_ep",
        distribution="deepinfer-ep",
        version="2.5.0",
        architectures=BLACKWELL,
        marks=(("EPBuffer.dispatch", "do_expand"),),
    ),
)
BY_NAME = {package.name: package for package in KERNEL_PACKAGES}
BY_DISTRIBUTION = {package.distribution: package for package in KERNEL_PACKAGES}
