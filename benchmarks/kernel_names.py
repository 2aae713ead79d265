"""What operations, their cases and their peers are, in words for the tables, whose order this is."""

EXPERTS = (
    "experts on this device, then pairs of a token and an expert: `even`, `drawn` (all experts alike) or `zipf`. A target in % "
    "counts the bytes of the experts that got rows, the share also those of the rows"
)
OPERATIONS: dict[str, tuple[str, str]] = {  # op of a line → what it does, how to read a case
    "fp8_linear": (
        "dense products, FP8 weights in 32 × 32 blocks, exact",
        "N outputs, K inputs, T rows; a target in TB/s counts the weight's bytes alone",
    ),
    "fp8_linear_128 (lossy)": ("the same on weights re-quantised to 128 × 128 blocks", "N outputs, K inputs, T rows"),
    "fp8_grouped_linear": ("attention's grouped output projection", "T rows"),
    "bf16_linear": ("dense products, bfloat16 weights", "N outputs, K inputs, T rows"),
    "fp4_experts w13": ("experts, gate and up: MXFP4 weights", EXPERTS),
    "fp4_experts w13_swiglu": ("experts, gate and up with SwiGLU and quantiser in one", EXPERTS),
    "fp4_experts w2": ("experts, down: MXFP4 weights", EXPERTS),
    "swiglu_quantise": ("SwiGLU and FP8 quantiser", "pairs of a token and an expert × inner width; `weighted` by the router"),
    "router": ("router: scores, choice, weights", "tokens × experts"),
    "expert_permutation": ("pairs of a token and an expert, sorted", "tokens × experts chosen, experts on this device"),
    "combine": ("experts' rows added up for each token", "tokens × hidden"),
    "sparse_attention": (
        "attention over chosen cache rows, rotations included",
        "sequences × rows of each (1 and its drafts); `packed`: FP8 and FP4 cache rows, `bf16`: plain ones",
    ),
    "rotate_quantise_index_q": ("index queries: rotation and FP4 grid", "rows of 32 heads"),
    "index_scores": (
        "index scores over paged FP4 keys",
        "sequences × rows of each, keys of a sequence, powers of two that the keys' scales span (2: int8 products, 9: FP8)",
    ),
    "candidate_scores": ("index scores of the keys in chosen blocks", "rows, keys of each"),
    "candidate_blocks": ("best 2,048 blocks of 8 keys", "chosen at most, of so many blocks"),
    "top_entries": ("best 512 keys", "chosen, of so many scores"),
    "norm_rope_store_window": ("window keys: norm, rotation, FP8 cache row", "`keys too`: also returned in bf16"),
    "compress_store": (
        "main keys: compressor, norm, rotation, FP4 cache row",
        "tokens that go into one row, tokens, dtype of the compressor's input",
    ),
    "index_store": ("index keys: norm, rotation, FP4 cache row", "keys"),
    "expand_rows": ("cache rows back to bfloat16", "rows"),
    "hyper_border": (
        "hyper-connections: streams mixed, collapsed, normed, quantised",
        "`two sites`: one layer; `fn`: the weight of the streams' coefficients",
    ),
    "norm_quantise": ("RMS norm and FP8 quantiser", "rows × width, to numbers on the FP8 grid in bf16 or to codes and scales"),
    "quantise": ("FP8 quantiser", "rows × width, to numbers on the FP8 grid in bf16 or to codes and scales"),
    "engram_gather": (
        "rows of the n-gram memory",
        "tokens × rows of each; in device memory, or on the host (all or the codes alone), where the floor is the bus",
    ),
    "engram_add": ("n-gram memory added to the streams", "tokens × streams × hidden"),
    "markov step": ("one draft: bias by the token before, noise, choice", "sequences; at temperature 0, or with noise"),
    "sample rows": (
        "sampler over 129,280 logits",
        "rows, and what they ask for (`filters`: top-k, top-p and min-p; `mixed`: a quarter greedy, others some of everything)",
    ),
    "accepted lengths": ("how many drafts count", "sequences, drafts of each"),
    "judged drafts": ("rejection sampling of drafts", "sequences, drafts of each"),
}  # fmt: skip
PLAIN_COPY = "one copy of as many bytes"  # a second floor, not a rival
_FP8_BLOCKS = "DeepGEMM, FP8 in 128 × 128 blocks (lossy)"
_FP8_EXPERTS = "DeepGEMM, experts in FP8 (lossy)"
PEERS = {  # name of a peer in a line → whose it is; names that say so themselves are left out
    "cublas_bf16": "cuBLAS, bf16 weights",
    "cublas_bmm": "cuBLAS, bf16",
    "scaled_mm_tensor": "cuBLAS, FP8 with one scale a tensor (lossy)",
    "deep_gemm_fp8": _FP8_BLOCKS,
    "deep_gemm_fp8_einsum": _FP8_BLOCKS,
    "deep_gemm_contiguous": _FP8_EXPERTS,
    "deep_gemm_masked": _FP8_EXPERTS,
    "deep_gemm_index_decode": "DeepGEMM, FP8 keys",
    "grouped_mm_bf16": "torch, bf16 experts",
    "cuBLAS bf16 + noise + argmax": "cuBLAS bf16 + argmax",
    "torch": "torch, op by op",
    "torch_rms_norm": "torch, norm alone",
    "triton": "our own in Triton",
    "triton_kernels_mxfp4": "OpenAI's triton_kernels",
    "flash_mla_decode": "FlashMLA, its own rows, no rotations",
    "flash_mla_prefill": "FlashMLA, bf16 rows, no rotations",
    "sglang_store_main": "SGLang",
    "sglang_swiglu": "SGLang, unweighted",
    "lmdeploy_swiglu": "lmdeploy, unweighted",
    "sglang_topk": "SGLang, any of equal scores",
    "flashinfer_topk": "FlashInfer, any of equal scores",
    "flashinfer_norm_quant": "FlashInfer, one scale a tensor (lossy)",
    "flashinfer_sample_plain": "FlashInfer, no filters",
    "flashinfer_sample": "FlashInfer",
    "parts of two sites": "lmdeploy's and DeepGEMM's parts, one by one",
}


def place(op: str) -> tuple[int, str]:
    """Where an op stands in the tables; unknown ones last, by name."""
    return (list(OPERATIONS).index(op) if op in OPERATIONS else len(OPERATIONS), op)
