#!/usr/bin/env bash
# First result: builds all programs and trains a small Diffusion Transformer on drawn shapes with two MPI ranks.
#   ./scripts/quickstart.sh [run folder]        nine to ten minutes on two cores; a second call goes on with the run
set -euo pipefail
out=''
[[ $# -eq 0 ]] || out=$(realpath -m -- "$1")  # before cd: relative to where the caller is
cd "$(dirname "$0")/.."
out=${out:-runs/quickstart}

./scripts/build.sh release programs

# mpirun refuses to run as root unless told twice. On Debian the system's mpirun is the one that ditrain was built with.
[[ $(id -u) -eq 0 ]] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
! command -v apt-get >/dev/null || PATH=/usr/bin:$PATH
resume=()
[[ -e $out ]] && resume=(--resume auto)
status=0
mpirun -np 2 --oversubscribe --bind-to none build/release/bin/ditrain --config configs/quickstart.yaml --out "$out" "${resume[@]}" ||
  status=$?
if [[ $status -eq 2 && ${#resume[@]} -gt 0 ]]; then
  echo "if the settings changed since that run began: delete $out, or name another folder: $0 FOLDER" >&2
fi
[[ $status -eq 0 ]] || exit "$status"

echo
# The part of the log that this call wrote says so if no step was left.
if awk '/: (new run|resuming) /{left=1} /nothing to do/{left=0} END{exit left}' "$out/log.txt"; then
  echo "the run in $out was finished already; its last results:"
  for result in "validation: " "own class as nearest neighbour"; do
    grep -F "$result" "$out/log.txt" | tail -n 1 || true
  done
fi
picture=$(find "$out/samples" -name 'step_*.png' | sort | tail -n 1)
echo "64 samples, each of the 8 columns one class:  $picture"
echo "loss of every step:                          $out/metrics.jsonl"
echo "the run in pictures, for a browser:          $out/report.html"
