#!/usr/bin/env bash
# All 1 ranks of plan <rank digest> on this machine.
# Written by `deepinfer launch`, see README.md
set -euo pipefail
folder="$(cd "$(dirname "$0")" && pwd)"
exec env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 python -m deepinfer rank \
  "plan=$folder/plan.json" role=all replica=0
