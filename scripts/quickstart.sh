#!/usr/bin/env bash
# First result: builds ditrain and trains a small Diffusion Transformer on drawn shapes with two MPI ranks.
#   ./scripts/quickstart.sh [run folder]        about five minutes on two cores
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/quickstart}

./scripts/build.sh release ditrain ditsample

# mpirun refuses to run as root unless told twice.
[[ $(id -u) -eq 0 ]] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
resume=()
[[ -e $out ]] && resume=(--resume auto)  # a second run goes on, or finds that nothing is left to do
mpirun -np 2 --oversubscribe build/release/bin/ditrain --config configs/quickstart.yaml --out "$out" "${resume[@]}"

picture=$(ls "$out"/samples/step_*.png | tail -n 1)
echo
echo "64 samples, one class a column of the eight:  $picture"
echo "loss of every step:                           $out/metrics.jsonl"
