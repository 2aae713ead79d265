"""Words about containers that srun and pyxis would take for something else: https://github.com/NVIDIA/pyxis."""

import re
from collections.abc import Iterator

from deepinfer.config.errors import Problem
from deepinfer.config.launchers import SlurmLauncher
from deepinfer.plan.launch.texts import is_line, shown
from deepinfer.plan.types import Plan

_IMAGE = re.compile(r"[A-Za-z0-9._/][A-Za-z0-9._:/@#+-]*")
_FOLDER = (
    r"/[^$,:`\"\\]*"  # pyxis splits at , and : and the shell, which reads $SLURM_SUBMIT_DIR beside it, at the others
)
_MOUNT = re.compile(rf"{_FOLDER}:{_FOLDER}(:[a-z+-]+)?")


def container_problems(plan: Plan, launcher: SlurmLauncher) -> Iterator[Problem]:
    """Images and mounts that are none, and a model that could not be mounted."""
    images = {"image": launcher.image} | {f"role_images.{role}": name for role, name in launcher.role_images.items()}
    for key, image in images.items():
        if image is not None and is_line(image) and not _IMAGE.fullmatch(image):
            why = "pyxis takes [USER@][REGISTRY#]NAME[:TAG], or the path of a .sqsh file"
            yield Problem(asked=f"launcher.{key}={shown(image)}", found="no name of an image", why=why)
    for mount in filter(is_line, launcher.container_mounts):
        if not _MOUNT.fullmatch(mount):
            asked, why = f"launcher.container_mounts=[{shown(mount)}]", "an item is /ON_THE_NODE:/INSIDE[:FLAGS]"
            yield Problem(asked=asked, found="no mount of a container", why=why)
    folder = plan.model.location
    if any(images.values()) and plan.model.source == "folder" and not re.fullmatch(_FOLDER, folder):
        why, fix = "pyxis could not mount it into the container", "model.path=/A/PLAIN/PATH"
        yield Problem(asked=f"model.path={shown(folder)}", found='it has one of $ , : ` " \\', why=why, fix=fix)
