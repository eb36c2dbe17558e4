#!/usr/bin/env bash
# Builds everything and runs the tests that take minutes each (ctest label "long"), which test.sh leaves out.
set -euo pipefail
cd "$(dirname "$0")/.."
./scripts/build.sh release
PATH=/usr/bin:$PATH
exec ctest --test-dir build/release --output-on-failure -L long "$@"
