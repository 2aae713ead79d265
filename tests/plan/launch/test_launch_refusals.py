"""What a launcher cannot start, it refuses with every reason, before a file is written."""

from collections.abc import Callable

import pytest

from deepinfer.config.clusters import SiteCluster
from deepinfer.config.errors import ExitCode, Refused
from deepinfer.plan.launch import kubernetes, render
from deepinfer.plan.launch.job import Rendered
from deepinfer.plan.types import Plan

Launch = Callable[..., tuple[Plan, Rendered]]
TWO_NODES = ("hardware=h200", "parallel=ep8", "parallel.attention_dp=16", "parallel.expert=16")
SITE = SiteCluster(name="a site", nodes=2, hosts=("n1.lab", "n2.lab"), interface="bond0", verified="untested")


def problems(launch_of: Launch, *overrides: str, task: str = "serve") -> dict[str, str]:
    with pytest.raises(Refused) as caught:
        launch_of(*overrides, task=task)
    return {problem.asked: str(problem) for problem in caught.value.problems}


def test_everything_that_speaks_against_kubernetes_at_once(launch_of: Launch) -> None:
    told = problems(
        launch_of, "launcher=kubernetes", "launcher.name=Deep_Infer", "launcher.env.HF_TOKEN=x", task="generate"
    )
    assert told.keys() == {
        "launcher=kubernetes",
        "launcher.name=Deep_Infer",
        "launcher.env.HF_TOKEN",
        "task.run=generate",
    }
    assert "type: launcher.image=" in told["launcher=kubernetes"]
    assert "type: launcher.env_secret=NAME" in told["launcher.env.HF_TOKEN"]
    assert "starts again what ends" in told["task.run=generate"]


def test_a_plan_too_large_for_a_config_map(launch_of: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes, "MAX_CONFIG_MAP_BYTES", 1000)
    told = problems(launch_of, "launcher=kubernetes", "launcher.image=x")
    assert "a ConfigMap at most 1,000" in told["launcher=kubernetes"]


def test_the_largest_layout_fits_into_a_config_map(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of("hardware=ascend950", "parallel=ep128", "speculation=dspark")
    assert len(plan.to_json()) * 4 < kubernetes.MAX_CONFIG_MAP_BYTES


@pytest.mark.parametrize(
    ("launcher", "name"),
    [("torchrun", "HF_TOKEN"), ("slurm", "AWS_SECRET_ACCESS_KEY"), ("ray", "OPENAI_API_KEY"), ("local", "password")],
)
def test_secrets_stay_out_of_files(launch_of: Launch, launcher: str, name: str) -> None:
    (told,) = problems(launch_of, f"launcher={launcher}", f"launcher.env.{name}=x").values()
    assert "a secret, by its name" in told and f"export {name}=… on the nodes" in told


@pytest.mark.parametrize("key", ["launcher.env.IF", "launcher.python"])
def test_a_line_break_would_be_another_command(launch_of: Launch, key: str) -> None:
    (told,) = problems(launch_of, "launcher=torchrun", f'{key}="a\\nb"').values()
    assert "a line break" in told


def test_roles_of_their_own(launch_of: Launch) -> None:
    split = (
        "deploy=disaggregated",
        "hardware=gb300",
        "hardware@deploy.decode.hardware=ascend950dt",
        "parallel@deploy.prefill.parallel=ep4",
        "parallel@deploy.decode.parallel=ep8",
    )
    _, rendered = launch_of(*split, "launcher=slurm", "launcher.partition=gpu", "launcher.role_partitions.decode=npu")
    assert "--partition=gpu\n" in rendered.files["prefill-0.sbatch"]
    assert "--partition=npu\n" in rendered.files["decode-0.sbatch"]
    assert "--gpus-per-node=4\n" in rendered.files["prefill-0.sbatch"]
    assert "--gres=npu:8\n" in rendered.files["decode-0.sbatch"]
    images = ("launcher.role_images.prefill=cuda:1", "launcher.role_images.decode=cann:1")
    _, rendered = launch_of(*split, "launcher=kubernetes", *images)
    assert "image: cann:1\n" in rendered.files["decode.yaml"] and "huawei.com/npu: '8'" in rendered.files["decode.yaml"]
    assert (
        "image: cuda:1\n" in rendered.files["prefill.yaml"] and "nvidia.com/gpu: '4'" in rendered.files["prefill.yaml"]
    )
    (told,) = problems(launch_of, "launcher=slurm", "launcher.role_partitions.decode=npu").values()
    assert "no such role; this plan has all" in told


def test_names_of_variables(launch_of: Launch) -> None:
    (told,) = problems(launch_of, "launcher=ray", "launcher.env.1-x=1").values()
    assert "no name of a variable" in told


def test_local_is_one_machine(launch_of: Launch) -> None:
    with pytest.raises(Refused, match="16 ranks stand on 2 nodes") as caught:
        launch_of(*TWO_NODES, "launcher=local")
    assert caught.value.exit_code == ExitCode.PLAN
    _, rendered = launch_of("hardware=cpu", "parallel=ep2", "launcher=local")  # ranks on CPUs share a machine
    assert rendered.files["run.sh"].endswith("\nworld all 0 29500 2 2\n")
    with pytest.raises(Refused, match="2 ranks stand on 2 nodes"):
        launch_of("hardware=cpu", "parallel=ep2", "hardware.node_devices=1", "launcher=local")


def test_hosts_of_the_site(launch_of: Launch) -> None:
    _, rendered = launch_of(*TWO_NODES, "launcher=torchrun", "launcher.env.GLOO_SOCKET_IFNAME=eth7", cluster=SITE)
    assert rendered.steps == ("./all-0/node-0.sh   # on n1.lab", "./all-0/node-1.sh   # on n2.lab")
    for script in (rendered.files["all-0/node-0.sh"], rendered.files["all-0/node-1.sh"]):
        assert "master_addr=n1.lab\n" in script and "MASTER_ADDR:?" not in script
        assert "export NCCL_SOCKET_IFNAME=bond0\n" in script
        assert "export GLOO_SOCKET_IFNAME=eth7\n" in script  # what was asked for wins over the site


def test_a_launcher_of_somebody_else(plan_of: Callable[..., Plan]) -> None:
    """A Launcher from another package says by its implementation who renders it."""
    from deepinfer.config.clusters import NoCluster
    from deepinfer.config.launchers import Launcher

    class Theirs(Launcher, frozen=True, kw_only=True, tag="theirs"):
        implementation = "deepinfer.plan.launch.job:Rendered"  # any callable will do

    with pytest.raises(TypeError):  # it was called, with a job
        render(plan_of("hardware=cpu"), Theirs(env={}, master_port=1), NoCluster())


def test_a_dollar_is_expanded_and_nothing_else(launch_of: Launch) -> None:
    _, rendered = launch_of("launcher=local", "launcher.python=$HOME/my `env`/python")
    assert '"$HOME/my \\`env\\`/python" -m deepinfer rank' in rendered.files["run.sh"]
    _, rendered = launch_of("launcher=torchrun", "launcher.python=/opt/my env/python")
    assert "exec '/opt/my env/python' -m torch.distributed.run" in rendered.files["all-0/node-0.sh"]
