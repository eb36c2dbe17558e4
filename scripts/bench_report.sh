#!/usr/bin/env bash
# Measures this machine for a dated report: products, operators, attention, convolutions, sampling and whole training
# steps, each beside the peaks of the same cores, what each optimisation gives, memory tiers and, if asked for, PyTorch.
# Takes hours on 2 cores; nothing else should run meanwhile. A command that fails is noted in the report, the others still run, and the script
# exits with 1.
#   scripts/bench_report.sh [OUT.md]       default: tests/bench/reports/DATE-HOST.md
#   PARTS="gemm ops"                       chooses parts (default: all; pytorch only if PYTORCH is set)
#   FLAGS=--quick                          more flags of every ditbench command: to see that a part runs
#   PYTORCH=python                         a Python with PyTorch, for scripts/bench_pytorch.py
#   JSON=DIR                               keeps the JSON of every command
# A report is these tables as printed. A person adds one section, "## Conclusions": at most one page, with numbers from
# the tables alone, so that each has its command beside it.
set -euo pipefail
given=${1:+$(realpath -m -- "$1")}  # before cd: relative to where the caller is
[[ -z ${JSON:-} ]] || JSON=$(realpath -m -- "$JSON")
cd "$(dirname "$0")/.."
bench=build/release/bin/ditbench
pytorch=${PYTORCH:-}
out=${given:-tests/bench/reports/$(date +%F)-$(hostname).md}
all="gemm ops step ladder cluster conv sample data memory disk recompute backward checkpoint pytorch"
parts=${PARTS:-"${all% pytorch}${pytorch:+ pytorch}"}
read -ra flags <<<"${FLAGS:-}"
cores=$(nproc)
failed=0

refuse() { echo "bench_report: error: $*" >&2; exit 2; }
[[ -x $bench ]] || refuse "$bench is missing; run ./scripts/build.sh first"
for part in $parts; do
  [[ " $all " == *" $part "* ]] || refuse "no part called '$part'; one of: $all"
  [[ $part != pytorch || -n $pytorch ]] || refuse "part pytorch needs PYTORCH=python"
done

runs=0
say() { echo "$@" >>"$out"; }

# run NAME COMMAND...: the command as NAME and what it printed.
run() {
  local name=$1 status=0 json=()
  shift
  if [[ -n ${JSON:-} && $1 != scripts/* ]]; then
    mkdir -p "$JSON"
    json=(--json "$JSON/$(printf %03d $((++runs)))_$(tr -c 'a-zA-Z0-9\n' _ <<<"$name ${*:2}").json")
  fi
  say ""; say '```'; say "\$ $name ${*:2}"
  echo "\$ $name ${*:2}"
  "$@" "${json[@]}" 2>&1 | tee -a "$out" || status=$?
  say '```'
  if ((status != 0)); then
    say ""; say "**Failed with exit code $status.**"
    echo "bench_report: failed with exit code $status" >&2
    failed=1
  fi
}
ditbench() { run ditbench "$bench" "$@" "${flags[@]}"; }
compare() { run python "$pytorch" scripts/bench_pytorch.py "$@" --against "$bench"; }

gemm_part() {
  local precision
  for precision in f32 bf16; do
    ditbench gemm --precision $precision --peers
    ditbench gemm --precision $precision --threads 1 --peers
  done
}

ops_part() {
  local precision
  for precision in f32 bf16; do
    ditbench ops --precision $precision
    ditbench ops --precision $precision --threads 1
  done
}

step_part() {
  local precision
  for precision in f32 bf16; do
    ditbench step --model S --batch 16 --precision $precision
    ditbench step --model B --batch 8 --precision $precision
    ditbench step --model XL --batch 4 --precision $precision
    ditbench step --model XL --batch 8 --precision $precision
    ditbench step --model S --batch 16 --precision $precision --threads 1
    ditbench step --model B --batch 8 --precision $precision --threads 1
    ditbench step --model XL --batch 4 --precision $precision --threads 1
  done
}

ladder_part() { ditbench ladder; }

# Under mpirun; as root Open MPI wants OMPI_ALLOW_RUN_AS_ROOT and OMPI_ALLOW_RUN_AS_ROOT_CONFIRM set to 1.
ranks_2() { mpirun -np 2 "$bench" "$@" "${flags[@]}"; }
ranks_4() { mpirun -np 4 --oversubscribe "$bench" "$@" "${flags[@]}"; }

cluster_part() {
  local model link="{gbit_s: 10, latency_us: 20, hosts: 2}"
  for model in S B; do ditbench strategies --model $model --batch 16 --repeats 3; done
  ditbench strategies --model B --batch 16 --repeats 1 --memory-gib 6
  ditbench clusters --model S --batch 16 --repeats 15
  ditbench clusters --model B --batch 8 --repeats 15
  ditbench step --model B --batch 8 --set train.micro_batch=2
  ditbench step --model B --batch 8 --set train.micro_batch=2 --set dist.reproducible=true
  run "mpirun -np 2 ditbench" ranks_2 comm --kib 1024,131072
  run "mpirun -np 4 --oversubscribe ditbench" ranks_4 comm --kib 131072
  run "mpirun -np 2 ditbench" ranks_2 comm --model B --batch 4
  run "mpirun -np 2 ditbench" ranks_2 comm --model B --batch 4 --set dist.adaln=reduce
  run "mpirun -np 2 ditbench" ranks_2 comm --model B --batch 4 --set "dist.simulate_link=$link"
  run "mpirun -np 2 ditbench" ranks_2 comm --model B --batch 4 --set "dist.simulate_link=$link" --set dist.adaln=reduce
}

# Convolutions, and the networks that are made of them.
conv_part() {
  ditbench conv --precision f32 --peers
  ditbench conv --precision bf16
  ditbench vae --precision f32,bf16 --repeats 3
  ditbench inception --precision f32,bf16 --repeats 5
}

sample_part() {
  ditbench sample --model S --batch 8
  ditbench sample --model XL --batch 8 --repeats 3
}

# One loader thread beside a step; scenes cut into tiles.
data_part() {
  ditbench data
  run scripts/bench_tiles.sh scripts/bench_tiles.sh
}

# The last but one is a slow link while weights change in backward, the last when they change after it.
memory_part() {
  local slow="memory.simulate_bulk={gb_s: 1}"
  ditbench memory --matrix
  ditbench memory --model B --batch 8
  ditbench memory --model B --batch 8 --precision bf16
  ditbench memory --model B --batch 8 --fast 0.4 --set memory.bulk_gib=0 --set memory.disk_gib=8
  ditbench memory --model B --batch 8 --fast 0.4 --set "$slow"
  ditbench memory --model B --batch 8 --fast 0.4 --set "$slow" --set train.on_non_finite=skip
}

# The 12.8 GiB of tensors of XL/2, those that are not in use on the disk of the temporary folder.
disk_part() {
  local on_disk=(--set memory.bulk_gib=0 --set memory.disk_gib=14 --set "memory.disk_path=${TMPDIR:-/tmp}")
  ditbench memory --model XL --batch 8 --repeats 3 --fast 0.5,0.33 "${on_disk[@]}"
}

# What `auto` recomputes with a limit halfway between the memory of its neighbours, in turns with them.
limited() { prlimit --data=3935000000 "$bench" "$@" "${flags[@]}"; }
recompute_part() {
  local round step=(step --model B --batch 8 --repeats 2)
  for round in 1 2 3; do
    ditbench "${step[@]}" --recompute selective
    run "prlimit --data=3935000000 ditbench" limited "${step[@]}" --recompute auto
    ditbench "${step[@]}" --recompute block
  done
}

# Weights that change in backward (stop), and at its end (skip), in turns.
backward_part() {
  local round
  for round in 1 2 3; do
    ditbench step --model B --batch 8 --set train.on_non_finite=stop
    ditbench step --model B --batch 8 --set train.on_non_finite=skip
  done
}

checkpoint_part() { run scripts/bench_checkpoint.sh scripts/bench_checkpoint.sh DiT-B/2 8; }

pytorch_part() {
  compare --model S --batch 16 --precision f32,bf16
  compare --model B --batch 8 --precision f32,bf16
  compare --model XL --batch 4 --precision f32,bf16
  compare --ops
  compare --vae --precision f32,bf16
  compare --inception --precision f32,bf16
}

mkdir -p "$(dirname "$out")"
{
  echo "# $(date +%F): $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ //')"
  echo
  echo "host $(hostname), $cores core(s), $(free -g | awk '/Mem/ {print $2}') GiB, $(uname -sr), $(c++ --version | head -1)"
  echo
  echo "commit $(git rev-parse --short HEAD)$(git diff --quiet HEAD || echo ' with changes'), made by scripts/bench_report.sh"
} >"$out"

for part in $parts; do
  say ""; say "## $part"
  "${part}_part"
done
echo "bench_report: $out; left to write: a section '## Conclusions' of at most one page"
exit $failed
