#!/usr/bin/env bash
# Holds simulated steps (ditbench scale) against real ones of ranks whose link is simulated (dist.simulate_link). For
# each rate of the link and with overlap and without, in turns: a run without a link, the prediction from its compute
# times, then the run with the link. Prints a line each; the machine should be quiet, with a core per rank.
#   scripts/check_scale.sh [RANKS]         default: 2
#   GBITS="1 2 10" REPEATS=2 STEPS=8 BATCH=1 MODEL=DiT-S/2 LATENCY_US=50 BIN=build/release/bin
# A link is between ranks here, so each counts as a node of one die.
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${1:-2} bin=${BIN:-build/release/bin} model=${MODEL:-DiT-S/2} batch=${BATCH:-1} steps=${STEPS:-8}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

echo "model: {name: $model, in_channels: 3, num_classes: 8}" >"$work/config.yaml"

# train OUT KEY=VALUE...: a run of `ranks` processes.
train() {
  local out=$1 sets=()
  shift
  for key in "$@"; do sets+=(--set "$key"); done
  mpirun --oversubscribe -np "$ranks" "$bin/ditrain" --config "$work/config.yaml" --out "$work/$out" \
    --set train.global_batch=$((ranks * batch)) --set train.steps="$steps" --set parallel.threads=1 --set checkpoint.every_steps=0 \
    --set checkpoint.every_minutes=0 --set sample.every_steps=0 --set eval.every_steps=0 --set log.every_steps=1 \
    "${sets[@]}" >"$work/$out.log" 2>&1 || { cat "$work/$out.log" >&2; exit 1; }
}
# The median step of a run in seconds, without the first one.
median() {
  sed -E 's/.*"images_per_second":([0-9.e+-]+).*/\1/' "$work/$1/metrics.jsonl" | tail -n +2 | sort -g |
    awk -v images=$((ranks * batch)) '{x[NR] = $1} END {printf "%.4f", images / x[int((NR + 1) / 2)]}'
}

printf '%-8s %-8s %-7s %10s %11s %10s %7s\n' Gbit/s overlap repeat "no link s" predicted real error
for ((repeat = 1; repeat <= ${REPEATS:-2}; ++repeat)); do
  for gbit in ${GBITS:-1 2 10}; do
    for overlap in true false; do
      train free dist.overlap=$overlap
      cat >"$work/platform.yaml" <<END
name: ranks of this machine
nodes: $ranks
dies_per_node: 1
die: {cores: 1, tflop_f32_per_s: 1, share: 1, memory_gb: 8, memory_gb_per_s: 1000}
inside: {gb_per_s: 1000, latency_us: 0.01}
tree: [{down: $ranks, gbit_per_s: $gbit, latency_us: $(awk "BEGIN {print ${LATENCY_US:-50} / 2}")}]
END
      predicted=$("$bin/ditbench" scale --platform "$work/platform.yaml" --recording "$work/free" --nodes "$ranks" \
        --batch "$batch" --rounds 0 --threads 1 --repeats 1 --json "$work/scale.json" >/dev/null 2>&1
        sed -nE 's/.*"median_s": ([0-9.e+-]+).*/\1/p' "$work/scale.json")
      train link dist.overlap=$overlap dist.simulate_link="{gbit_s: $gbit, latency_us: ${LATENCY_US:-50}, hosts: $ranks}"
      awk -v g="$gbit" -v o=$overlap -v r=$repeat -v f="$(median free)" -v p="$predicted" -v m="$(median link)" \
        'BEGIN {printf "%-8s %-8s %-7s %10.3f %11.3f %10.3f %6.1f %%\n", g, o, r, f, p, m, 100 * (p / m - 1)}'
      rm -rf "$work/free" "$work/link"
    done
  done
done
