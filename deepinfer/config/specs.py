"""The whole configuration as frozen data: one Struct per option, one field per key.

Defaults live in `conf/`, so no field has one here; types and ranges live here. Importing it imports no
implementation.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from deepinfer.config.balancers import Balancer
from deepinfer.config.chips import Hardware
from deepinfer.config.clusters import Cluster
from deepinfer.config.costs import Cost
from deepinfer.config.launchers import Launcher
from deepinfer.config.leaves import (
    Auto,
    Bytes,
    Component,
    Count,
    Depth,
    Penalty,
    Positive,
    Seconds,
    Share,
    SomeText,
    Text,
    TokenId,
)
from deepinfer.config.ranges import MOST_BYTES
from deepinfer.config.serving import Serving
from deepinfer.config.surroundings import Executor, Grammar
from deepinfer.config.sweeps import Sweep
from deepinfer.config.tasks import Task
from deepinfer.config.workloads import Workload

Verify = Literal["auto", "coupled", "rejection"]
BytesOrNone = Annotated[int, Meta(ge=0, le=MOST_BYTES, extra={"unit": "bytes"})]
Int64 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Tokens = Annotated[int, Meta(ge=0, le=2**31 - 1, extra={"unit": "count"})]
AtLeastOne = Annotated[int, Meta(ge=1, le=2**31 - 1, extra={"unit": "count"})]


class Model(Component, frozen=True, kw_only=True, tag="v41"):
    """Which V4.1 checkpoint, and in which numbers it runs. Facts of its architecture come from its own config.json."""

    name: Literal["auto", "v41_tiny", "v41_flash"]  # which of the models that deepinfer knows
    repo: Text | None  # on the Hugging Face hub
    revision: Text | None  # branch, tag or commit of the repository; main where it is null
    path: Text | None  # a local folder; wins over repo
    weights: Literal["checkpoint", "dummy"]  # dummy makes up numbers from a fixed seed, of any size, without a file
    numerics: Literal["full", "kv", "none"]  # full: as published; kv: quantised caches only; none: nothing is quantised
    dtype: Literal["auto", "float32", "float64", "bfloat16"]  # of activations; auto asks the hardware
    max_model_len: Positive | Auto  # tokens of prompt and answer together
    threads: Positive | Auto  # intra-op threads; part of the numerics, so never left to chance


class Parallel(Component, frozen=True, kw_only=True, tag="degrees"):
    """Degrees only; the ranks are attention_dp × context, and experts are spread over `expert` of them."""

    attention_dp: Positive  # groups of ranks, each with requests of its own
    context: Positive  # ranks that share the prefill of one prompt
    expert: Positive  # ranks over which the routed experts are spread
    redundant_experts: Count  # copies of experts, to balance load between ranks
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

    replicas: Positive  # copies of this side
    hardware: Hardware  # same takes the chip of the top level
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
    depth: Depth  # tokens drafted at a step
    verify: Verify  # coupled keeps the text of a seed, rejection only its law
    back_off: bool  # no drafts while they cost more tokens/s than they bring; tried again ever more rarely
    cost_curve: Literal[
        "measured", "none"
    ]  # measured: steps are timed at start-up, and drafts checked as long as that pays; none: all are checked


class DSparkFixed(Speculation, frozen=True, kw_only=True, tag="dspark_fixed"):
    implementation = "deepinfer.speculation.dspark:DSpark"
    depth: Depth
    verify: Verify
    verify_length: Depth  # drafts checked at every step, whatever their confidence
    back_off: bool


class Ngram(Speculation, frozen=True, kw_only=True, tag="ngram"):
    implementation = "deepinfer.speculation.ngram:Ngram"
    depth: Depth
    verify: Verify
    min_match: Positive  # shortest run of tokens that is looked up
    max_match: Positive  # longest run of tokens that is looked up
    back_off: bool


class Sampling(Component, frozen=True, kw_only=True, tag="sampling"):
    """Defaults of a request that says nothing; `reproducible` belongs to the engine as a whole."""

    max_tokens: AtLeastOne  # of one answer
    min_tokens: Tokens  # before an answer may end
    temperature: Annotated[float, Meta(ge=0, le=100)] | Auto  # 0 is greedy; auto asks the checkpoint
    top_k: Tokens  # 0 keeps all
    top_p: Annotated[float, Meta(gt=0, le=1)]  # keeps the likeliest tokens up to this probability together
    min_p: Share  # drops tokens below this share of the likeliest one's probability
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)]  # divides the logits of tokens seen so far; 1 is none
    presence_penalty: Penalty  # taken once from the logit of a token that the answer has
    frequency_penalty: Penalty  # taken from the logit of a token as often as the answer has it
    logit_bias: dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]]  # token id → what is added to its logit
    bad_words: tuple[SomeText, ...]  # texts that are never written
    stop: tuple[SomeText, ...]  # texts that end an answer
    stop_token_ids: tuple[TokenId, ...]  # tokens that end an answer
    include_stop_str: bool  # leaves the stop text in the answer
    ignore_eos: bool  # goes on after the end-of-sequence token
    n: Annotated[int, Meta(ge=1, le=128)]  # answers to each prompt
    seed: Int64 | None  # none draws one
    logprobs: Count | None  # likeliest tokens told for every token of an answer
    prompt_logprobs: Count | None  # likeliest tokens told for every token of the prompt
    logprobs_mode: Literal["raw", "processed"]  # raw: of the model; processed: after penalties, temperature and cuts
    skip_special_tokens: bool  # leaves them out of the text; token ids are always whole
    json_schema: Text | None  # JSON text of a schema that every answer follows
    regex: Text | None  # regular expression that every answer matches as a whole
    ebnf: Text | None  # grammar that every answer follows: GBNF, or Lark with llguidance
    choice: tuple[SomeText, ...]  # texts of which every answer is one
    reproducible: bool  # refuses every option whose output depends on speed or approximates


class Replay(Component, frozen=True, kw_only=True):
    """Which rows of a prompt the later layers see, and where window keys come from after a hit of cache=prefix."""

    on_hit: Literal[
        "snapshot", "exact", "bounded"
    ]  # saved ones; computed anew from a window a layer back; or from one window back, which approximates


class NoReplay(Replay, frozen=True, kw_only=True, tag="none"):
    pass


class MaskReplay(Replay, frozen=True, kw_only=True, tag="mask"):
    implementation = "deepinfer.cache.replay:Replay"
    keep_tokens: Positive  # last tokens of a prompt that the later layers see; at least window and drafts


class CompactReplay(Replay, frozen=True, kw_only=True, tag="compact"):
    implementation = "deepinfer.cache.replay:Replay"
    keep_tokens: Positive


class Scheduler(Component, frozen=True, kw_only=True, tag="continuous"):
    implementation = "deepinfer.engine.scheduler:Scheduler"
    max_num_seqs: Positive  # sequences that run at once
    max_num_batched_tokens: Positive  # rows of one step
    max_prefill_tokens: Positive  # prompt rows that may join a step while answers run
    async_depth: Literal["auto", 0, 1]  # steps scheduled ahead: 1 hides the host's work behind the device's
    policy: Literal["fcfs"]  # first come, first served
    watchdog_s: Seconds  # longest time without progress while requests wait; 0 turns it off


class Cache(Component, frozen=True, kw_only=True):
    """Paged compressed keys and values. Blocks fill `memory_bytes` unless their number is given."""

    block_tokens: Literal[128]  # tokens of one block
    memory_bytes: Bytes | Auto  # of all blocks of a rank
    num_blocks: Positive | Auto  # of a rank, in place of memory_bytes


class PagedCache(Cache, frozen=True, kw_only=True, tag="paged"):
    pass


class PrefixCache(Cache, frozen=True, kw_only=True, tag="prefix"):
    implementation = "deepinfer.cache.prefix_cache:PrefixCache"
    snapshot_bytes: (
        BytesOrNone | Auto
    )  # window keys saved for replay.on_hit=snapshot; auto: 30 % of caches, at least max_num_seqs + 1 states; 0: none
    snapshot_every: Positive  # blocks of a prompt between two snapshots; its last full block always has one


class Kernels(Component, frozen=True, kw_only=True):
    """Which backend an op takes; `ops` pins single ones: {op: backend}."""

    ops: dict[str, str]  # op → backend, for single ops


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
    balancer: Balancer
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
    cost: Cost
    launcher: Launcher
    cluster: Cluster
    sweep: Sweep
