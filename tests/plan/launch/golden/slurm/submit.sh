#!/usr/bin/env bash
# Submits one job for each replica.
set -euo pipefail
cd "$(dirname "$0")"
sbatch prefill-0.sbatch
sbatch prefill-1.sbatch
sbatch decode-0.sbatch
