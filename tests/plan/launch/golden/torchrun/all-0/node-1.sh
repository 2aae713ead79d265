#!/usr/bin/env bash
# Node 1 of 2.
# all-0: 16 ranks; plan <rank digest>; written by `deepinfer launch`, see README.md
set -euo pipefail
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=45
export NCCL_DEBUG=WARN
export OMP_NUM_THREADS=8
folder="$(cd "$(dirname "$0")/.." && pwd)"
master_addr="${MASTER_ADDR:?set it to the address of the machine that runs all-0/node-0.sh}"
! command -v getent >/dev/null || getent ahosts "$master_addr" >/dev/null || {
  echo "deepinfer: the address of node 0, $master_addr, means nothing on this machine: no such name is known here" >&2
  exit 7
}
echo "deepinfer: node 1 of 2 of all-0 meets the others at $master_addr:29500"'; torchrun waits 10 minutes for them' >&2
exec python -m torch.distributed.run \
  --nnodes=2 \
  --node-rank=1 \
  --nproc-per-node=8 \
  "--master-addr=$master_addr" \
  --master-port=29500 \
  --max-restarts=0 \
  -m deepinfer rank \
  "plan=$folder/plan.json" role=all replica=0
