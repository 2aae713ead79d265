"""benchmarks/serving_load.py: many streams at once, every token checked by who gets it; none lost, wrong or broken."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deepinfer.cli.bench_http import Client

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # benchmarks are no package

from checked_stream import Stream, _Choice, following  # noqa: E402
from serving_load import TOKENS, Load  # noqa: E402

if TYPE_CHECKING:
    from running_server import Running

STREAMS, LONGEST = 50, 40


def test_fifty_streams_get_their_own_tokens(fake_server: Running) -> None:
    async def loaded() -> Load:
        client = Client(fake_server.url)
        load = Load(client, LONGEST, fake_server.model)
        await load.run(STREAMS, until_s=0.0, ramp_s=0.2)
        client.close()
        return load

    load = asyncio.run(loaded())
    assert (load.lost, load.wrong, load.broken, load.first_errors) == (0, 0, 0, [])
    assert load.total == sum(max(1, LONGEST * number // STREAMS) for number in range(1, STREAMS + 1))
    assert len(load.ended) == STREAMS


def test_a_token_that_is_lost_or_mixed_up_is_seen() -> None:
    expected = [7, 9]
    for position in range(2, 8):
        expected.append(following(5, position, expected[-1], expected[-2]))
    right, changed = expected[2:], [*expected[2:5], expected[5] ^ 1, *expected[6:]]
    for tokens, wrong in ((right, 0), (changed, 3), (right[1:], None)):  # the two after a wrong one follow from it
        stream = Stream(5, [7, 9], len(right))
        stream._take(_Choice(tokens), 0.0)
        assert stream.wrong == wrong if wrong is not None else stream.wrong and stream.got < stream.asked


@pytest.mark.slow
@pytest.mark.parametrize(("minutes", "tokens"), [(0.25, 200), (10, TOKENS)])
def test_a_thousand_streams(minutes: float, tokens: int) -> None:
    """A process of its own, as a measurement is run. Times are told and not judged: other tests run beside."""
    command = [sys.executable, "serving_load.py", "--streams=1000", f"--minutes={minutes}", f"--tokens={tokens}"]
    done = subprocess.run(command, cwd=BENCHMARKS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["lost"], found["wrong"], found["broken"]) == (0, 0, 0) and found["tokens"] > 100_000, found
