"""The Grafana dashboard: it is well formed, and asks for nothing that /metrics does not have."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

PATH = Path(__file__).parents[3] / "docs/grafana/deepinfer.json"
BOARD = json.loads(PATH.read_text())
PANELS: list[dict[str, Any]] = BOARD["panels"]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel.get("targets", [])]
VARIABLES = {each["name"] for each in BOARD["templating"]["list"]}
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "counter": ("_total",)}
OF_PROMETHEUS = {"job", "instance", "le"}


@pytest.fixture(scope="module")
def labels(fake_server) -> dict[str, set[str] | None]:
    """Of each series that /metrics has, its labels; None where there is no sample yet."""
    fake_server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
    found: dict[str, set[str] | None] = {}
    for family in text_string_to_metric_families(httpx.get(f"{fake_server.url}/metrics").text):
        names = [family.name + suffix for suffix in SUFFIXES.get(family.type, ("",))]
        found |= dict.fromkeys(names)
        found |= {sample.name: set(sample.labels) for sample in family.samples}
    assert len(found) > 50
    return found


def test_every_series_is_told_by_metrics(labels) -> None:
    for title, expression in EXPRESSIONS:
        names = re.findall(r"\b(?:deepinfer|process)_\w+", expression)
        assert names, title
        assert set(names) <= labels.keys(), title
    asked = {name for _, expression in EXPRESSIONS for name in re.findall(r"\bdeepinfer_\w+", expression)}
    usual = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total")
    assert {f"deepinfer_{name}" for name in usual} <= asked


def test_every_label_is_told_by_its_series(labels) -> None:
    for title, expression in EXPRESSIONS:
        for name, matchers in re.findall(r"\b((?:deepinfer|process)_\w+)\{([^}]*)\}", expression):
            known = labels[name]
            if known is not None:
                assert set(re.findall(r"(\w+)[=!]", matchers)) <= known | OF_PROMETHEUS, title
    grouped = {
        label for _, text in EXPRESSIONS for each in re.findall(r"by \(([^)]*)\)", text) for label in each.split(", ")
    }
    all_labels = set().union(*(known for known in labels.values() if known))
    assert grouped <= all_labels | OF_PROMETHEUS | {"code", "position"}


def test_variables_are_declared() -> None:
    text = PATH.read_text()
    asked = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__all"}
    assert asked == VARIABLES, "each is declared, and none is left over"
    assert {panel["datasource"]["uid"] for panel in PANELS if panel["type"] != "row"} == {"${datasource}"}


def test_panels_have_ids_and_places_of_their_own() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        references = [target["refId"] for target in panel.get("targets", [])]
        assert len(set(references)) == len(references) and (references or panel["type"] == "row")
    assert BOARD["uid"] == "deepinfer" and BOARD["schemaVersion"] >= 36 and BOARD["id"] is None


def test_no_series_is_asked_twice_in_a_panel() -> None:
    assert len(set(EXPRESSIONS)) == len(EXPRESSIONS)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_reads_every_expression(tmp_path) -> None:
    values = {"__rate_interval": "1m"} | dict.fromkeys(VARIABLES, ".*")
    rules = [
        {"record": f"panel:{index}", "expr": re.sub(r"\$(\w+)", lambda found: values[found[1]], expression)}
        for index, (_, expression) in enumerate(EXPRESSIONS)
    ]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    checked = subprocess.run(
        ["promtool", "check", "rules", str(tmp_path / "rules.yml")], capture_output=True, text=True
    )
    assert checked.returncode == 0 and f"{len(rules)} rules found" in checked.stdout, checked.stderr


def test_the_manual_names_what_there_is(labels) -> None:
    page = PATH.parents[1] / "serving.md"
    asked = re.findall(r"`(deepinfer_\w+)(?:\{([^}`]*)\})?`", page.read_text("utf-8"))
    families = {re.sub(r"_(bucket|sum|count)$", "", name): known for name, known in labels.items()}
    assert len(asked) > 30
    for name, told in asked:
        assert name in families, name
        known = families[name]
        if told and known is not None:
            assert set(told.split(",")) - {"…"} <= known, name
