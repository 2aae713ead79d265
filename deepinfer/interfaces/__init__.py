"""What the rooms say to each other: requests, steps, results, and the protocols of the seams. No torch at run time."""

from deepinfer.interfaces.requests import FinishReason, Request, SamplingParams
from deepinfer.interfaces.seams import Drafter, Executor, Tokenizer, Verifier, VerifyLengths
from deepinfer.interfaces.steps import (
    Drafts,
    SampleInput,
    StepInput,
    StepOutput,
    StepPlan,
    TokenLogprobs,
    Verified,
    VerifyRows,
)

__all__ = [
    "Drafter",
    "Drafts",
    "Executor",
    "FinishReason",
    "Request",
    "SampleInput",
    "SamplingParams",
    "StepInput",
    "StepOutput",
    "StepPlan",
    "TokenLogprobs",
    "Tokenizer",
    "Verified",
    "Verifier",
    "VerifyLengths",
    "VerifyRows",
]
