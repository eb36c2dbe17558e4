#!/usr/bin/env bash
# Counts lines of C++ that are neither blank nor only a comment, per module and in all.
#   scripts/count_lines.sh [COMMIT]        default: the files as they are; COMMIT counts that state too and prints ratios
set -euo pipefail
cd "$(dirname "$0")/.."

# Lines of C++ on standard input that hold code.
code_lines() {
  awk '{ sub(/^[ \t]+/, "") } /^$/ || /^\/\// { next } inside { if (/\*\//) inside = 0; next }
       /^\/\*/ { if (!/\*\//) inside = 1; next } { n++ } END { print n + 0 }'
}
count_here() { git ls-files -co --exclude-standard -- "${@/%//*}" | grep -E '\.(hpp|cpp|inc|h|c)$' | xargs -r -d '\n' cat | code_lines; }
count_at() {
  local commit=$1
  shift
  git ls-tree -r --name-only "$commit" -- "$@" | { grep -E "\.(hpp|cpp|inc|h|c)$" || true; } |
    while IFS= read -r file; do git show "$commit:$file"; done | code_lines
}
row() {
  local name=$1 now
  shift
  now=$(count_here "$@")
  if [[ -n ${commit:-} ]]; then
    local then
    then=$(count_at "$commit" "$@")
    printf '%-14s %7d %7d %7s\n' "$name" "$then" "$now" "$(awk -v a="$then" -v b="$now" 'BEGIN { print a ? sprintf("%.3f", b / a) : "-" }')"
  else
    printf '%-14s %7d\n' "$name" "$now"
  fi
}
commit=${1:-}
[[ -n $commit ]] && printf '%-14s %7s %7s %7s\n' '' "${commit:0:7}" now ratio
for module in $(ls src | grep -v README); do
  [[ -d src/$module ]] && row "$module" "src/$module" "include/ditrain/$module"
done
row apps apps
row "all sources" src include apps
row tests tests
