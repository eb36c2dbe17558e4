#!/usr/bin/env bash
# Configures and builds one preset: scripts/build.sh [release|debug|asan-ubsan|tsan] [ninja targets...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
./scripts/install_packages.sh
# The system's cmake and ninja: others on PATH may not know the system's packages.
PATH=/usr/bin:$PATH
if [[ ! -f build/$preset/build.ninja ]]; then
  cmake --preset "$preset" >"/tmp/ditrain_configure_$$.log" 2>&1 || { cat "/tmp/ditrain_configure_$$.log" >&2; exit 1; }
  rm -f "/tmp/ditrain_configure_$$.log"
fi
cmake --build --preset "$preset" ${@:+--target "$@"}
