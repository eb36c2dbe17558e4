#!/usr/bin/env bash
# Installs what cross-building for Arm needs: clang, its linker, Debian's arm64 libraries and qemu's user mode, besides
# the packages of the normal build. Does nothing, and needs no rights, if none is missing.
set -euo pipefail
exec "$(dirname "$0")/install_packages.sh" clang-19 lld-19 libc6-dev-arm64-cross libstdc++-12-dev-arm64-cross qemu-user
