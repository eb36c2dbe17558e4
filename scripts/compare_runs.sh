#!/usr/bin/env bash
# Proof that a change alters no result: trains the same short runs with two builds and compares losses, checkpoints and
# drawn samples byte for byte.
#   scripts/compare_runs.sh OLD_BIN NEW_BIN [CONFIGS]
#   RUNS="flow v"      chooses runs by name (default: all)
# OLD_BIN and NEW_BIN are folders with ditrain; CONFIGS is a folder of configs that both know (default: those of this
# checkout). Prints a line per run; exit 1 if one differs. Covered: the shipped configs and the settings of the tests,
# f32 and bf16, 1 and 2 ranks.
set -euo pipefail
[[ $# -eq 2 || $# -eq 3 ]] || { sed -n '2,8p' "$0"; exit 2; }
old=$(realpath "$1") new=$(realpath "$2") configs=$(realpath "${3:-$(dirname "$0")/../configs}")
[[ $(id -u) -eq 0 ]] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
PATH=/usr/bin:$PATH
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

small=(model.name=custom model.input_size=16 model.in_channels=3 model.hidden_size=64 model.depth=3 model.num_heads=4
       model.patch_size=2 model.num_classes=8 data.kind=shapes train.global_batch=8 train.steps=6
       checkpoint.every_steps=0 checkpoint.keep_last=1 sample.every_steps=0 eval.every_steps=0)
# A fast rate and a short average: the pictures show what the network computes, not its start.
draws=(sample.every_steps=3 sample.num_images=4 sample.steps=5 sample.cfg_scale=2 optimizer.lr=0.01 ema.decay=0.5)
# Of the shipped configs a few steps, on drawn data where they need files.
shipped=(train.steps=3 checkpoint.every_steps=0 sample.every_steps=0 eval.every_steps=0 log.every_steps=1)
drawn=(data.kind=shapes data.path= model.num_classes=8 train.global_batch=4)

# name | ranks | config | settings
runs=(
  "plain|1||"
  "plain|2||"
  "micro|2||train.micro_batch=2 train.recompute=block"
  "clip|2||optimizer.clip_norm=0.5 train.on_non_finite=skip"
  "cosine|1||optimizer.schedule=cosine optimizer.warmup_steps=2 ema.warmup=true"
  "none|1||train.recompute=none"
  "x0|1||diffusion.prediction=x0 diffusion.loss=mse model.learn_sigma=false"
  "kl|1||diffusion.loss=kl diffusion.schedule=squaredcos_cap_v2"
  "v|1||diffusion.prediction=v"
  "min_snr|1||diffusion.loss_weight=min_snr"
  "flow|1||diffusion.process=flow model.learn_sigma=false diffusion.time=logit_normal draws sample.sampler=heun"
  "ddim|1||draws sample.sampler=ddim"
  "dpm++|2||draws sample.sampler=dpm++"
  "qk_rms|1||model.qk_norm=rms draws"
  "qk_layer|2||model.qk_norm=layer"
  "qk_layer_tp|2||model.qk_norm=layer parallel.strategy=dp_tp"
  "reduce|2||dist.adaln=reduce dist.bucket_mib=0.05"
  "factors|2||dist.adaln=factors dist.bucket_mib=0.05"
  "flat|2||dist.allreduce=flat dist.engine=false"
  "late|2||dist.overlap=false"
  "shards|2||dist.shard_optimizer=true dist.bucket_mib=0.05"
  "shards_clip|2||dist.shard_optimizer=true optimizer.clip_norm=0.5"
  "tiers|1||memory.automem=paper memory.fast_gib=0.005 memory.bulk_gib=1"
  "tiers_disk|2||memory.automem=planned memory.fast_gib=0.006 memory.disk_gib=1 optimizer.clip_norm=0.5"
  "tree|1||dist.reproducible=true train.micro_batch=1"
  "tree|2||dist.reproducible=true train.micro_batch=1"
  "dp|2||parallel.strategy=dp"
  "dp_tp|2||parallel.strategy=dp_tp"
  "ref|1||kernels.gemm=ref train.global_batch=2 train.steps=2"
  "unfused|1||kernels.fuse=false"
  "unlabelled|1||model.num_classes=0"
  "quickstart|2|quickstart.yaml|"
  "cifar10|1|cifar10.yaml|drawn model.input_size=32"
  "caltech101|1|caltech101.yaml|drawn"
  "dit_s2|1|dit_s2.yaml|drawn"
  "dit_b2|2|dit_b2.yaml|drawn"
)

differ=0
train() {  # bin out ranks config settings...
  local bin=$1 out=$2 ranks=$3 config=$4
  shift 4
  local sets=()
  for s in "$@"; do sets+=(--set "$s"); done
  local launch=()
  [[ $ranks -gt 1 ]] && launch=(mpirun -np "$ranks" --oversubscribe --bind-to none)
  "${launch[@]}" "$bin/ditrain" --config "$config" --out "$out" "${sets[@]}" >"$out.log" 2>&1 ||
    { tail -n 5 "$out.log" >&2; return 1; }
}
# What follows the speed are times. The norm of gradients that are not clipped is only shown, and its sum may have another
# order; where it is used the weights tell.
losses() { sed -E 's/,"grad_norm":[^,]+//; s/,"images_per_second".*//' "$1/metrics.jsonl"; }

for name in ${RUNS:-}; do
  printf '%s\n' "${runs[@]}" | cut -d'|' -f1 | grep -qxF -- "$name" || { echo "no run called '$name'" >&2; exit 2; }
done
for row in "${runs[@]}"; do
  IFS='|' read -r name ranks config settings <<<"$row"
  [[ -z ${RUNS:-} || " $RUNS " == *" $name "* ]] || continue
  for precision in f32 bf16; do
    [[ $name == ref && $precision == bf16 ]] && continue
    sets=()
    if [[ -z $config ]]; then
      sets=("${small[@]}")
      : >"$work/empty.yaml" && echo "train:" >"$work/empty.yaml"
      file=$work/empty.yaml
    else
      sets=("${shipped[@]}")
      file=$configs/$config
    fi
    for s in $settings; do
      case $s in
        drawn) sets+=("${drawn[@]}") ;;
        draws) sets+=("${draws[@]}") ;;
        *) sets+=("$s") ;;
      esac
    done
    sets+=("train.precision=$precision")
    for side in old new; do
      rm -rf "${work:?}/$side"
      train "${!side}" "$work/$side" "$ranks" "$file" "${sets[@]}"
    done
    verdict=same
    cmp -s <(losses "$work/old") <(losses "$work/new") || verdict="LOSSES DIFFER"
    for part in model ema optimizer; do
      cmp -s "$work"/old/checkpoints/step_*/"$part.safetensors" "$work"/new/checkpoints/step_*/"$part.safetensors" ||
        verdict="$verdict, $part DIFFERS"
    done
    [[ $settings != *draws* || -d $work/new/samples ]] || verdict="$verdict, NO SAMPLES"
    [[ ! -d $work/new/samples ]] || diff -rq -x samples.json "$work/old/samples" "$work/new/samples" >/dev/null ||
      verdict="$verdict, samples DIFFER"  # samples.json names the folder
    printf '%-14s %s rank(s) %-5s %s\n' "$name" "$ranks" "$precision" "$verdict"
    [[ $verdict == same ]] || differ=1
  done
done
exit $differ
