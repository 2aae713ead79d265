#!/usr/bin/env bash
# An environment with the peers of the kernel benchmarks, for a machine with an H100 or H200: kernels are then timed beside them by
#
#     bash benchmarks/peer_environment.sh [FOLDER]
#     .venv-peers/bin/python benchmarks/kernels.py
#
# Torch, Triton and this project are those of .venv, or of the environment of $PYTHON. Peers come without the packages that only
# their other parts need; a peer that cannot be installed is said and left out. DeepGEMM, FlashInfer and SGLang compile kernels
# when they are first called: that needs nvcc (CUDA 12.9 or newer; $CUDA_HOME), and DeepGEMM's own build g++ 13 and the headers
# of elfutils (libdw-dev). Its source package is named deepinfer-gemm but calls itself deepgemm unless DG_PACKAGE_NAME says
# otherwise, and pip refuses the mismatch; built in place it lacks the headers that its first FP8 product compiles.
set -euo pipefail
case ${1:-} in -*)
  sed -n '2,/^set /s/^# \{0,1\}//p' "$0"
  [[ $1 == -h || $1 == --help ]] && exit 0
  echo "no option $1; the one argument is a folder" >&2 && exit 2
  ;;
esac
cd "$(dirname "$0")/.."
folder=${1:-.venv-peers}
python=${PYTHON:-.venv/bin/python}
stop() { echo "$1" >&2 && exit 1; }

command -v "$python" >/dev/null || stop "no $python here; type: make setup, or set PYTHON to a Python with torch and triton"
"$python" -c "import torch, triton" || stop "$python lacks torch or triton; type: pip install -e '.[sm90]'"
"$python" -c "import sys, torch; sys.exit(not torch.version.cuda)" ||
  stop "the torch of $python is built without CUDA; reinstall torch from PyPI, whose wheels for Linux are CUDA builds"
"$python" -m venv "$folder"
inside=$("$folder/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
"$python" -c "import sysconfig; print(sysconfig.get_path('purelib'))" >"$inside/torch_of_the_project.pth"
pip() { "$folder/bin/python" -m pip --quiet "$@"; }
left_out() { echo "left out: $1" >&2; }

pip install setuptools wheel pybind11 ninja requests tabulate tqdm einops nvidia-ml-py "apache-tvm-ffi==0.1.11"
pip install --no-deps "sgl-flash-mla==1.0.0" || left_out "FlashMLA"
pip install --no-deps "flashinfer-python==0.6.6" || left_out "FlashInfer"
pip install --no-deps "lmdeploy==0.18.0" || left_out "lmdeploy"
pip install --no-deps "sglang==0.5.23" || left_out "SGLang"
DG_PACKAGE_NAME=deepinfer-gemm DG_FORCE_BUILD=1 pip install --no-deps --no-build-isolation "deepinfer-gemm==2.8.2" ||
  pip install --no-deps "sgl-deep-gemm==0.1.5" || # a wheel for torch 2.11; from 0.1.7 on they are for newer ones
  left_out "DeepGEMM"

# OpenAI's triton_kernels, of which only vLLM's wheel (340 MB) is on the index
downloads=$(mktemp -d)
trap 'rm -rf "$downloads"' EXIT
if pip download --no-deps --dest "$downloads" "vllm==0.33.0"; then
  "$folder/bin/python" - "$downloads" "$inside" <<'PYTHON'
import sys, zipfile
from pathlib import Path

(wheel,) = Path(sys.argv[1]).glob("*.whl")
prefix = "vllm/third_party/"
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if name.startswith(f"{prefix}triton_kernels/") and not name.endswith("/"):
            file = Path(sys.argv[2], name.removeprefix(prefix))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(archive.read(name))
PYTHON
else
  left_out "triton_kernels"
fi
for module in deep_gemm flash_mla flashinfer triton_kernels.matmul_ogs; do
  "$folder/bin/python" -c "import $module" 2>/dev/null && echo "$module loads" || left_out "$module does not load here"
done
