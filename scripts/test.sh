#!/usr/bin/env bash
# Builds everything and runs every test; closes with ctest's summary. Arguments go to ctest (-R NAME, ...); those of label long: test_long.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
./scripts/install_packages.sh libgdal-dev libsimgrid-dev procps  # rasters, simulated clusters and pgrep are part of the tests
./scripts/build.sh release
[[ $(id -u) -eq 0 ]] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
! command -v apt-get >/dev/null || PATH=/usr/bin:$PATH
# As many tests at a time as cores; those that need the machine for themselves say so (RUN_SERIAL, PROCESSORS).
exec ctest --preset release --no-tests=error -j "$(nproc)" "$@"
