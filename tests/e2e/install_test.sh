#!/usr/bin/env bash
# What `cmake --install` puts where: programs that find the installed configs by name, man pages and completion for
# each, guides whose links lead somewhere.
#   tests/e2e/install_test.sh BUILD      BUILD is a build folder with all programs
set -euo pipefail
build=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/log"
cd "$work"  # where no configs are
fail() { echo "install_test: $1" >&2; exit 1; }
programs=0
for program in prefix/bin/dit*; do
  name=$(basename "$program")
  grep -q "^\.TH ${name^^} 1 " "prefix/share/man/man1/$name.1" || fail "$name has no man page"
  (source "prefix/share/bash-completion/completions/$name" && complete -p "$name" >"$work/completion") ||
    fail "$name has no completion"
  programs=$((programs + 1))
done
[[ $programs -eq 8 ]] || fail "$programs programs are installed, expected 8"
prefix/bin/ditrain --config quickstart.yaml --print-config >"$work/config" || fail "the installed config is not found"
grep -q "steps: 5000" "$work/config" || fail "the installed config is another one"
[[ -z $(find prefix/share/ditrain -name '*.md') ]] || fail "guides lie beside the configs, where their links are broken"
links=0
for guide in README.md apps/README.md configs/README.md configs/KEYS.md scripts/README.md; do
  guide=prefix/share/doc/ditrain/$guide
  while read -r link; do
    [[ -e $(dirname "$guide")/$link ]] || fail "$guide links to $link, which is not installed"
    links=$((links + 1))
  done < <(grep -oE '\]\([^)]+\)' "$guide" | sed -E 's/^\]\(//; s/\)$//; s/#.*//' | grep -vE '^(http.*)?$')
done
[[ $links -ge 40 ]] || fail "the guides have $links links, expected 40 or more"
# The Slurm script finds elastic.sh, which misses --out here, from a program in PATH that is a link; else it says what to
# set.
script=prefix/share/ditrain/slurm/many_nodes.sbatch
mkdir -p view/bin && ln -s "$work/prefix/bin/ditrain" view/bin/ditrain
PATH="$work/view/bin:$PATH" bash "$script" --config c.yaml 2>"$work/refusal" && fail "$script starts without --out"
grep -q "^elastic: error: --out DIR is missing" "$work/refusal" || fail "$script: $(cat "$work/refusal")"
PATH=/usr/bin:/bin DITRAIN=none/ditrain bash "$script" --out o 2>"$work/refusal" && fail "$script starts without ditrain"
grep -q "^many_nodes: error: .*set DITRAIN" "$work/refusal" || fail "$script: $(cat "$work/refusal")"
