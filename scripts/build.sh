#!/usr/bin/env bash
# Configures and builds one preset: scripts/build.sh [release|debug|asan-ubsan|tsan] [ninja targets...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
./scripts/install_packages.sh
# On Debian the system's cmake and ninja: others on PATH may not know its packages. Elsewhere they come from modules
# that are loaded.
! command -v apt-get >/dev/null || PATH=/usr/bin:$PATH
# A library that was missing when the preset was configured may have been installed since.
if [[ ! -f build/$preset/build.ninja || -s build/$preset/missing_libraries.txt ]]; then
  echo "configuring preset $preset in build/$preset"
  configure_log=$(mktemp)
  trap 'rm -f "$configure_log"' EXIT
  cmake --preset "$preset" >"$configure_log" 2>&1 || { cat "$configure_log" >&2; exit 1; }
fi
cmake --build --preset "$preset" ${@:+--target "$@"}
