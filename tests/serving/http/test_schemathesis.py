"""What schemathesis makes of our own /openapi.json: requests that fit the schemas and requests that do not, and never a 5xx."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import hypothesis
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode

if TYPE_CHECKING:
    from running_server import Running

SMALL = ("model.max_model_len=256", "executor.step_time_s=0.0")  # so that no answer is long
PATIENCE_S = 50.0


def operations(url: str) -> list[tuple[str, schemathesis.APIOperation]]:
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    return [(each.ok().label, each.ok()) for each in schema.get_all_operations()]


@pytest.mark.filterwarnings("ignore")
def test_every_operation_takes_whatever_its_schema_says(
    make_server: Callable[..., Running], full: bool, sample_seed: int
) -> None:
    running = make_server(*SMALL)
    found = operations(running.url)
    paths = {label.split()[1] for label, _ in found}
    assert {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize"} <= paths
    failures, statuses = list[str](), set[tuple[str, int]]()
    for label, operation in found:
        for mode in GenerationMode:
            try:
                cases = operation.as_strategy(generation_mode=mode)
                _tried(cases, running.url, 150 if full else 4, sample_seed, label, failures, statuses)
            except hypothesis.errors.Unsatisfiable:
                continue  # nothing that does not fit can be made for an operation that takes nothing
    assert not failures, f"--sample-seed={sample_seed}: {len(failures)}: " + "\n".join(failures[:10])
    assert {status for _, status in statuses} >= {200, 400}
    assert running.health()[0] == 200


def _tried(
    cases: hypothesis.strategies.SearchStrategy,
    url: str,
    number: int,
    seed: int,
    label: str,
    failures: list[str],
    statuses: set[tuple[str, int]],
) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(case=cases)
    def try_one(case: schemathesis.Case) -> None:
        try:
            response = case.call(base_url=url, timeout=PATIENCE_S)
        except (requests.ReadTimeout, requests.ConnectionError, ValueError):
            return  # an answer longer than we wait for, or a request that no client can send
        statuses.add((label, response.status_code))
        if response.status_code >= 500 or b"internal_error" in response.content:
            failures.append(
                f"{case.as_curl_command()[:600]}\n  -> HTTP {response.status_code} {response.content[:300]!r}"
            )
        elif response.status_code >= 400 and b"message" not in response.content:
            failures.append(f"{case.as_curl_command()[:600]}\n  -> no message: {response.content[:300]!r}")

    try_one()
