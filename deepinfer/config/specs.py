"""The whole configuration as frozen data: one Struct per option, one field per key.

Defaults live in `conf/`, so no field has one here; types and ranges live here. Importing it imports no
implementation.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from deepinfer.config.chips import Hardware
from deepinfer.config.leaves import (
    Auto,
    Bytes,
    Component,
    Count,
    Penalty,
    Positive,
    Seconds,
    Share,
    Text,
    TokenId,
)
from deepinfer.config.surroundings import (
    Cluster,
    Executor,
    Grammar,
    Launcher,
    Serving,
    Sweep,
    Workload,
)
from deepinfer.config.tasks import Task

Verify = Literal["auto", "coupled", "rejection"]
Int64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Model(Component, frozen=True, kw_only=True, tag="v41"):
    """Which V4.1 checkpoint, and in which numbers it runs. Facts of its architecture come from its own config.json."""

    name: Literal["auto", "v41_tiny", "v41_flash"]
    repo: Text | None  # on the Hugging Face hub
    revision: Text | None
    path: Text | None  # a local folder; wins over repo
    weights: Literal["checkpoint", "dummy"]
    numerics: Literal["full", "kv", "none"]
    dtype: Literal["auto", "float32", "float64", "bfloat16"]
    max_model_len: Positive | Auto  # tokens of prompt and answer together
    threads: Positive | Auto  # intra-op threads; part of the numerics, so never left to chance


class Parallel(Component, frozen=True, kw_only=True, tag="degrees"):
    """Degrees only; the ranks are attention_dp × context, and experts are spread over `expert` of them."""

    attention_dp: Positive
    context: Positive
    expert: Positive
    redundant_experts: Count
    engram: Literal["auto", "replicated", "sharded", "host"]  # where the n-gram tables live

    @property
    def num_ranks(self) -> int:
        return self.attention_dp * self.context


class Deploy(Component, frozen=True, kw_only=True):
    """Whether prefill and decode share ranks."""


class Colocated(Deploy, frozen=True, kw_only=True, tag="colocated"):
    pass


class Role(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One side of a disaggregated deployment."""

    replicas: Positive
    parallel: Parallel


class Disaggregated(Deploy, frozen=True, kw_only=True, tag="disaggregated"):
    prefill: Role
    decode: Role


class Speculation(Component, frozen=True, kw_only=True):
    """Who drafts, how deep, and how drafts are verified."""


class NoSpeculation(Speculation, frozen=True, kw_only=True, tag="none"):
    pass


class DSpark(Speculation, frozen=True, kw_only=True, tag="dspark"):
    implementation = "deepinfer.speculation.dspark:DSpark"
    depth: Positive
    verify: Verify


class DSparkFixed(Speculation, frozen=True, kw_only=True, tag="dspark_fixed"):
    implementation = "deepinfer.speculation.dspark:DSpark"
    depth: Positive
    verify: Verify
    verify_length: Positive  # drafts checked at every step, whatever their confidence


class Ngram(Speculation, frozen=True, kw_only=True, tag="ngram"):
    implementation = "deepinfer.speculation.ngram:Ngram"
    depth: Positive
    verify: Verify
    min_match: Positive
    max_match: Positive


class Sampling(Component, frozen=True, kw_only=True, tag="sampling"):
    """Defaults of a request that says nothing; `reproducible` belongs to the engine as a whole."""

    max_tokens: Positive
    min_tokens: Count
    temperature: Annotated[float, Meta(ge=0)] | Auto  # 0 is greedy; auto asks the checkpoint
    top_k: Count  # 0 keeps all
    top_p: Annotated[float, Meta(gt=0, le=1)]
    min_p: Share
    repetition_penalty: Annotated[float, Meta(gt=0)]
    presence_penalty: Penalty
    frequency_penalty: Penalty
    logit_bias: dict[TokenId, float]
    bad_words: tuple[str, ...]
    stop: tuple[str, ...]
    stop_token_ids: tuple[TokenId, ...]
    include_stop_str: bool
    ignore_eos: bool
    n: Positive
    seed: Int64 | None  # none draws one
    logprobs: Count | None
    prompt_logprobs: Count | None
    logprobs_mode: Literal["raw", "processed"]
    skip_special_tokens: bool
    reproducible: bool


class Replay(Component, frozen=True, kw_only=True):
    """Which rows of a prompt the later layers see."""


class NoReplay(Replay, frozen=True, kw_only=True, tag="none"):
    pass


class MaskReplay(Replay, frozen=True, kw_only=True, tag="mask"):
    implementation = "deepinfer.cache.replay:MaskReplay"
    keep_tokens: Positive
    on_hit: Literal["snapshot", "exact", "bounded"]


class CompactReplay(Replay, frozen=True, kw_only=True, tag="compact"):
    implementation = "deepinfer.cache.replay:CompactReplay"
    keep_tokens: Positive
    on_hit: Literal["snapshot", "exact", "bounded"]


class Scheduler(Component, frozen=True, kw_only=True, tag="continuous"):
    implementation = "deepinfer.engine.scheduler:Scheduler"
    max_num_seqs: Positive
    max_num_batched_tokens: Positive  # rows of one step
    max_prefill_tokens: Positive  # of one request in one step: the chunk
    async_depth: Literal[0, 1]
    policy: Literal["fcfs"]
    watchdog_s: Seconds  # longest time without progress while requests wait; 0 turns it off


class Cache(Component, frozen=True, kw_only=True):
    """Paged compressed keys and values. Blocks fill `memory_bytes` unless their number is given."""

    block_tokens: Literal[128]
    memory_bytes: Bytes | Auto
    num_blocks: Positive | Auto


class PagedCache(Cache, frozen=True, kw_only=True, tag="paged"):
    pass


class PrefixCache(Cache, frozen=True, kw_only=True, tag="prefix"):
    implementation = "deepinfer.cache.prefix:PrefixIndex"


class Kernels(Component, frozen=True, kw_only=True):
    """Which backend an op takes; `ops` pins single ones: {op: backend}."""

    ops: dict[str, str]


class AutoKernels(Kernels, frozen=True, kw_only=True, tag="auto"):
    pass


class ReferenceKernels(Kernels, frozen=True, kw_only=True, tag="reference"):
    pass


class NativeKernels(Kernels, frozen=True, kw_only=True, tag="native"):
    pass


class TritonKernels(Kernels, frozen=True, kw_only=True, tag="triton"):
    pass


class DeepseekKernels(Kernels, frozen=True, kw_only=True, tag="deepseek"):
    pass


class Spec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One field per group of `conf/`: everything that was asked for, before anything is decided."""

    task: Task
    model: Model
    hardware: Hardware
    parallel: Parallel
    deploy: Deploy
    speculation: Speculation
    sampling: Sampling
    replay: Replay
    scheduler: Scheduler
    executor: Executor
    cache: Cache
    kernels: Kernels
    grammar: Grammar
    serving: Serving
    workload: Workload
    launcher: Launcher
    cluster: Cluster
    sweep: Sweep
