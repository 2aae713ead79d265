"""An outside load generator against our server; only where it is installed (`pip install guidellm`, or on the PATH)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deepinfer.config.facts import shipped_folder

if TYPE_CHECKING:
    from running_server import Running

GUIDELLM = shutil.which("guidellm")


@pytest.mark.skipif(GUIDELLM is None, reason="guidellm is not installed")
def test_guidellm_measures_us(server: Running, tmp_path: Path) -> None:
    assert GUIDELLM is not None
    report = tmp_path / "report.json"
    command = [
        *(GUIDELLM, "run", "--backend", f"kind=openai_http,target={server.url}", "--disable-progress"),
        *("--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=12"),
        *("--tokenizer", f"kind=hf_auto,model={shipped_folder('v41_tiny')}", "--output", f"kind=json,path={report}"),
        *("--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8"),
    ]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    (benchmark,) = json.loads(report.read_text())["benchmarks"]
    totals = benchmark["metrics"]["request_totals"]
    assert (totals["successful"], totals["errored"]) == (12, 0)
