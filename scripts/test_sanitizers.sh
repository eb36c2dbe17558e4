#!/usr/bin/env bash
# Builds with sanitizers and runs the tests of threads and of ranks: memory errors and undefined behaviour (asan-ubsan),
# races (tsan). Hours on two cores: the kernels alone take long to compile.
#   scripts/test_sanitizers.sh [asan-ubsan] [tsan]       default: both
set -euo pipefail
cd "$(dirname "$0")/.."
presets=${*:-asan-ubsan tsan}
# What is threaded or parallel in real ranks; the rest of e2e is about files and command lines.
ranks='^dist: |^e2e: *(communication|strategies|replicas|kill -9|ranks|threads|micro-batches)'
declare -A units=([asan-ubsan]='^(autograd|base|dataset|diffusion|dist|eval|io|kernels|memory|nn|ops|optim|parallel|platform|tensor|train|verify):'
                  [tsan]='^(dataset|dist|eval|nn|ops|parallel|train):|^kernels:.*gang packs')
[[ $(id -u) -eq 0 ]] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
for preset in $presets; do
  [[ -n ${units[$preset]:-} ]] || { echo "test_sanitizers: error: no preset called '$preset'; asan-ubsan or tsan" >&2; exit 2; }
done
# ThreadSanitizer cannot see how the threads of Open MPI meet: the preset makes it ignore what libraries do that are not
# built for it. Left out: tests that limit or read the whole memory of a process, of which sanitizers take terabytes.
left_out='(run|ranks) that (does|do) not fit|weights differ ends the run'
for preset in $presets; do
  ./scripts/build.sh "$preset"
  PATH=/usr/bin:$PATH ctest --preset "$preset" -R "${units[$preset]}" -E "$left_out|$ranks"
  # Open MPI unloads its parts before leaks are looked for: what they kept has no name then that could be suppressed.
  ASAN_OPTIONS=detect_leaks=0 PATH=/usr/bin:$PATH ctest --preset "$preset" -R "$ranks" -E "$left_out"
done
