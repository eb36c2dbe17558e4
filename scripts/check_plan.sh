#!/usr/bin/env bash
# Holds `ditrain plan` against real runs on this machine, for 12 combinations of ranks, clusters, micro-batch, recompute
# and shards: seconds per step, and memory of all ranks. Then it says where the planner's best lies beside the best that
# was measured.
#   scripts/check_plan.sh                  about ten minutes on two cores, which nothing else should use
#   LIMIT_TIME=0.1 LIMIT_MEMORY=0.05 LIMIT_BEST=0.05    ends with 1 if a row is off by more, or the best is slower by more
#   SETS="model.name=DiT-S/2" BATCH=16 STEPS=9 BIN=build/release/bin TURNS=1
#   ROWS="RANKS CLUSTERS MICRO_BATCH RECOMPUTE SHARDS, ..."
# `wall`: the median step without the first three; `CPU`: CPU seconds of all ranks by the cores, which other programs
# change less, and which has no waiting in it; errors of time are of `wall`, or with TIME=cpu of `CPU`. Memory is
# proportional set size (what ranks share counts once) beyond that of a run with a tiny model, against the plan without
# its item `program`.
set -euo pipefail
export LC_ALL=C  # numbers with a point
cd "$(dirname "$0")/.."
[[ $(id -u) -eq 0 ]] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
PATH=/usr/bin:$PATH
bin=${BIN:-build/release/bin} batch=${BATCH:-16} steps=${STEPS:-9} cores=$(lscpu -p=CORE | grep -v '^#' | sort -u | wc -l)
[[ $(nproc) -ge $cores ]] || cores=$(nproc)
program_mib=160  # kProgramBytes of plan/memory_plan.hpp
rows=${ROWS:-1 1 16 none false, 1 1 16 selective false, 1 1 16 block false, 1 1 4 selective false, 1 2 16 none false,
  1 2 16 selective false, 1 2 4 block false, 2 1 8 none false, 2 1 8 selective false, 2 1 8 block false,
  2 1 2 selective false, 2 1 8 selective true}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tiny=(model.name=custom model.hidden_size=32 model.depth=2 model.num_heads=2 model.patch_size=2)
read -ra sets <<<"${SETS:-model.name=DiT-S/2}"
common=(model.in_channels=3 model.num_classes=8 "train.global_batch=$batch" "train.steps=$steps" checkpoint.async=false
        checkpoint.every_steps=0 checkpoint.every_minutes=0)
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }; }
echo "train: {seed: 0}" >"$work/config.yaml"

# Proportional set size of the processes whose arguments have this word, in MiB.
pss_mib() {
  local pid
  for pid in $(pgrep -x ditrain); do
    grep -qzxF -- "$1" "/proc/$pid/cmdline" 2>/dev/null && cat "/proc/$pid/smaps_rollup" 2>/dev/null || true
  done | awk '/^Pss:/ { sum += $2 } END { print sum / 1024 }'
}
# train FOLDER RANKS SETTING...: writes FOLDER/mib, the most memory of its first three steps.
train() {
  local folder=$1 ranks=$2 most=0 now pid launch=()
  [[ $ranks -eq 1 ]] || launch=(mpirun --oversubscribe --bind-to none -np "$ranks")
  "${launch[@]}" "$bin/ditrain" --config "$work/config.yaml" --out "$folder" "${@:3}" </dev/null >"$folder.text" 2>&1 &
  pid=$!
  while kill -0 "$pid" 2>/dev/null && [[ $(cat "$folder/metrics.jsonl" 2>/dev/null | wc -l) -lt 3 ]]; do
    now=$(pss_mib "$folder")
    most=$(awk -v a="$most" -v b="$now" 'BEGIN { print (b > a ? b : a) }')
    sleep 0.1
  done
  wait "$pid" || { cat "$folder.text" >&2; exit 1; }
  echo "$most" >"$folder/mib"
}
# settings RANKS CLUSTERS MICRO RECOMPUTE SHARDS MODEL...
settings() {
  local all=("${common[@]}" "parallel.threads=$((cores / $1))" "parallel.clusters=$2" "train.micro_batch=$3"
             "train.recompute=$4" "dist.shard_optimizer=$5" "${@:6}")
  printf -- '--set=%s\n' "${all[@]}"
}
# column FOLDER KEY: of the steps behind the third.
column() { sed -nE "s/^\{\"step\":([0-9]+),.*\"$2\":([0-9.e+-]+).*/\1 \2/p" "$1/metrics.jsonl" | awk '$1 > 3 { print $2 }'; }
median() { sort -g | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }

for ranks in 1 2; do
  mapfile -t flags < <(settings $ranks 1 1 selective false "${tiny[@]}")
  train "$work/tiny$ranks" $ranks "${flags[@]}"
done
for clusters in 1 2; do
  mapfile -t flags < <(printf -- '--set=%s\n' "${common[@]}" "${sets[@]}" "parallel.clusters=$clusters")
  quietly "$bin/ditrain" plan --all --config "$work/config.yaml" "${flags[@]}"
  cp "$work/log" "$work/plan$clusters"
done
for turn in $(seq "${TURNS:-1}"); do
  number=0
  while read -r ranks clusters micro recompute shards; do
    mapfile -t flags < <(settings "$ranks" "$clusters" "$micro" "$recompute" "$shards" "${sets[@]}")
    train "$work/run$((++number))_$turn" "$ranks" "${flags[@]}"
  done < <(tr ',' '\n' <<<"$rows" | awk 'NF')
done

number=0
while read -r ranks clusters micro recompute shards; do
  name="$ranks rank(s) per node, micro-batch $micro, recompute $recompute"
  [[ $shards == true ]] && name+=", shards"
  plan=$(grep -F "$name, buckets of 25 MiB" "$work/plan$clusters" | grep 'MiB$' | head -n 1)  # of the list of --all
  [[ -n $plan ]] || { echo "check_plan: the planner has no row '$name'" >&2; exit 1; }
  read -r predicted_s _ size unit _ <<<"$plan"
  ((++number))
  wall=$(for turn in $(seq "${TURNS:-1}"); do column "$work/run${number}_$turn" images_per_second; done | awk -v b="$batch" '{ print b / $1 }' | median)
  cpu=$(for turn in $(seq "${TURNS:-1}"); do column "$work/run${number}_$turn" cpu_seconds; done | awk -v c="$cores" '{ print $1 / c }' | median)
  mib=$(cat "$work/run${number}_"*/mib | sort -g | tail -n 1)
  echo "$ranks $clusters $micro $recompute $shards $predicted_s $wall $cpu $size $unit $mib $(cat "$work/tiny$ranks/mib")"
done < <(tr ',' '\n' <<<"$rows" | awk 'NF') |
  awk -v program=$program_mib -v time="${TIME:-wall}" -v limit_time="${LIMIT_TIME:-}" -v limit_memory="${LIMIT_MEMORY:-}" \
      -v limit_best="${LIMIT_BEST:-}" '
    function off(x, limit) { return limit != "" && (x > limit || x < -limit) }
    BEGIN { printf "%-5s %-8s %-11s %-9s %-6s %11s %9s %9s %7s %12s %12s %7s\n", "ranks", "clusters", "micro-batch", "recompute",
            "shards", "predicted s", "wall s", "CPU s", "error", "planned MiB", "measured MiB", "error" }
    { mib = $9 * ($10 == "GiB" ? 1024 : $10 == "KiB" ? 1 / 1024 : 1)
      planned = $1 * (mib - program); measured = $11 - $12
      real = time == "cpu" ? $8 : $7; error = $6 / real - 1; memory = planned / measured - 1
      printf "%-5s %-8s %-11s %-9s %-6s %11.4g %9.4g %9.4g %6.1f%% %12.0f %12.0f %6.1f%%\n", $1, $2, $3, $4, $5, $6, $7, $8, 100 * error,
             planned, measured, 100 * memory
      bad += off(error, limit_time) + off(memory, limit_memory)
      if (NR == 1 || $6 < best_predicted) { best_predicted = $6; of_best = real }
      if (NR == 1 || real < best) best = real }
    END { slower = of_best / best - 1
          printf "the best by prediction takes %.4g s per step, the best measured %.4g s: %.1f %% more\n", of_best, best, 100 * slower
          bad += off(slower, limit_best)
          if (bad) print "check_plan: " bad " number(s) are off by more than the limits" > "/dev/stderr"
          exit bad > 0 }'
