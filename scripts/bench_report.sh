#!/usr/bin/env bash
# Measures this machine for a dated report: products, operators, attention and whole training steps, each beside the
# peaks of the same cores. Takes about 30 minutes on 2 cores; nothing else should run meanwhile.
#   scripts/bench_report.sh [OUT.md]       default: tests/bench/reports/DATE-HOST.md
#   PARTS="gemm ops step" chooses parts; MODELS="S B XL" the models of gemm; JSON=DIR keeps the JSON of every part.
set -euo pipefail
cd "$(dirname "$0")/.."
bench=build/release/bin/ditbench
[[ -x $bench ]] || { echo "bench_report: error: $bench is missing; run ./scripts/build.sh first" >&2; exit 2; }
out=${1:-tests/bench/reports/$(date +%F)-$(hostname).md}
parts=${PARTS:-"gemm ops step"}
models=${MODELS:-"S B L XL"}
cores=$(nproc)
mkdir -p "$(dirname "$out")"

# run TITLE ARGUMENTS...: the command and what it printed.
run() {
  local json=()
  if [[ -n ${JSON:-} ]]; then mkdir -p "$JSON"; json=(--json "$JSON/$(tr -c 'a-zA-Z0-9\n' _ <<<"$*").json"); fi
  { echo; echo '```'; echo "\$ ditbench $*"; "$bench" "$@" "${json[@]}" 2>&1; echo '```'; } | tee -a "$out"
}

{
  echo "# $(date +%F): $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ //')"
  echo
  echo "host $(hostname), $cores core(s), $(free -g | awk '/Mem/ {print $2}') GiB, $(uname -sr), $(c++ --version | head -1)"
  echo
  echo "commit $(git rev-parse --short HEAD)$(git diff --quiet HEAD || echo ' with changes'), made by scripts/bench_report.sh"
} >"$out"

for part in $parts; do
  echo -e "\n## $part" >>"$out"
  case $part in
    gemm)
      for precision in f32 bf16; do
        for model in $models; do run gemm --model "$model" --precision $precision --peers; done
        for model in $models; do run gemm --model "$model" --precision $precision --threads 1; done
      done ;;
    ops) run ops; run ops --threads 1 ;;
    step)
      for precision in f32 bf16; do
        run step --model S --batch 16 --precision $precision
        run step --model B --batch 8 --precision $precision
        run step --model XL --batch 4 --precision $precision
        run step --model XL --batch 8 --precision $precision
        run step --model S --batch 16 --precision $precision --threads 1
      done ;;
    ladder) run ladder ;;
    *) echo "bench_report: error: no part called '$part'; gemm, ops, step or ladder" >&2; exit 2 ;;
  esac
done
echo "bench_report: $out"
