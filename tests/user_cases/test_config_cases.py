"""What users of such engines have reported about configuration, C01 to C12, as they typed it but for the names of keys.

C13 to C22 are in test_config_values.py.

Keys have our names: `kv.num_blocks` is cache.num_blocks here, `engine.spec=dspark` is speculation=dspark, and there is
no key for environment variables, prompts are words of a verb. Where a case is about something that is not offered, its
refusal is what is tested. The number of each case is in the name of its test; the reports are named beside it.
"""

import os
from collections.abc import Callable

import pytest
from own_options import refused

from deepinfer.config.compose import load

Run = Callable[..., "Outcome"]  # type: ignore[name-defined]  # noqa: F821 — of conftest.py
OwnOptions = Callable[[dict[str, str]], str]
GLOBAL = "# @package _global_\ncluster:\n  kind: none\n"


def test_c01_a_bar_in_a_value() -> None:
    """hydra#1843: a `|` died in the lexer. It is text here."""
    assert load("sampling.stop=[yes|no]").sampling.stop == ("yes|no",)
    assert load("sampling.regex=yes|no").sampling.regex == "yes|no"
    assert "type: 'sampling.regex=yes|no'" in refused("grammar.regex=yes|no")  # the group says who enforces it


@pytest.mark.parametrize(
    ("typed", "says", "fix"),
    [
        ("executor.backend=gloo,nccl", "a comma or a range means a sweep", "deepinfer -m executor.backend=gloo,nccl"),
        ("sampling.stop=mlx5_0:1,mlx5_1:1", "a comma or a range means a sweep", "sampling.stop=[mlx5_0:1,mlx5_1:1]"),
        ("runtime.env.NCCL_IB_HCA=mlx5_0:1,mlx5_1:1", "no key 'runtime.env.NCCL_IB_HCA'", ""),
    ],
)
def test_c02_commas_and_colons(typed: str, says: str, fix: str) -> None:
    """NVIDIA/cloudai#557: never two jobs by accident. Text keys take commas as they are."""
    text = refused(typed)
    assert says in text and (f"type: {fix}" in text if fix else "type:" not in text)
    assert load("serving.host=mlx5_0:1,mlx5_1:1").serving.host == "mlx5_0:1,mlx5_1:1"


def test_c03_letters_beyond_ascii() -> None:
    """hydra#2891: they need no quotes, and with quotes they are the same."""
    for typed in ("sampling.stop=[你好,b]", 'sampling.stop=["你好",b]', "sampling.stop=['你好', b]"):
        assert load(typed).sampling.stop == ("你好", "b")
    assert "type: sampling.stop=[你好]" in refused("sampling.stop=你好")
    assert load("sampling.stop=[ä b,${oc.env:HOME}]").sampling.stop == ("ä b", os.environ["HOME"])


def test_c04_a_quoted_item_that_ends_in_a_backslash() -> None:
    """hydra#1600: an odd backslash is an error that shows the doubled one; even ones end the item."""
    assert load(r"sampling.stop=['end\\', 'b']").sampling.stop == ("end\\", "b")
    text = refused(r"sampling.stop=['end\', 'b']")
    assert "cannot be read" in text and r"end\\" in text


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("engine.spec=dspark", "speculation=dspark"),
        ("speculation.dspark=true", "speculation=dspark"),
        ("speculation/dspark=true", "speculation=dspark"),
        ("speculation.kind=dspark", "speculation=dspark"),
        ("speculation.dspark.depth=3", "speculation=dspark speculation.depth=3"),
        ("sampling/n=3", "sampling.n=3"),
        ("deploy/decode/parallel=ep2", "parallel@deploy.decode.parallel=ep2"),
        ("deploy.decode.parallel=ep2", "deploy=disaggregated parallel@deploy.decode.parallel=ep2"),
    ],
)
def test_c05_a_dot_for_a_slash_and_a_key_for_a_group(typed: str, fix: str) -> None:
    """hydra#2670: what is a group is said to be one, with the override to type."""
    text = refused(typed)
    assert "group" in text or "it belongs to deploy=disaggregated" in text
    assert text.endswith(f"type: {fix}")


def test_c06_a_file_that_overrides_a_group_without_the_slash(own_options: OwnOptions) -> None:
    """hydra#1365: the file is named, and what its line must look like."""
    folder = own_options({"cluster/a": "defaults:\n  - override parallel: ep64\nkind: none\n"})
    text = refused("+cluster=a", config_dir=folder)
    assert "cluster/a.yaml overrides /parallel" in text and f"set in {folder}/cluster/a.yaml:1" in text
    assert "'# @package _global_' as the first line" in text and "override /parallel with the slash" in text


def test_c07_the_later_file_wins(own_options: OwnOptions, deepinfer: Run) -> None:
    """hydra#3229: last in depth-first order, and `explain` says who."""
    folder = own_options({"cluster/a": GLOBAL + "defaults:\n  - override /parallel: ep64\n"})
    assert load("+cluster=a", config_dir=folder).parallel.expert == 64
    assert load("+cluster=a", "parallel=ep4", config_dir=folder).parallel.expert == 4
    told = deepinfer("plan", "--config-dir", folder, "cluster=a", "hardware=gb300", "explain=parallel")
    assert told.code == 0 and "cluster/a.yaml:" in told.out and "ep64" in told.out


@pytest.mark.parametrize("typed", ["hydra.sweeper.params={a: 1}", "hydra/sweeper=basic", "+hydra.sweeper.params.x=1,2"])
def test_c09_a_sweep_inside_hydra(typed: str) -> None:
    """hydra#2807: refused up front; points of a sweep are typed."""
    assert "Hydra's own settings would do nothing here" in refused(typed)


def test_c09_a_file_that_defines_a_sweep(own_options: OwnOptions) -> None:
    text = GLOBAL + "hydra:\n  sweeper:\n    params:\n      sampling.seed: 1,2\n"
    said = refused("cluster=a", config_dir=own_options({"cluster/a": text}))
    assert "hydra:\n" in said and "cluster/a.yaml:4" in said and "-m key=a,b" in said


@pytest.mark.parametrize(
    "typed", ["hydra/launcher=basic", "hydra.run.dir=/x", "hydra.sweep.dir=/x", "hydra.job.chdir=true"]
)
def test_c10_settings_of_the_launcher(typed: str) -> None:
    """hydra#2381, #2946: a point of a sweep cannot change who runs it; such settings are refused before the first."""
    assert "Hydra's own settings would do nothing here" in refused(typed)


@pytest.mark.parametrize(
    "lines", ["hydra:\n  run:\n    dir: /nowhere\n", "defaults:\n  - override /hydra/launcher: basic\n"]
)
def test_c10_a_file_that_sets_up_hydra(own_options: OwnOptions, lines: str) -> None:
    said = refused("cluster=a", config_dir=own_options({"cluster/a": GLOBAL + lines}))
    assert "Hydra's own settings would do nothing here" in said and "cluster/a.yaml:" in said


def test_c11_all_open_values_at_once(own_options: OwnOptions) -> None:
    """hydra#2193: each with the file that leaves it open, before anything is loaded."""
    text = GLOBAL + "model:\n  path: ???\nscheduler:\n  max_num_seqs: ???\n"
    folder = own_options({"cluster/a": text})
    said = refused("cluster=a", config_dir=folder)
    assert said.startswith("2 problems")
    for key in ("model.path", "scheduler.max_num_seqs"):
        assert f"{key}\n" in said and f"type: {key}=…" in said
    assert said.count(f"{folder}/cluster/a.yaml") == 2


@pytest.mark.parametrize("where", ["command line", "file"])
def test_c12_text_that_looks_like_a_number(own_options: OwnOptions, where: str) -> None:
    """hydra#2599, omegaconf#296: a revision stays text, though YAML reads it as a number."""
    if where == "command line":
        assert load("model.revision=12E34").model.revision == "12E34"
        assert load("model.revision=1e5").model.revision == "1e5"
        assert load("model.revision=0123").model.revision == "0123"
    else:
        folder = own_options({"cluster/a": GLOBAL + "model:\n  revision: 12E34\n"})
        assert load("cluster=a", config_dir=folder).model.revision == "12E34"
        folder = own_options({"cluster/b": GLOBAL + "model:\n  revision: '0123'\n  path: on\n"})
        model = load("cluster=b", config_dir=folder).model
        assert (model.revision, model.path) == ("0123", "on")
        folder = own_options({"cluster/c": GLOBAL + "model:\n  revision: 0123\n"})
        said = refused("cluster=c", config_dir=folder)
        assert "a leading zero means base 8" in said and "cluster/c.yaml:5" in said
