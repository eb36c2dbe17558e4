#!/usr/bin/env bash
# What a checkpoint costs: the time that training waits for it, the steps beside it, and the rates of writing and of
# checking beside those of the disk and of the page cache, measured in turns.
#   scripts/bench_checkpoint.sh [MODEL [BATCH [FOLDER]]]     (default DiT-B/2 8, a temporary folder; BIN=folder of the programs)
# Needs three times the size of a checkpoint (16 bytes per parameter) in FOLDER. Ten minutes for DiT-B/2 on two cores.
set -euo pipefail
export LC_ALL=C  # numbers with a point
model=${1:-DiT-B/2} batch=${2:-8}
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${BIN:-$root/build/release/bin}
work=$(mktemp -d -p "${3:-${TMPDIR:-/tmp}}")
trap 'rm -rf "$work"' EXIT

# train NAME STEPS EVERY [SETTING...]: a checkpoint after each EVERY steps.
train() {
  rm -rf "${work:?}/$1"
  local sets=("model.name=$model" "train.steps=$2" "checkpoint.every_steps=$3" checkpoint.keep_last=1
              log.every_steps=1000 sample.every_steps=0 eval.every_steps=0 "${@:4}")
  "$bin/ditrain" --config "$root/configs/bench.yaml" --out "$work/$1" "${sets[@]/#/--set=}" >"$work/$1.text" 2>&1 ||
    { cat "$work/$1.text"; exit 1; }
}
# column NAME KEY BESIDE: a number of the steps that follow a checkpoint at once (1), or of the other ones (0). The first
# three are left out: they warm up.
column() {
  sed -nE "s/^\{\"step\":([0-9]+),.*\"$2\":([0-9.e+-]+).*/\1 \2/p" "$work/$1/metrics.jsonl" |
    awk -v beside="$3" '$1 > 3 && ($1 % 3 == 1) == beside { print $2 }'
}
median() { sort -g | awk '{ a[NR] = $1 } END { print (NR % 2) ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2 }'; }

for round in 1 2 3; do
  # Steps beside the writing and steps without stand in turns in one run.
  train async 25 3 "train.global_batch=$batch"
  train blocking 13 3 train.global_batch=1 checkpoint.async=false
  # The seconds of a checkpoint stand in the line of the step after it.
  awk -v without="$(column async images_per_second 0 | median)" -v beside="$(column async images_per_second 1 | median)" \
      -v exposed="$(column async checkpoint 1 | median)" -v blocking="$(column blocking checkpoint 1 | median)" \
      -v round="$round" 'BEGIN {
    printf "round %d: waited for a checkpoint %.3f s beside, %.3f s blocking: %.1f %%; step beside / without %.3f\n",
           round, exposed, blocking, 100 * exposed / blocking, without / beside }'
done

folder=$work/blocking/checkpoints/latest
bytes=$(cat "$folder"/*.safetensors | wc -c)
rate() { awk -v b="$bytes" -v s="$1" 'BEGIN { printf "%.2f GB/s", b * 1e-9 / s }'; }
seconds() {
  local start
  start=$(date +%s.%N)
  "$@" >/dev/null 2>"$work/failure" || { cat "$work/failure" >&2; kill $$; }
  awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { print b - a }'
}
# The same bytes out of the page cache: zeros are faster on some virtual disks.
copy() {
  local file
  for file in "$folder"/*.safetensors; do
    dd if="$file" of="$work/disk_${file##*/}" bs=4M oflag=direct conv=fsync || return
  done
}
for i in 1 2 3 4 5; do  # in turns: rates of shared disks drift
  train blocking 4 1 train.global_batch=1 checkpoint.async=false
  cat "$folder"/*.safetensors >/dev/null
  column_s=$(sed -nE 's/.*"checkpoint":([0-9.e+-]+).*/\1/p' "$work/blocking/metrics.jsonl" | sed 1d | median)
  disk_s=$(for j in 1 2 3; do
    seconds copy
    rm "$work"/disk_*
  done | median)
  echo "writing a checkpoint of $((bytes >> 20)) MiB: $(rate "$column_s"); dd past the page cache, one thread: $(rate "$disk_s")"
done
for i in 1 2 3; do
  cat "$folder"/*.safetensors >/dev/null
  cached_s=$(seconds cat "$folder"/*.safetensors)
  echo "checking it from the page cache: $("$bin/ditverify" --checkpoint "$folder" | tail -1 | sed -E 's/.*, ([0-9.]+ GB\/s)\)/\1/'); cat, one thread: $(rate "$cached_s")"
done
