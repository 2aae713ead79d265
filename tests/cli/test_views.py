"""Hydra's views of the configuration: with verbs, words, clusters and one's own options, and from any folder."""

from pathlib import Path

import pytest
import yaml

from deepinfer.cli.main import main


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """None of it depends on the folder that it is called from, or leaves anything there."""
    monkeypatch.chdir(tmp_path)


def test_the_job_resolved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ("plan", "--cfg", "job", "--resolve", "cluster=h200_node", "sampling.seed=${parallel.expert}")
    data = yaml.safe_load(shown(capsys, *arguments))
    assert data["task"]["kind"] == "plan" and data["hardware"]["architecture"]["value"] == "sm90"
    assert data["sampling"]["seed"] == data["parallel"]["expert"] > 1
    assert not list(tmp_path.iterdir())


def test_one_package_of_a_deployment(capsys: pytest.CaptureFixture[str]) -> None:
    layout = ("deploy=disaggregated", "parallel@deploy.decode.parallel=ep64")
    text = shown(capsys, "plan", "--cfg", "job", "--package", "deploy.decode", *layout)
    assert "expert: 64" in text and "prefill" not in text


@pytest.mark.parametrize("verb", ["plan", "generate", "launch", "doctor"])
def test_verbs(capsys: pytest.CaptureFixture[str], verb: str) -> None:
    assert yaml.safe_load(shown(capsys, verb, "--cfg", "job", "--package", "task"))["kind"] == verb


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("plan", "--info", "defaults", "cluster=h200_node"), "cluster/h200_node"),
        (("--info", "defaults-tree", "parallel=ep4"), "parallel: ep4"),
        (("plan", "--info", "searchpath"), "pkg://deepinfer.conf"),
    ],
)
def test_where_it_comes_from(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str) -> None:
    assert words in shown(capsys, *arguments)


def test_free_text_and_own_options(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "own" / "cluster"
    folder.mkdir(parents=True)
    (folder / "site.yaml").write_text("# @package _global_\ncluster: {kind: none}\nsampling: {n: 4}\n")
    text = shown(capsys, "--config-dir", "own", "--cfg", "job", "cluster=site", "model.path=a b's ${x}, ä")
    data = yaml.safe_load(text)
    assert (data["sampling"]["n"], data["model"]["path"]) == (4, "a b's \\${x}, ä")


def test_a_view_of_something_wrong_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--cfg", "job", "parallel=ep46"]) == 2
    assert "type: parallel=ep64" in capsys.readouterr().err
