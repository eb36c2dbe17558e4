#!/usr/bin/env bash
# Runs the python blocks of apps/README.md, in order, each if the packages that it imports are installed; and compares
# event files with metrics.jsonl, if the package tensorboard is.
#   tests/e2e/python_test.sh BIN      BIN is a folder with the programs; exit 77 if no block could run
#   PYTHON=python3                    the interpreter, such as that of a virtual environment
#   PYTHONPATH=DIT                    may hold the reference implementation (facebookresearch/DiT)
set -euo pipefail
bin=$(realpath "$1") root=$(realpath "$(dirname "$0")/../..")
python=$(command -v "${PYTHON:-python3}") || { echo "skipped: there is no python3"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$bin/ditrain" --config "$root/configs/quickstart.yaml" --out runs/quickstart --set train.steps=4 --set train.global_batch=4 \
  --set model.patch_overlap=0 \
  --set model.hidden_size=32 --set model.depth=1 --set model.num_heads=2 --set sample.every_steps=2 --set sample.num_images=2 \
  --set sample.steps=2 --set eval.every_steps=2 --set eval.num_images=8 --set log.tensorboard=true >log
ln -s quickstart runs/plain
"$bin/ditexport" --checkpoint runs/plain --out plain.safetensors --format dit >>log
"$bin/ditimport" --from "$root/tests/golden/diffusers_dit" --out imported >>log
"$bin/ditexport" --checkpoint imported --out exported --format diffusers >>log
"$bin/ditsample" --checkpoint runs/quickstart --num 2 --steps 2 --out images --format geotiff >>log 2>&1 ||
  { echo "without GDAL there are no GeoTIFFs" && rm -rf images; }

awk '/^```python/{n++; inside=1; next} /^```/{inside=0} inside{print > ("block_" n ".py")}' "$root/apps/README.md"
cat >block_events.py <<'END'
import glob
import json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(glob.glob("runs/quickstart/tensorboard/*")[0], size_guidance={"scalars": 0}).Reload()
lines = [json.loads(line) for line in open("runs/quickstart/metrics.jsonl")]
for name in ["loss", "lr", "grad_norm", "val_mse"]:
    wanted = {line["step"]: line[name] for line in lines if name in line}
    seen = {e.step: e.value for e in events.Scalars("train/" + name)}
    assert wanted and set(seen) == set(wanted), (name, seen, wanted)
    for step, value in wanted.items(): assert abs(seen[step] - value) <= 1e-6 * abs(value), (name, step, seen, wanted)
assert len(events.Tags()["images"]) == 1, events.Tags()
END
ran=0
for block in block_*.py; do
  missing=""
  for module in $(sed -nE 's/^(import|from) ([a-zA-Z_]+).*/\2/p' "$block"); do
    "$python" -c "import $module" 2>/dev/null || missing+=" $module"
  done
  [[ -z $missing ]] || { echo "$block is left out: no$missing"; continue; }
  if grep -q "images/" "$block" && [[ ! -d images ]]; then continue; fi
  MPLBACKEND=agg "$python" "$block" >out 2>&1 || { cat "$block" out >&2; exit 1; }
  echo "$block: $(tail -n 1 out)"
  ran=$((ran + 1))
done
[[ $ran -gt 0 ]] || { echo "skipped: no block's packages are installed"; exit 77; }
