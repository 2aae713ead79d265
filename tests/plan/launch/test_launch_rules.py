"""What shells, Slurm, Kubernetes or torchrun would refuse or misread is refused by launch, all of it at once."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import structs

from deepinfer.config.clusters import SiteCluster
from deepinfer.config.errors import ExitCode, Problem, Refused
from deepinfer.config.specs import Spec
from deepinfer.plan.launch import render
from deepinfer.plan.launch.env_rules import is_secret
from deepinfer.plan.launch.job import Rendered
from deepinfer.plan.types import Plan

TWO_NODES = ("hardware=h200", "parallel=ep8", "parallel.attention_dp=16", "parallel.expert=16")
SITE = SiteCluster(name="s", nodes=2, hosts=("n1", "n2"), interface="eth0", verified="untested")
Launch = Callable[..., Rendered]
DIGEST = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def plans() -> dict[str, tuple[Plan, Spec]]:
    return {}


@pytest.fixture
def launch(plan_of: Callable[..., Plan], spec_of: Callable[..., Spec], plans: dict[str, tuple[Plan, Spec]]) -> Launch:
    """A launch of two nodes with some keys of its launcher replaced, whatever their values."""

    def make(kind: str, cluster: SiteCluster = SITE, **keys: Any) -> Rendered:
        layout = ("model=v41_tiny", "model.weights=dummy") if kind == "local" else TWO_NODES
        overrides = (*layout, f"launcher={kind}")
        if kind not in plans:
            plans[kind] = structs.replace(plan_of(*overrides), task="serve"), spec_of(*overrides)
        plan, spec = plans[kind]
        given = {"image": "registry.example/deepinfer:1"} if kind == "kubernetes" else {}
        return render(plan, structs.replace(spec.launcher, **(given | keys)), cluster)

    return make


def refused(launch: Launch, kind: str, **keys: Any) -> dict[str, Problem]:
    with pytest.raises(Refused) as caught:
        launch(kind, **keys)
    assert caught.value.exit_code == ExitCode.CONFIG
    return {problem.asked: problem for problem in caught.value.problems}


RESERVED = {
    "local": ["folder", "started", "code", "RANK", "UID", "BASH_ENV", "PET_NNODES"],
    "torchrun": ["folder", "master_addr", "MASTER_ADDR", "IFS", "SHELLOPTS", "TORCHELASTIC_RUN_ID"],
    "slurm": ["plan", "hosts", "MASTER_PORT", "LOCAL_RANK", "SLURM_PROCID", "SLURM_SUBMIT_DIR", "SBATCH_X"],
    "ray": ["WORLD_SIZE", "PET_MASTER_ADDR"],
    "kubernetes": ["REPLICA", "LWS_WORKER_INDEX", "LWS_LEADER_ADDRESS", "RANK", "HF_HOME"],
}


@pytest.mark.parametrize("kind", RESERVED)
def test_names_that_the_files_use_themselves(kind: str, launch: Launch) -> None:
    told = refused(launch, kind, env={name: 1 for name in [*RESERVED[kind], "NCCL_DEBUG"]})
    assert told.keys() == {f"launcher.env.{name}" for name in RESERVED[kind]}
    for name in ("folder", "plan", "hosts", "HF_HOME"):
        if name not in RESERVED[kind]:
            assert launch(kind, env={name: "x"}).files


@pytest.mark.parametrize("kind", ["torchrun", "slurm"])
def test_the_scripts_own_variables_win(kind: str, launch: Launch) -> None:
    text = next(
        text for name, text in launch(kind, env={"A": 1}).files.items() if name.endswith((".sbatch", "node-0.sh"))
    )
    own = "plan=" if kind == "slurm" else "folder="
    assert text.index("\nexport A=1\n") < text.index(f"\n{own}")


def test_secrets_by_the_words_of_a_name() -> None:
    secret = (
        "HF_TOKEN HUGGING_FACE_HUB_TOKEN API_KEY OPENAI_API_KEY SECRET DB_PASSWORD PGPASSWORD aws_secret_access_key"
    )
    assert all(is_secret(name) for name in [*secret.split(), "PRIVATE_KEY", "WANDB_APIKEY", "CREDENTIALS"])
    plain = "TOKENIZERS_PARALLELISM MAX_TOKENS KEY KEYBOARD SECRETARY PASSWORDLESS HF_TOKEN_PATH SSL_KEY TOKENIZER"
    assert [name for name in [*plain.split(), "GOOGLE_APPLICATION_CREDENTIALS_FILE"] if is_secret(name)] == []


def test_machines_of_a_site(launch: Launch) -> None:
    hosts = ("n1", "n2", "n1", "", ":", "1:2", "fe80::1%a b", "x" * 254)
    told = refused(launch, "torchrun", cluster=structs.replace(SITE, hosts=hosts))
    assert told["cluster.hosts[2]=n1"].found == "cluster.hosts[0] is the same"
    assert len(told) == len(hosts) - 2
    assert launch("torchrun", cluster=structs.replace(SITE, hosts=("10.0.0.1", "fe80::1%eth0"))).files


@pytest.mark.parametrize("kind", ["torchrun", "slurm", "ray"])
def test_ports_end(kind: str, plan_of: Callable[..., Plan], spec_of: Callable[..., Spec]) -> None:
    split = ("hardware=gb300", "deploy=disaggregated", "parallel@deploy.prefill.parallel=ep4")
    split += ("parallel@deploy.decode.parallel=ep4", "deploy.prefill.replicas=3", f"launcher={kind}")
    plan, spec = structs.replace(plan_of(*split), task="serve"), spec_of(*split)
    with pytest.raises(
        Refused, match="the last of 4 replicas would meet on port 65536, and ports end at 65535"
    ) as told:
        render(plan, structs.replace(spec.launcher, master_port=65533), spec.cluster)
    assert told.value.problems[0].fix == "launcher.master_port=65532"
    assert render(plan, structs.replace(spec.launcher, master_port=65532), spec.cluster).files


SLURM = {
    "time": (["30", "1:30", "01:30:00", "2-0", "1-00:00:00", "UNLIMITED"], ["tomorrow", "1h", "1-", "1:2:3:4", "-1"]),
    "gres": (["gpu", "gpu:h200", "npu", "gpu:3g.40gb"], ["gpu:4", "gpu:h200:4", "gpu,npu", "4"]),
    "mem": (["0", "480G", "1000"], ["480GB", "all", "-1", "1.5T"]),
    "options": (
        [("--comment=x",), ("--exclusive=user", "--output=logs/%j"), ("--qos=high", "--requeue")],
        [
            ("--nodes=3",),
            ("--nod=3",),
            ("--gpus-per-node=1",),
            ("--array=0-9",),
            ("-N3",),
            ("-p=x",),
            ("--mem=1G",),
            ("--mem-per-cpu=1G",),
        ],
    ),
}
KUBERNETES = {
    "namespace": (["a", "team-1"], ["A", "a.b", "a_b", "-a", "x" * 64]),
    "env_secret": (["hub", "a.b-c"], ["Hub", "a_b", "a..b", ".a"]),
    "file_secret": (["keys", "a.b-c"], ["Keys", "a_b", "a..b", ".a"]),
    "topology_key": (["auto", "none", "zone", "example.com/zone"], ["a/b/c", "/zone", "-zone", "a b/c"]),
    "device": (["auto", "vendor.example/gpu"], ["gpu", "V.E/gpu", "nvidia.com/"]),
    "image": (
        ["x", "a/b", "registry.example:5000/a/b_c:1.0-x", f"docker.io/a@{DIGEST}", f"a:1@{DIGEST}"],
        ["Name", "a:", "a//b", "a:b:c", "a@sha256:0", "https://a/b", "-a", "a/:1", "a:" + "t" * 129],
    ),
    "model_host_path": (["/srv/models"], ["models", "/srv/../etc", "/.."]),
    "resources": (
        [{"rdma/hca": 8, "hugepages-2Mi": 1}],
        [{"hca": 8}, {"cpu": 8}, {"memory": 8}, {"nvidia.com/gpu": 8}, {"huawei.com/npu": 8}],
    ),
}


@pytest.mark.parametrize(
    ("kind", "key", "taken", "not_taken"),
    [(kind, key, *both) for kind, keys in (("slurm", SLURM), ("kubernetes", KUBERNETES)) for key, both in keys.items()],
)
def test_values_of_a_scheduler(kind: str, key: str, taken: list[Any], not_taken: list[Any], launch: Launch) -> None:
    for value in taken:
        assert launch(kind, **{key: value}).files, value
    for value in not_taken:
        (asked,) = refused(launch, kind, **{key: value})
        assert asked.startswith(f"launcher.{key}"), value


def test_a_place_for_a_model_that_is_read_from_nowhere(launch_of: Callable[..., Any]) -> None:
    for key in ("model_claim=a", "model_host_path=/a"):
        with pytest.raises(Refused, match=f"launcher.{key}\n.*its weights are part of deepinfer"):
            launch_of("model=v41_tiny", "launcher=kubernetes", "launcher.image=x", f"launcher.{key}")


def test_all_of_it_at_once(launch: Launch) -> None:
    """One run tells everything, of each kind."""
    site = structs.replace(SITE, hosts=("n1", "b;touch made"), interface="e h")
    env = {"HF_TOKEN": "x", "plan": "x"}
    told = refused(
        launch, "slurm", cluster=site, env=env, time="1h", gres="gpu:8", options=("--nodes=1", "-x"), master_port=65535
    )
    assert len(told) == 8
    keys = {"namespace": "A", "image": "B", "device": "gpu", "resources": {"cpu": 1}, "env": {"REPLICA": 1}}
    assert len(refused(launch, "kubernetes", cluster=site, **keys)) == 7
    fixes = {problem.fix for problem in refused(launch, "slurm", options=("--partition=gpu", "--time 5")).values()}
    assert fixes == {"launcher.partition=gpu", "'launcher.options=[\"--time=5\"]'"}
