#!/usr/bin/env bash
# Holds simulated steps (ditbench scale) against real ones of ranks whose link is simulated (dist.simulate_link), for
# some rates of the link, with overlap and without. Compute times are those of steps without a link, which ditbench comm
# makes in turns with the others, so that a machine that others use slows down both.
#   scripts/check_scale.sh [RANKS]         default: 2
#   LIMIT=0.1                              ends with 1 if a prediction is off by more (on a machine that others use, predictions often are)
#   GBITS="0.05 0.2 1" REPEATS=5 BATCH=1 LATENCY_US=50 BIN=build/release/bin HIDDEN=192 DEPTH=6
# A link is between ranks here, so each counts as a node of one die. Columns: seconds of a step without sums; what sums
# in memory cost without a link (as a factor, measured); predicted and real seconds with the link.
set -euo pipefail
export LC_ALL=C  # numbers with a point
[[ $(id -u) -eq 0 ]] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cd "$(dirname "$0")/.."
ranks=${1:-2} bin=${BIN:-build/release/bin} batch=${BATCH:-1}
hidden=${HIDDEN:-192}
model=(name=custom hidden_size="$hidden" depth="${DEPTH:-6}" num_heads=$((hidden / 64)) patch_size=2 in_channels=3 num_classes=8)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
shape=()
for key in "${model[@]}"; do shape+=(--set "model.$key"); done
echo "train: {seed: 0}" >"$work/config.yaml"
launch=(mpirun --oversubscribe -np "$ranks")
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }; }

# comm NAME KEY=VALUE...: NAME.txt has the median of steps without sums, then the factors of steps with them, beside
# backward and at its end.
comm() {
  local name=$1 sets=()
  shift
  for key in "$@"; do sets+=(--set "$key"); done
  quietly "${launch[@]}" "$bin/ditbench" comm --model custom --batch "$batch" --threads 1 --repeats "${REPEATS:-5}" \
    "${shape[@]}" "${sets[@]}" --json "$work/$name.json"
  awk -F'[:,]' '/"name"/ {n = $2} /"median_s"/ && n ~ / none"/ {s = $2} /"step_ratio"/ {r[n] = $2}
    END {for (n in r) if (n ~ / engine"/) e = r[n]; else if (n ~ /at the end"/) a = r[n]; print s, e, a}' \
    "$work/$name.json" >"$work/$name.txt"
}
# predict NONE_S FACTOR OVERLAP GBIT: seconds of a step, from the shares of its phases in the recording.
predict() {
  mkdir -p "$work/scaled"
  cp "$work/free/config.yaml" "$work/free/status.json" "$work/scaled/"
  tail -n +2 "$work/free/metrics.jsonl" |
    sed -E 's/.*"images_per_second":([^,]*),.*"seconds":\{[^}]*"prepare":([^,]*),"forward":([^,]*),"loss":([^,]*),"backward":([^,]*),.*"optimizer":([^,]*),.*/\1 \2 \3 \4 \5 \6/' |
    awk -v step="$1" -v factor="$2" -v images=$((ranks * batch)) '{by = step * factor / (images / $1)
      line = sprintf("{\"images_per_second\": %g, \"seconds\": {\"prepare\": %g, \"forward\": %g, \"loss\": %g, \"backward\": %g, \"optimizer\": %g}}",
        $1 / by, $2 * by, $3 * by, $4 * by, $5 * by, $6 * by)
      print line; if (NR == 1) print line}' >"$work/scaled/metrics.jsonl"
  cat >"$work/platform.yaml" <<END
name: ranks of this machine
nodes: $ranks
dies_per_node: 1
die: {cores: 1, tflop_f32_per_s: 1, share: 1, memory_gb: 8, memory_gb_per_s: 1000}
inside: {gb_per_s: 1000, latency_us: 0.01}
tree: [{down: $ranks, gbit_per_s: $4, latency_us: $(awk "BEGIN {print ${LATENCY_US:-50} / 2}")}]
END
  quietly "$bin/ditbench" scale --platform "$work/platform.yaml" --recording "$work/scaled" --nodes "$ranks" \
    --batch "$batch" --rounds 0 --threads 1 --set "dist.overlap=$3" --json "$work/scale.json"
  sed -nE 's/.*"median_s": ([0-9.e+-]+).*/\1/p' "$work/scale.json"
}

quietly "${launch[@]}" "$bin/ditrain" --config "$work/config.yaml" --out "$work/free" --set train.global_batch=$((ranks * batch)) \
  "${shape[@]}" --set train.steps=8 --set parallel.threads=1 --set checkpoint.every_steps=0 \
  --set checkpoint.every_minutes=0
comm free
read -r _ engine at_end <"$work/free.txt"
printf '%-8s %-8s %10s %8s %11s %10s %7s\n' Gbit/s overlap "no sums s" factor predicted real error
for gbit in ${GBITS:-0.05 0.2 1}; do
  comm link "dist.simulate_link={gbit_s: $gbit, latency_us: ${LATENCY_US:-50}, hosts: $ranks}"
  read -r none engine_link at_end_link <"$work/link.txt"
  for overlap in true false; do
    [[ $overlap == true ]] && factor=$engine real=$engine_link || { factor=$at_end real=$at_end_link; }
    predicted=$(predict "$none" "$factor" $overlap "$gbit")
    awk -v g="$gbit" -v o=$overlap -v n="$none" -v f="$factor" -v p="$predicted" -v r="$real" \
      'BEGIN {printf "%-8s %-8s %10.3f %8.3f %11.3f %10.3f %6.1f %%\n", g, o, n, f, p, n * r, 100 * (p / (n * r) - 1)}' | tee -a "$work/rows"
  done
done
[[ -z ${LIMIT:-} ]] || awk -v limit="$LIMIT" '{e = $(NF - 1) / 100; bad += e > limit || e < -limit} END {
  if (bad) print "check_scale: " bad " of " NR " rows are off by more than " limit > "/dev/stderr"; exit bad > 0}' "$work/rows"
