#!/usr/bin/env bash
# Whether a change costs time: whole training steps with two builds in turns, on the same cores.
#   scripts/compare_speed.sh OLD_BIN NEW_BIN [ROUNDS]     (folders with ditbench; default 5 rounds)
#   ROWS="S,16,f32 B,8,bf16"      chooses model, batch and type (default: S and B, f32 and bf16)
# Prints the median seconds of a step with each build, and the median over the rounds of new / old images per second.
set -euo pipefail
export LC_ALL=C  # numbers with a point
[[ $# -eq 2 || $# -eq 3 ]] || { sed -n '2,5p' "$0"; exit 2; }
old=$(realpath "$1")/ditbench new=$(realpath "$2")/ditbench rounds=${3:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

median() { sort -g | awk '{ a[NR] = $1 } END { print (NR % 2) ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2 }'; }
# seconds PROGRAM MODEL BATCH TYPE: of a step, the median of three.
seconds() {
  "$1" step --model "$2" --batch "$3" --precision "$4" --repeats 3 --json "$work/row.json" >"$work/text" 2>&1 ||
    { cat "$work/text" >&2; exit 1; }
  grep -o '"median_s": *[0-9.e+-]*' "$work/row.json" | head -1 | sed 's/.*: *//'
}

printf '%-6s %5s %5s %9s %9s %9s\n' model batch type 'old [s]' 'new [s]' 'new/old'
for row in ${ROWS:-S,16,f32 S,16,bf16 B,8,f32 B,8,bf16}; do
  IFS=, read -r model batch type <<<"$row"
  : >"$work/old" >"$work/new" >"$work/ratio"
  for ((round = 0; round < rounds; ++round)); do
    # Who goes first changes: clocks and other programs drift.
    if ((round % 2)); then b=$(seconds "$new" "$model" "$batch" "$type"); a=$(seconds "$old" "$model" "$batch" "$type")
    else a=$(seconds "$old" "$model" "$batch" "$type"); b=$(seconds "$new" "$model" "$batch" "$type"); fi
    echo "$a" >>"$work/old"; echo "$b" >>"$work/new"
    awk -v a="$a" -v b="$b" 'BEGIN { print a / b }' >>"$work/ratio"
  done
  printf '%-6s %5s %5s %9.3f %9.3f %9.3f\n' "$model" "$batch" "$type" "$(median <"$work/old")" "$(median <"$work/new")" \
    "$(median <"$work/ratio")"
done
