#!/usr/bin/env bash
# Holds the seconds per step that `ditrain --dry-run` predicts against steps of this machine: S/2, B/2 and XL/2 of the
# paper, and cifar10.yaml, whose small model spends more of its time outside GEMMs.
#   scripts/check_dry_run.sh                  some minutes on two cores, which nothing else should use
#   LIMIT=0.15                                ends with 1 if a row is off by more
#   ROWS="NAME PRECISION BATCH STEPS, ..."    NAME: S, B, L, XL, or a config of pixels (cifar10, with DATA=DIR)
#   BIN=build/release/bin DATA=DIR            DATA: a folder of images for cifar10; without it the row is left out
# The dry run is made before and after the steps: `predicted` is the mean. `measured` is the median step without the
# first three, `fastest` the shortest; `spread` is how far the two predictions are apart.
set -euo pipefail
export LC_ALL=C  # numbers with a point
cd "$(dirname "$0")/.."
bin=${BIN:-build/release/bin} data=${DATA:-}
rows=${ROWS:-S f32 16 9, S bf16 16 9, B f32 8 9, B bf16 8 9, XL f32 4 6, XL bf16 4 6${data:+, cifar10 f32 32 150, cifar10 bf16 32 150}}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
off=(sample.every_steps=0 eval.every_steps=0 checkpoint.every_steps=0 checkpoint.every_minutes=0 checkpoint.async=false)

# settings NAME PRECISION BATCH STEPS
settings() {
  local all=("train.precision=$2" "train.global_batch=$3" "train.steps=$4" "${off[@]}")
  case $1 in
    S|B|L|XL) all+=("model.name=DiT-$1/2" model.num_classes=8 data.kind=shapes model.in_channels=4) ;;
    *) all+=("data.path=$data") ;;
  esac
  printf -- '--set=%s\n' "${all[@]}"
}
predict() {
  "$bin/ditrain" "$@" --dry-run </dev/null >"$work/dry" 2>&1 || { cat "$work/dry" >&2; exit 1; }
  sed -nE 's/^  step +([0-9.e+-]+) s, .*/\1/p' "$work/dry"
}

printf '%-8s %-5s %5s %11s %10s %9s %7s %7s\n' config type batch 'predicted s' 'measured s' 'fastest s' error spread
number=0 bad=0
while read -r name precision batch steps; do
  [[ $steps -gt 3 ]] || { echo "check_dry_run: a row needs more than 3 steps; got $steps" >&2; exit 2; }
  mapfile -t flags < <(settings "$name" "$precision" "$batch" "$steps")
  config="$work/empty.yaml"
  echo "train: {seed: 0}" >"$config"
  [[ $name =~ ^(S|B|L|XL)$ ]] || config=configs/$name.yaml
  out=$work/run$((++number))
  before=$(predict --config "$config" "${flags[@]}")
  "$bin/ditrain" --config "$config" "${flags[@]}" --out "$out" </dev/null >"$out.text" 2>&1 || { cat "$out.text" >&2; exit 1; }
  after=$(predict --config "$config" "${flags[@]}")
  sed -nE 's/^\{"step":([0-9]+),.*"images_per_second":([0-9.e+-]+).*/\1 \2/p' "$out/metrics.jsonl" |
    awk -v b="$batch" '$1 > 3 { print b / $2 }' | sort -g |
    awk -v name="$name" -v type="$precision" -v batch="$batch" -v p="$before" -v q="$after" -v limit="${LIMIT:-}" '
      { s[NR] = $1 }
      END { predicted = (p + q) / 2; measured = s[int((NR + 1) / 2)]; error = predicted / measured - 1
            printf "%-8s %-5s %5d %11.4g %10.4g %9.4g %6.1f%% %6.1f%%\n", name, type, batch, predicted, measured, s[1],
                   100 * error, 100 * (p > q ? p / q - 1 : q / p - 1)
            exit limit != "" && (error > limit || error < -limit) }' || bad=1
  rm -rf "$out"
done < <(tr ',' '\n' <<<"$rows" | awk 'NF')
[[ $bad -eq 0 ]] || echo "check_dry_run: a prediction is off by more than $LIMIT" >&2
exit $bad
