#!/usr/bin/env bash
# An environment in which vLLM's scheduler runs without a device, for benchmarks/scheduler_speed.py.
#
#     bash benchmarks/vllm_environment.sh [FOLDER]
#
# Torch and NumPy are those of .venv, or of the environment of $PYTHON; vLLM itself comes without its other 80 dependencies
# (CUDA and kernels: several GB), with only those that its scheduler and a model's configuration import.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.venv-vllm}
python=${PYTHON:-.venv/bin/python}

"$python" -c "import torch, numpy"
"$python" -m venv "$folder"
inside=$("$folder/bin/python" -c "import sysconfig; print(sysconfig.get_path('purelib'))")
"$python" -c "import sysconfig; print(sysconfig.get_path('purelib'))" >"$inside/torch_of_the_project.pth"
"$folder/bin/python" -m pip install --quiet --no-warn-conflicts \
  "transformers>=5.16.1,<5.21" "xgrammar==0.2.8" "fastapi>=0.133,<0.137" pydantic \
  aiohttp blake3 cachetools cbor2 cloudpickle einops openai openai-harmony partial-json-parser prometheus-client psutil \
  py-cpuinfo pybase64 pyzmq regex requests uvloop
"$folder/bin/python" -m pip install --quiet --no-deps "vllm==0.33.0"
"$folder/bin/python" -c "from vllm.v1.core.sched.scheduler import Scheduler; import vllm; print('vLLM', vllm.__version__)"
