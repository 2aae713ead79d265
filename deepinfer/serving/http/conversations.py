"""From what a request of any chat dialect asks to a job for the engine, under this server's settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deepinfer.serving.chat_job import chat_job, rendered

if TYPE_CHECKING:
    from deepinfer.serving.chat_ask import ChatAsk
    from deepinfer.serving.codec import ChatPrompt
    from deepinfer.serving.http.service import Service
    from deepinfer.serving.jobs import Job


def job_of(service: Service, ask: ChatAsk) -> tuple[Job, ChatPrompt]:
    """The job of a conversation, and its prompt. Raises FieldError or ChatError."""
    job = chat_job(ask, service.desk, service.default_params, **_settings(service))
    assert job.chat is not None, "a conversation is rendered"
    return job, job.chat


def prompt_of(service: Service, ask: ChatAsk) -> ChatPrompt:
    """The prompt alone, also one that is too long to be answered. Raises FieldError or ChatError."""
    return rendered(ask, service.desk, service.default_params, **_settings(service))


def _settings(service: Service) -> dict[str, Any]:
    return {"asked": service.asked, "thinking": service.settings.thinking}
