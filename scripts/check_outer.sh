#!/usr/bin/env bash
# What outer steps (dist.outer) do to the loss: trains a config with ranks that stand for nodes, plain and with each
# variant, and prints the validation loss of the EMA at the end, beside that of the plain run of the same seed.
#   scripts/check_outer.sh DATA OUT [VARIANT...]
#       scripts/check_outer.sh data/cifar10 runs/outer '{every: 10, lr: 0.7, momentum: 0.5}' '{every: 10} optimizer.lr=1e-3'
# A VARIANT is a value of dist.outer, then --set pairs of its own.
#   SEEDS="0 1 2" STEPS=2000 RANKS=4 CONFIG=configs/cifar10.yaml IMAGES=2000 BIN=build/release/bin
#   SETS="model.depth=4 ..."               for all runs
#   LIMIT=1.02                             ends with 1 if the mean ratio of the last variant is above it
# Runs of OUT that have ended are not made again, so that the same command goes on, also with more seeds or variants;
# those of other settings are refused.
# Ranks have one thread each. Losses do not depend on the load of the machine; `CPU s` is that of the steps of all ranks.
set -euo pipefail
export LC_ALL=C  # numbers with a point
[[ $# -ge 2 ]] || { sed -n '2,/^set/p' "$0" | grep '^#' >&2; exit 2; }
data=$(realpath -- "$1") out=$(realpath -m -- "$2")
shift 2
cd "$(dirname "$0")/.."
[[ $(id -u) -eq 0 ]] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
PATH=/usr/bin:$PATH
bin=${BIN:-build/release/bin} ranks=${RANKS:-4} steps=${STEPS:-2000}
mkdir -p "$out"

last() { tail -n 1 "$1/metrics.jsonl" | sed -nE "s/.*\"$2\":([0-9.e+-]+).*/\1/p"; }
# train FOLDER SEED [SETTING...]
train() {
  local folder=$1 sets=("data.path=$data" "train.steps=$steps" "train.seed=$2" "eval.every_steps=$steps"
                        "eval.num_images=${IMAGES:-2000}" sample.every_steps=0 eval.fid_every_steps=0 parallel.threads=1
                        "checkpoint.every_steps=$steps" checkpoint.every_minutes=0 log.every_steps=100)
  [[ -z ${SETS:-} ]] || sets+=($SETS)
  sets+=("${@:3}")
  local settings="$ranks ranks, ${CONFIG:-configs/cifar10.yaml}: ${sets[*]}"
  if [[ -f $folder/metrics.jsonl && -n $(last "$folder" val_mse) ]]; then
    [[ $(cat "$folder.settings" 2>/dev/null) == "$settings" ]] && return
    echo "check_outer: $folder is of other settings: $(cat "$folder.settings" 2>/dev/null); choose another OUT" >&2
    exit 2
  fi
  rm -rf "${folder:?}"
  echo "$settings" >"$folder.settings"
  mpirun --oversubscribe --bind-to none -np "$ranks" "$bin/ditrain" --config "${CONFIG:-configs/cifar10.yaml}" \
    --out "$folder" "${sets[@]/#/--set=}" >"$folder.text" 2>&1 || { cat "$folder.text" >&2; exit 1; }
}
cpu_s() { sed -nE 's/.*"cpu_seconds":([0-9.e+-]+).*/\1/p' "$1/metrics.jsonl" | awk '{ s += $1 } END { print s }'; }

printf '%-6s %-60s %10s %8s %8s\n' seed dist.outer val_mse ratio 'CPU s'
for seed in ${SEEDS:-0 1 2}; do
  plain=$out/plain_$seed
  train "$plain" "$seed"
  of_plain=$(last "$plain" val_mse)
  printf '%-6s %-60s %10.6f %8s %8.0f\n' "$seed" off "$of_plain" 1 "$(cpu_s "$plain")"
  for variant in "$@"; do
    folder=$out/$(tr -cs 'a-z0-9._\n-' _ <<<"$variant")$seed
    read -ra more <<<"${variant#*\}}"
    train "$folder" "$seed" "dist.outer=${variant%%\}*}}" \
      "dist.simulate_link={gbit_s: 1000, latency_us: 1, hosts: $ranks}" "${more[@]}"
    mse=$(last "$folder" val_mse)
    ratio=$(awk -v a="$mse" -v b="$of_plain" 'BEGIN { printf "%.4f", a / b }')
    printf '%-6s %-60s %10.6f %8s %8.0f\n' "$seed" "$variant" "$mse" "$ratio" "$(cpu_s "$folder")"
    printf '%s\t%s\n' "$ratio" "$variant" >>"$out/ratios.$$"
  done
done
[[ -f $out/ratios.$$ ]] || exit 0
trap 'rm -f "$out/ratios.$$"' EXIT
awk -F'\t' -v limit="${LIMIT:-}" '{ if (!($2 in n)) order[++m] = $2; n[$2]++; sum[$2] += $1; last = $2 }
  END { for (i = 1; i <= m; ++i) printf "mean of %d seed(s): %.4f  %s\n", n[order[i]], sum[order[i]] / n[order[i]], order[i]
        exit limit != "" && sum[last] / n[last] > limit }' "$out/ratios.$$"
