"""Values with quotes, spaces, `$(…)` and the like reach those whom they are for as typed, or are refused in words."""

import ast
import re
import shlex
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec import structs

from deepinfer.config.clusters import NoCluster, SiteCluster
from deepinfer.config.errors import Refused
from deepinfer.config.specs import Spec
from deepinfer.plan.launch import render
from deepinfer.plan.launch.job import Rendered
from deepinfer.plan.types import Plan

PRINTABLE = [
    "two words",
    " both ends ",
    "it's",
    'a "quote"',
    "`touch made`",
    "$(touch made)",
    "${HOME}",
    "$$(REPLICA)",
    "$HOME",
    "a\\",
    "a;touch made",
    "a&touch made",
    "a|b>made",
    "#SBATCH --x",
    "# no comment",
    "- item",
    "key: value",
    "{a: 1}",
    "[a]",
    "yes",
    "null",
    "12E34",
    "0x10",
    "*a",
    "&a",
    "!!python/object:os.system",
    "%d",
    "@VALUES@",
    "'''",
    "日本語 \U0001f600",
]
BREAKS = ["a\nb", "a\rb", "a\tb", "a\x00b", "a\x1b[31m", "a\u2028b", "a\x85b"]
LAUNCHERS = ["local", "torchrun", "slurm", "ray", "kubernetes"]
TEXTS = {  # keys that become words of files → launcher
    "python": LAUNCHERS,
    "partition": ["slurm"],
    "account": ["slurm"],
    "time": ["slurm"],
    "gres": ["slurm"],
    "namespace": ["kubernetes"],
    "image": ["kubernetes"],
    "model_claim": ["kubernetes"],
    "env_secret": ["kubernetes"],
    "file_secret": ["kubernetes"],
    "device": ["kubernetes"],
    "topology_key": ["kubernetes"],
    "address": ["ray"],
}
TWO_NODES = ("hardware=h200", "parallel=ep8", "parallel.attention_dp=16", "parallel.expert=16")
Nasty = Callable[..., Rendered]


@pytest.fixture
def nasty(plan_of: Callable[..., Plan], spec_of: Callable[..., Spec]) -> Nasty:
    """A launch with some keys of its launcher replaced, whatever their values."""

    @cache
    def planned(kind: str) -> tuple[Plan, Spec]:
        layout = ("model=v41_tiny",) if kind == "local" else TWO_NODES
        overrides = (*layout, f"launcher={kind}")
        return structs.replace(plan_of(*overrides), task="serve"), spec_of(*overrides)

    def make(kind: str, cluster: Any = None, **keys: Any) -> Rendered:
        plan, spec = planned(kind)
        given = {"image": "registry.example/deepinfer:1"} if kind == "kubernetes" else {}
        given |= {"python": "python"} if kind == "local" else {}
        return render(plan, structs.replace(spec.launcher, **(given | keys)), cluster or NoCluster())

    return make


def environment(rendered: Rendered, kind: str, folder: Path) -> str:
    """The variable V as a rank would see it."""
    if kind == "ray":
        assigned = re.search(r"^ENV = (.*)$", rendered.files["start.py"], re.MULTILINE)
        assert assigned
        return str(ast.literal_eval(assigned[1])["all"]["V"])
    if kind == "kubernetes":
        return kubelet(next(each["value"] for each in container(rendered)["env"] if each["name"] == "V"))
    exports = [line for line in script(rendered).splitlines() if line.startswith("export V=")]
    typed = f'{exports[0]}\nprintf %s "$V"'
    return subprocess.run(["bash", "-c", typed], cwd=folder, capture_output=True, text=True, check=True).stdout


def script(rendered: Rendered) -> str:
    return next(text for name, text in rendered.files.items() if name.endswith((".sbatch", "node-0.sh", "run.sh")))


def container(rendered: Rendered) -> Any:
    template = yaml.safe_load(rendered.files["all.yaml"])["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return template["spec"]["containers"][0]


def kubelet(value: str) -> str:
    """As Kubernetes reads values: $$ is a $, $(NAME) another variable."""
    return re.sub(r"\$\$|\$\((\w+)\)", lambda found: "$" if found[0] == "$$" else "<expanded>", value)


def check_syntax(rendered: Rendered) -> None:
    """Every file is still one of its kind."""
    for name, text in rendered.files.items():
        if name.endswith((".sh", ".sbatch")):
            done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
            assert (done.returncode, done.stderr) == (0, ""), (name, text)
        elif name.endswith(".yaml"):
            assert isinstance(yaml.safe_load(text), dict)
        elif name.endswith(".py"):
            ast.parse(text)


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_a_variable_arrives_as_typed(kind: str, nasty: Nasty, tmp_path: Path) -> None:
    for value in PRINTABLE:
        rendered = nasty(kind, env={"V": value})
        check_syntax(rendered)
        assert environment(rendered, kind, tmp_path) == value
    assert not list(tmp_path.iterdir()), "something ran"


@pytest.mark.parametrize(("key", "kind"), [(key, kind) for key, kinds in TEXTS.items() for kind in kinds])
def test_a_text_is_quoted_or_refused(key: str, kind: str, nasty: Nasty, tmp_path: Path) -> None:
    for value in [*PRINTABLE, *BREAKS]:
        try:
            rendered = nasty(kind, **{key: value})
        except Refused as refused:
            (problem,) = [each for each in refused.problems if f"launcher.{key}" in each.asked]
            assert problem.found and "\n" not in problem.asked
            continue
        assert value not in BREAKS, value
        check_syntax(rendered)
        assert arrives(rendered, kind, key, value, tmp_path), (value, rendered.files)
    assert not list(tmp_path.iterdir()), "something ran"


def arrives(rendered: Rendered, kind: str, key: str, value: str, folder: Path) -> bool:
    """Whether a text that was taken is one word, or one scalar, where it is used; $NAME of a shell is for the node."""
    if kind == "kubernetes" and key != "python":
        texts = [
            str(item) for name in rendered.files if name.endswith(".yaml") for item in scalars(rendered.files[name])
        ]
        return value in texts
    if kind == "ray":
        assigned = re.search(rf"^{key.upper()} = (.*)$", rendered.files["start.py"], re.MULTILINE)
        return assigned is not None and ast.literal_eval(assigned[1]) == value
    if key != "python":
        (line,) = [line for line in script(rendered).splitlines() if line.startswith("#SBATCH") and value in line]
        return value in line and len(shlex.split(line)) == 2
    text = container(rendered)["command"][2] if kind == "kubernetes" else script(rendered)
    (started,) = [line for line in text.splitlines() if "exec " in line and " -m " in line]
    words = started.removesuffix("\\").strip().removeprefix("exec ").removeprefix("env ")
    words = words.partition(" rank ")[2] if kind == "slurm" else re.sub(r"^([A-Z_]+=\d+ )+", "", words)
    typed = f'set -- {words}; printf %s "$1"'
    env = {"HOME": "/home/x", "PATH": "/usr/bin:/bin"}
    first = subprocess.run(
        ["bash", "-c", typed], cwd=folder, env=env, capture_output=True, text=True, check=True
    ).stdout
    return first == re.sub(r"\$HOME|\$\{HOME\}", "/home/x", value)


def scalars(text: str) -> list[Any]:
    """Keys and values of a YAML document, all the way down."""

    def walk(data: Any) -> list[Any]:
        if isinstance(data, dict):
            return [*data, *(each for value in data.values() for each in walk(value))]
        return [each for item in data for each in walk(item)] if isinstance(data, list) else [data]

    return walk(yaml.safe_load(text))


@pytest.mark.parametrize("kind", LAUNCHERS)
def test_hosts_and_interfaces(kind: str, nasty: Nasty) -> None:
    site = SiteCluster(name="s", nodes=2, hosts=("n1", "n2"), interface="eth0", verified="untested")
    for host in ("gpu-01.lan", "10.0.0.7", "fe80::1%eth0", "n_1"):
        check_syntax(nasty(kind, structs.replace(site, hosts=(host, "n2"))))
    for value in [*PRINTABLE, *BREAKS]:
        if value in ("yes", "null", "12E34", "0x10"):  # they could be host names, and are taken as such
            continue
        with pytest.raises(Refused, match=r"cluster\.hosts\[1\]=.*\n.*neither a host name nor an address"):
            nasty(kind, structs.replace(site, hosts=("n1", value)))
        with pytest.raises(Refused, match=r"cluster\.interface=.*\n.*no name of a network interface"):
            nasty(kind, structs.replace(site, interface=value))


@pytest.mark.parametrize("value", PRINTABLE)
def test_an_option_of_sbatch_is_one_word(value: str, nasty: Nasty) -> None:
    rendered = nasty("slurm", options=(f"--comment={value}", "--exclusive"))
    lines = [line for line in rendered.files["all-0.sbatch"].splitlines() if line.startswith("#SBATCH --comment")]
    assert [shlex.split(line) for line in lines] == [["#SBATCH", f"--comment={value}"]]
    assert "#SBATCH --exclusive\n" in rendered.files["all-0.sbatch"]


@pytest.mark.parametrize(
    ("option", "fix"),
    [("--constraint gpu", "'launcher.options=[\"--constraint=gpu\"]'"), ("gpu", ""), ("--a -b=$(c)", ""), ("; ls", "")],
)
def test_what_is_no_option_is_refused(option: str, fix: str, nasty: Nasty) -> None:
    with pytest.raises(Refused, match="not one option of sbatch") as caught:
        nasty("slurm", options=(option,))
    assert caught.value.problems[0].fix == fix


def test_names_of_resources(nasty: Nasty) -> None:
    check_syntax(nasty("kubernetes", resources={"rdma/hca": 8, "vendor.example/nic": 1}))
    for value in [*PRINTABLE, *BREAKS]:
        if re.fullmatch(r"\w+", value, re.ASCII):
            continue
        with pytest.raises(Refused, match="a cluster would refuse it"):
            nasty("kubernetes", resources={value: 1})


def test_images_of_roles(nasty: Nasty) -> None:
    with pytest.raises(Refused, match=r"launcher\.role_images\.all=x y"):
        nasty("kubernetes", role_images={"all": "x y"})
    with pytest.raises(Refused, match=r"launcher\.role_partitions\.all=x y"):
        nasty("slurm", role_partitions={"all": "x y"})
