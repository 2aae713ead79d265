"""The verbs, as the task group sees them."""

from typing import Annotated, Literal

from msgspec import Meta

from deepinfer.config.leaves import Auto, Component, Count, Positive, Text


class Task(Component, frozen=True, kw_only=True):
    """The verb. Its own strings (prompt=, format=, …) stay on the command line: see `argv.Invocation`."""


class Generate(Task, frozen=True, kw_only=True, tag="generate"):
    thinking: bool  # chat prompts are rendered with the thinking part open


class Plan(Task, frozen=True, kw_only=True, tag="plan"):
    pass


class Doctor(Task, frozen=True, kw_only=True, tag="doctor"):
    pass


class Serve(Task, frozen=True, kw_only=True, tag="serve"):
    pass


class Chat(Task, frozen=True, kw_only=True, tag="chat"):
    thinking: bool
    base_url: Text | None  # a server to talk with, http://HOST:PORT; null: the model in this process
    api_key_file: Text | None  # file that holds the key which that server asks for


class Load(Task, frozen=True, kw_only=True):
    """The load that is sent; the sizes of its requests are those of the workload."""

    num_requests: Positive  # requests that are measured
    warm_up: Count  # requests that run before them and are not counted
    concurrency: Positive | Auto  # requests in flight; auto: as the scheduler takes them, no limit at a request_rate
    request_rate: Annotated[float, Meta(gt=0)] | None  # arrivals a second, Poisson; null: the next as one ends
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)]  # of prompts and arrivals


class Bench(Load, frozen=True, kw_only=True, tag="bench"):
    """With target=serve the load goes over HTTP. With slice=rank no load is sent: the steps of one rank of the layout are
    timed, alone on this machine's device."""

    target: Literal["engine", "serve"]  # engine: of this process; serve: over HTTP, to a server
    base_url: Text | None  # serve: a server that runs, http://HOST:PORT; null: one is started for this plan
    api_key_file: Text | None  # serve: file that holds the key which the server asks for
    arrivals: Literal["poisson", "constant"]  # serve: how requests come at a request_rate
    turns: Positive  # serve: requests of a conversation, each on the answers before it; what is said is cached_share
    slice: Literal["none", "rank"]  # rank: no load is sent, the steps of one rank of the layout are timed alone
    slice_sequences: tuple[Positive, ...]  # rank: sequences of a decode step
    slice_contexts: tuple[Positive, ...]  # rank: tokens of each of them
    slice_prompts: tuple[Positive, ...]  # rank: tokens of a prompt
    slice_routing: tuple[Literal["balanced", "skewed"], ...]  # rank: how rows choose experts


class Simulate(Task, frozen=True, kw_only=True, tag="simulate"):
    pass


class Tune(Load, frozen=True, kw_only=True, tag="tune"):
    """A search; the keys are those of the runs of bench that a recipe over bench makes."""


class Launch(Task, frozen=True, kw_only=True, tag="launch"):
    run: Literal["serve", "generate"]  # what the ranks do; generate answers the five prompts of the main job and ends


class Rank(Task, frozen=True, kw_only=True, tag="rank"):
    """One rank of a rendered plan; the files of `launch` call it."""


class RunBatch(Task, frozen=True, kw_only=True, tag="run_batch"):
    concurrency: Positive | Auto  # requests in flight; auto: twice what the scheduler takes at once
