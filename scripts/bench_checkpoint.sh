#!/usr/bin/env bash
# What a checkpoint costs: the time that training waits for it, the steps beside it, and the rates of writing and of
# checking beside those of the disk and of the page cache, measured in turns.
#   scripts/bench_checkpoint.sh [MODEL [BATCH [FOLDER]]]     (default DiT-B/2 8, a temporary folder; BIN=folder of the programs)
# Needs three times the size of a checkpoint (16 bytes per parameter) in FOLDER. Ten minutes for DiT-B/2 on two cores.
set -euo pipefail
model=${1:-DiT-B/2} batch=${2:-8}
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${BIN:-$root/build/release/bin}
work=$(mktemp -d -p "${3:-${TMPDIR:-/tmp}}")
trap 'rm -rf "$work"' EXIT

# 14 steps, a checkpoint after every third one; or none, or one that training waits for.
train() {
  "$bin/ditrain" --config "$root/configs/bench.yaml" --out "$work/$1" --set "model.name=$model" \
    --set "train.global_batch=$batch" --set train.steps=14 --set log.every_steps=1000 --set sample.every_steps=0 \
    --set eval.every_steps=0 --set checkpoint.keep_last=1 "${@:2}" >"$work/$1.text" 2>&1 || { cat "$work/$1.text"; exit 1; }
}
# A number of the steps after a checkpoint.
column() {
  sed -E "s/.*\"$2\":([0-9.e+-]+).*/\1/" "$work/$1/metrics.jsonl" | sed -n '4p;7p;10p;13p'
}
median() { sort -g | awk '{ a[NR] = $1 } END { print (NR % 2) ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2 }'; }
sum() { awk '{ s += $1 } END { print s }'; }

for round in 1 2 3; do
  rm -rf "$work"/{none,async,blocking}
  train none --set checkpoint.every_steps=0 --set checkpoint.async=false
  train async --set checkpoint.every_steps=3
  train blocking --set checkpoint.every_steps=3 --set checkpoint.async=false
  rate_none=$(column none images_per_second | median)
  rate_beside=$(column async images_per_second | median)
  # The seconds of a checkpoint stand in the line of the step after it.
  exposed=$(column async checkpoint | sum) blocking=$(column blocking checkpoint | sum)
  awk -v n="$rate_none" -v b="$rate_beside" -v e="$exposed" -v w="$blocking" -v r="$round" 'BEGIN {
    printf "round %d: waited for a checkpoint %.3f s beside, %.3f s blocking: %.1f %%; step beside / without %.3f\n",
           r, e / 4, w / 4, 100 * e / w, n / b }'
done

folder=$work/blocking/checkpoints/latest
bytes=$(cat "$folder"/*.safetensors | wc -c)
blocking_s=$(awk -v w="$blocking" 'BEGIN { print w / 4 }')
rate() { awk -v b="$bytes" -v s="$1" 'BEGIN { printf "%.2f GB/s", b * 1e-9 / s }'; }
seconds() {
  local start
  start=$(date +%s.%N)
  "$@" >/dev/null 2>&1
  awk -v a="$start" -v b="$(date +%s.%N)" 'BEGIN { print b - a }'
}
disk_s=$(for i in 1 2 3; do
  seconds dd if=/dev/zero of="$work/disk" bs=4M count=$((bytes >> 22)) oflag=direct conv=fsync
  rm "$work/disk"
done | median)
echo "writing a checkpoint of $((bytes >> 20)) MiB: $(rate "$blocking_s"); dd past the page cache, one thread: $(rate "$disk_s")"
for i in 1 2 3; do
  cat "$folder"/*.safetensors >/dev/null
  cached_s=$(seconds sh -c "cat $folder/*.safetensors >/dev/null")
  echo "checking it from the page cache: $("$bin/ditverify" --checkpoint "$folder" | tail -1 | sed -E 's/.*, ([0-9.]+ GB\/s)\)/\1/'); cat, one thread: $(rate "$cached_s")"
done
