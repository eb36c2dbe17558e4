#!/usr/bin/env bash
# The report in a real browser: nothing on the console, curves are drawn, the slider of the samples moves, and the name
# of the run stays text.
#   tests/e2e/browser_test.sh BIN      BIN is a folder with ditrain; exit 77 without chromium
set -euo pipefail
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
  { echo "skipped: there is no chromium (apt-get install chromium)"; exit 77; }
bin=$(realpath "$1") configs=$(realpath "$(dirname "$0")/../../configs")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run="$work/<script><img src=x onerror=alert(1)>"
"$bin/ditrain" --config "$configs/quickstart.yaml" --out "$run" --set train.steps=6 --set train.global_batch=4 \
  --set model.hidden_size=32 --set model.depth=1 --set model.num_heads=2 --set sample.every_steps=2 \
  --set sample.num_images=4 --set sample.steps=2 --set eval.every_steps=2 --set eval.num_images=8 >"$work/log"

fail() { echo "browser_test: $1" >&2; exit 1; }
# check NAME PAGE CURVES: a probe at the end of the page moves the slider and leaves what it sees in the document.
check() {
  local probe='<script>{ const picture = document.querySelector("figure img"), slider = document.getElementById("slider");
    const before = picture.src; slider.value = 0; slider.dispatchEvent(new Event("input"));
    document.body.dataset.probe = [[...document.querySelectorAll("svg path")].filter(p => p.getTotalLength() > 50).length,
      picture.src !== before, document.querySelectorAll("main [onerror]").length, innerWidth >= document.body.scrollWidth].join(" "); }</script>'
  { sed 's|</body>||; s|</html>||' "$2"; echo "$probe</body></html>"; } >"$work/probed.html"
  timeout 100 "$browser" --headless=new --no-sandbox --disable-gpu --enable-logging=stderr --user-data-dir="$work/profile" \
    --window-size="$4",2000 --virtual-time-budget=2000 --dump-dom "file://$work/probed.html" >"$work/dom" 2>"$work/errors" ||
    fail "$1: the browser failed: $(tail -n 3 "$work/errors")"
  ! grep -F CONSOLE "$work/errors" || fail "$1: the console has the lines above"
  local seen
  seen=$(grep -o 'data-probe="[^"]*"' "$work/dom") || fail "$1: the page's script did not run to its end"
  read -r curves moved markup fits <<<"$(cut -d'"' -f2 <<<"$seen")"
  [[ $curves -ge $3 ]] || fail "$1: $curves curves are drawn, expected at least $3"
  [[ $moved == true ]] || fail "$1: the slider does not change the picture"
  [[ $markup == 0 ]] || fail "$1: the name of the run became markup"
  [[ $fits == true ]] || fail "$1: the page is wider than the window of $4 pixels"
  echo "$1: $curves curves"
}
check "one run" "$run/report.html" 8 1300
check "one run on a phone" "$run/report.html" 8 500
cp -r "$run" "$work/b"
"$bin/ditrain" report "$run" "$work/b" --out "$work/both.html" >>"$work/log"
check "two runs" "$work/both.html" 16 1300
