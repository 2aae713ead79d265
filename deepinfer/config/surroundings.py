"""What stands around the engine: executors and grammars."""

from typing import Literal

from deepinfer.config.leaves import Component, Count, Interval, Seconds, Share


class Executor(Component, frozen=True, kw_only=True):
    """Who carries out a step."""


class AutoExecutor(Executor, frozen=True, kw_only=True, tag="auto"):
    pass


class LocalExecutor(Executor, frozen=True, kw_only=True, tag="local"):
    implementation = "deepinfer.engine.executor_local:LocalExecutor"


class DistributedExecutor(Executor, frozen=True, kw_only=True, tag="distributed"):
    implementation = "deepinfer.engine.executor_distributed:DistributedExecutor"
    backend: Literal["auto", "gloo", "nccl", "hccl"]  # of torch.distributed
    join_timeout_s: Interval  # to wait for all ranks at the start
    heartbeat_s: Interval  # between two signs of life of a rank
    silence_s: Interval  # without one, after which a rank counts as lost; 3 times the former at least
    on_rank_loss: Literal["fail", "requeue"]  # end all requests, or start the ranks again and finish them
    max_restarts: Count  # with requeue, where this process started the ranks


class SimulatedExecutor(Executor, frozen=True, kw_only=True, tag="simulated"):
    implementation = "deepinfer.engine.executor_simulated:SimulatedExecutor"
    step_time_s: Seconds  # of every step, on the virtual clock
    acceptance: Share  # chance that an invented draft is right if all before it are; also its confidence


class Grammar(Component, frozen=True, kw_only=True):
    """Who turns a schema into token masks."""


class NoGrammar(Grammar, frozen=True, kw_only=True, tag="none"):
    pass


class Llguidance(Grammar, frozen=True, kw_only=True, tag="llguidance"):
    implementation = "deepinfer.sampling.grammar.llguidance:Llguidance"
    compile_timeout_s: Seconds  # for one schema; then its request fails


class Xgrammar(Grammar, frozen=True, kw_only=True, tag="xgrammar"):
    implementation = "deepinfer.sampling.grammar.xgrammar:Xgrammar"
    compile_timeout_s: Seconds
