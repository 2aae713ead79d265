"""The verbs, as the task group sees them."""

from deepinfer.config.leaves import Component


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


class Bench(Task, frozen=True, kw_only=True, tag="bench"):
    pass


class Simulate(Task, frozen=True, kw_only=True, tag="simulate"):
    pass


class Tune(Task, frozen=True, kw_only=True, tag="tune"):
    pass


class Launch(Task, frozen=True, kw_only=True, tag="launch"):
    pass


class Rank(Task, frozen=True, kw_only=True, tag="rank"):
    """One rank of a rendered plan; the files of `launch` call it."""


class RunBatch(Task, frozen=True, kw_only=True, tag="run_batch"):
    pass
