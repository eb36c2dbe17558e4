#!/usr/bin/env bash
# Checks that every source file is formatted as .clang-format says and that no line is longer than 120 characters.
#   scripts/check_format.sh [--fix]        --fix formats the files; long comment lines are left to their author
# Not formatted: the bodies of kernels in src/kernels/isa, whose includes have an order that matters.
set -euo pipefail
cd "$(dirname "$0")/.."
# Other versions of clang-format break some lines in other places.
command -v clang-format-14 >/dev/null || ./scripts/install_packages.sh clang-format-14
# Listing files is harmless in a checkout of another owner, which git would refuse.
list() { git -c safe.directory='*' ls-files "$@"; }
mapfile -t all < <(list '*.hpp' '*.cpp' '*.inc')
mapfile -t formatted < <(list '*.hpp' '*.cpp' ':!src/kernels/isa')
if [[ ${#all[@]} -eq 0 || ${#formatted[@]} -eq 0 ]]; then
  echo "check_format: git lists no files here: this is no checkout" >&2
  exit 1
fi
if [[ ${1:-} == --fix ]]; then
  clang-format-14 -i "${formatted[@]}"
elif ! clang-format-14 --dry-run --Werror "${formatted[@]}"; then
  echo "check_format: files differ from .clang-format; format them with scripts/check_format.sh --fix" >&2
  exit 1
fi
if grep -nP '^.{121,}' "${all[@]}" | cut -c1-100; then
  echo "check_format: the lines above are longer than 120 characters" >&2
  exit 1
fi
