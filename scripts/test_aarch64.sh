#!/usr/bin/env bash
# Cross-builds the kernels and the copy between tiers in memory for 64-bit Arm and runs their tests under qemu, once for
# every set of kernels: the matrix unit (SME) and SVE2 with vectors of 128, 256 and 512 bits, and NEON. Each run is about
# one set, the one that the emulated processor gets; the shapes are all of them. In streaming mode the processor refuses
# what a real one may lack there (sme_fa64=off). Arguments go to the test programs (a test's name, for example).
#   ./scripts/test_aarch64.sh                                   some five minutes on two free cores
set -euo pipefail
cd "$(dirname "$0")/.."
./scripts/install_aarch64.sh
PATH=/usr/bin:$PATH
build=build/aarch64-qemu
[[ -f $build/build.ninja ]] || cmake --preset aarch64-qemu
cmake --build --preset aarch64-qemu

# run NAME CPU: all test programs on that processor; prints one line for each, and everything if one fails.
run() {
  local program log status=0
  log=$(mktemp)
  for program in test_base test_platform test_memory test_kernels; do
    DITRAIN_TEST_ONLY=$1 qemu-aarch64 -L /usr/aarch64-linux-gnu -cpu "$2" "$build/tests/$program" "${@:3}" \
      >"$log" 2>&1 || { status=1; cat "$log"; }
    printf '%-18s %-14s %s\n' "$1" "$program" "$(grep -E '^(All tests passed|test cases:|No tests ran)' "$log" || echo crashed)"
  done
  rm -f "$log"
  return $status
}
export -f run
export build

lengths() { echo "sve-default-vector-length=$1,sme-default-vector-length=$2"; }  # in bytes
printf '%s\0' \
  sme_128_sve2_128 "max,sme=on,sme_fa64=off,$(lengths 16 16)" \
  sme_256_sve2_256 "max,sme=on,sme_fa64=off,$(lengths 32 32)" \
  sme_512_sve2_512 "max,sme=on,sme_fa64=off,$(lengths 64 64)" \
  sme_512_sve2_128 "max,sme=on,sme_fa64=off,$(lengths 16 64)" \
  sme_512_sve2_256 "max,sme=on,sme_fa64=off,$(lengths 32 64)" \
  sme_256_sve2_128 "max,sme=on,sme_fa64=off,$(lengths 16 32)" \
  sve2_512         "max,sme=on,sme_fa64=off,$(lengths 64 16)" \
  sve2_256         "max,sme=off,sve-default-vector-length=32" \
  sve2_128         "max,sme=off,sve-default-vector-length=16" \
  baseline         "max,sme=off,sve=off" |
  xargs -0 -n 2 -P "$(nproc)" bash -c 'run "${@: -2}" "${@:1:$#-2}"' run "$@"
