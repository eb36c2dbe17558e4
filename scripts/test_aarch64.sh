#!/usr/bin/env bash
# Cross-builds ditrain for 64-bit Arm and runs it under qemu's user mode, once for every set of kernels: the matrix unit
# (SME) and SVE2 with vectors of 128, 256 and 512 bits, and NEON. In streaming mode the processor refuses what a real one
# may lack there (sme_fa64=off). Each set runs these parts:
#   base, platform, memory, kernels   tests of the kernels, in all shapes, and of what they stand on
#   fixtures                          ditverify on the small ones
#   f32, bf16                         20 steps of training and four pictures; losses and pictures are those of x86, but for
#                                     rounding. The second half once more, resumed with another number of threads
#   ranks                             the 20 steps on two ranks (one set)
#   ./scripts/test_aarch64.sh [SET...]                                      (default: all; PARTS="f32 bf16" chooses)
set -euo pipefail
cd "$(dirname "$0")/.."
lengths() { echo "sve-default-vector-length=$1,sme-default-vector-length=$2"; }  # in bytes
sets="sme_128_sve2_128 max,sme=on,sme_fa64=off,$(lengths 16 16)
sme_256_sve2_256 max,sme=on,sme_fa64=off,$(lengths 32 32)
sme_512_sve2_512 max,sme=on,sme_fa64=off,$(lengths 64 64)
sme_512_sve2_128 max,sme=on,sme_fa64=off,$(lengths 16 64)
sme_512_sve2_256 max,sme=on,sme_fa64=off,$(lengths 32 64)
sme_256_sve2_128 max,sme=on,sme_fa64=off,$(lengths 16 32)
sve2_512 max,sme=on,sme_fa64=off,$(lengths 64 16)
sve2_256 max,sme=off,sve-default-vector-length=32
sve2_128 max,sme=off,sve-default-vector-length=16
baseline max,sme=off,sve=off"
parts=${PARTS:-kernels f32 bf16 fixtures base platform memory ranks}

./scripts/install_aarch64.sh
./scripts/build.sh release ditrain ditsample
PATH=/usr/bin:$PATH
export build=build/aarch64-qemu
# With CCACHE_BASEDIR set, ccache tells CMake relative names of the compiler's folders, which it takes for others.
[[ -f $build/build.ninja ]] || env -u CCACHE_BASEDIR cmake --preset aarch64-qemu
cmake --build --preset aarch64-qemu --target ditrain ditsample ditverify test_base test_platform test_memory test_kernels
[[ $(id -u) -eq 0 ]] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# shellcheck disable=SC2155
export work=$(mktemp -d) sysroot=build/aarch64-sysroot
trap 'rm -rf "$work"' EXIT
echo "train:" >"$work/empty.yaml"

# train OUT PRECISION BIN [FLAG...]: BIN is what stands before the program's name.
train() {
  local sets=() value
  for value in model.{name=custom,input_size=16,in_channels=3,hidden_size=64,depth=3,num_heads=4,patch_size=2,num_classes=8} \
               data.kind=shapes train.{global_batch=8,steps=20,precision="$2"} optimizer.lr=1e-3 ema.decay=0.5 \
               checkpoint.{every_steps=10,keep_last=2} {sample,eval}.every_steps=0 parallel.threads=1; do
    sets+=(--set "$value")
  done
  ${3}ditrain --config "$work/empty.yaml" --out "$1" "${sets[@]}" "${@:4}"
}
# draw CHECKPOINT OUT BIN
draw() {
  ${3}ditsample --checkpoint "$1" --num 4 --steps 5 --sampler ddim --cfg-scale 2 --out "$2" --npz "$2.npz"
}
# same_losses A B RELATIVE FROM: from step FROM on.
same_losses() {
  local losses='s/^\{"step":([0-9]+),"loss":([^,]+),.*/\1 \2/'
  paste -d ' ' <(sed -E "$losses" "$1/metrics.jsonl") <(tail -n +"$4" "$2/metrics.jsonl" | sed -E "$losses") |
    awk -v most="$3" -v steps=$((21 - $4)) '
      { d = $2 > $4 ? $2 - $4 : $4 - $2; d /= $4; if (d > worst) worst = d }
      NF != 4 || $1 != $3 || !(d <= most) { print "  " $0; bad = 1 }
      END { printf "RESULT losses differ by %.1e (allowed %g)\n", worst, most; exit bad || NR != steps }'
}
# same_pictures A B: values of 8 bits differ by 1 at most, those that were rounded otherwise.
same_pictures() {
  local bytes=$((4 * 16 * 16 * 3)) begin
  begin=$(($(grep -abo NUMPY "$1.npz" | cut -d: -f1) + 127))  # behind a header of 128 bytes
  { cmp -l -i "$begin" -n $bytes "$1.npz" "$2.npz" || [[ $? -eq 1 ]]; } | awk -v bytes=$bytes '
      function value(octal) { return int(octal / 100) * 64 + int(octal / 10) % 10 * 8 + octal % 10 }
      { d = value($2) - value($3); d = d < 0 ? -d : d; if (d > worst) worst = d }
      END { printf "RESULT %d of %d values of pictures differ, by at most %d\n", NR, bytes, worst; exit worst > 1 }'
}

# run_part SET CPU PART
run_part() {
  local arm="qemu-aarch64 -L $sysroot -cpu $2 $build/bin/" out=$work/$1
  case $3 in
    fixtures)
      ${arm}ditverify tests/golden/{blocks,conv,diffusion,dit_tiny,flow,ops,pos_embed,samplers,tread,vae_small}.safetensors ;;
    f32 | bf16)
      # f32: sums of some hundred numbers in another order, and logarithms of another C library, are wrong by some 1e-7.
      # bf16: a number that is rounded to the other side is off by 2^-8, and the loss a mean of 6,144 of them: 5e-5 per
      # step.
      local most=1e-6
      [[ $3 == f32 ]] || most=2e-4
      train "$out/$3" "$3" "$arm"
      grep -q "^kernels: $1" "$out/$3/topology.txt"
      train "$out/$3_x86" "$3" build/release/bin/
      same_losses "$out/$3" "$out/$3_x86" $most 1
      draw "$out/$3" "$out/$3_images" "$arm"
      draw "$out/$3" "$out/$3_images_x86" build/release/bin/
      same_pictures "$out/$3_images" "$out/$3_images_x86"
      train "$out/$3_resumed" "$3" "$arm" --resume "$out/$3/checkpoints/step_00000010" --set parallel.threads=2
      same_losses "$out/$3_resumed" "$out/$3" 0 11
      cmp "$out/$3"{,_resumed}/checkpoints/step_00000020/model.safetensors ;;
    ranks)
      train "$out/ranks" f32 "mpirun -np 2 --oversubscribe --bind-to none --mca btl_vader_single_copy_mechanism none $arm"
      train "$out/ranks_x86" f32 build/release/bin/
      same_losses "$out/ranks" "$out/ranks_x86" 1e-5 1 ;;
    *)
      local cases=()  # other cases of these two ask the machine, which an emulator is not
      [[ $3 != platform ]] || cases=(-# "[#cpu_test]")
      [[ $3 != memory ]] || cases=(-# "[#stream_copy_test]")
      DITRAIN_TEST_ONLY=$1 ${arm%bin/}tests/test_"$3" "${cases[@]}" ;;
  esac
}
# report SET CPU PART: a line, and all that the part said if it failed.
report() {
  local log=$work/$1.$3.log status=0 said
  mkdir -p "$work/$1"
  bash -euo pipefail -c 'run_part "$@"' run_part "$@" >"$log" 2>&1 || { status=1; cat "$log"; }
  said=$(grep -oP '^(RESULT \K.*|All tests passed.*|test cases:.*|.* fixtures passed)' "$log" | paste -sd ';')
  printf '%-18s %-10s %s\n' "$1" "$3" "$([[ $status -eq 0 ]] || echo FAILED) $said"
  return $status
}
export -f train draw same_losses same_pictures run_part report

for part in $parts; do
  while read -r set cpu; do
    [[ $# -eq 0 || " $* " == *" $set "* ]] || continue
    [[ $part != ranks || $set == baseline ]] || continue
    printf '%s\0' "$set" "$cpu" "$part"
  done <<<"$sets"
done | xargs -0 -r -n 3 -P "$(nproc)" bash -c 'report "$@"' report
