#!/usr/bin/env bash
# Fuzzes the readers of files from strangers with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer.
#   scripts/fuzz.sh [SECONDS_EACH] [pytorch|pickle|npz|image|raster ...]        (default: 600 seconds each, all)
# Builds into build/fuzz, keeps what it learns in build/fuzz/corpus_TARGET, and fails if a reader does anything but give
# values or refuse; the input is then in build/fuzz/findings_TARGET. Needs clang-19 and libclang-rt-19-dev.
# STEP=build builds only.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "fuzz: got $seconds, expected seconds, then targets" >&2; exit 2; }
shift || true
targets=("$@")
[[ ${#targets[@]} -gt 0 ]] || targets=(pytorch pickle npz image raster)
./scripts/install_packages.sh clang-19 libclang-rt-19-dev libgdal-dev

out=build/fuzz
mkdir -p $out/objects
flags=(-std=c++20 -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -DFMT_SHARED -DSPDLOG_COMPILED_LIB
       -DSPDLOG_FMT_EXTERNAL -DSPDLOG_SHARED_LIB -Iinclude -isystem /usr/include/stb -isystem /usr/include/gdal)
objects=() raster_objects=()
for source in src/weights/{zip_file,pickle,pytorch_storage,pytorch_file,npy_header,npz_file}.cpp \
              src/weights/{safetensors,safetensors_header}.cpp src/files/{mapped_file,crc32,files}.cpp \
              src/images/{image_read,image_jpeg,raster,pixel_type,jp2_check}.cpp \
              src/base/{error,log,temporary_folder,text}.cpp; do
  object=$out/objects/$(basename "$source" .cpp).o
  case $source in
    */raster.cpp | */pixel_type.cpp | */jp2_check.cpp | */temporary_folder.cpp) raster_objects+=("$object") ;;
    *) objects+=("$object") ;;
  esac
  extra=()
  [[ $source == *image_read* ]] && extra=(-fwrapv)
  if [[ ! $object -nt $source ]]; then
    clang++-19 "${flags[@]}" "${extra[@]}" -fsanitize=fuzzer-no-link -c "$source" -o "$object"
  fi
done
for target in "${targets[@]}"; do
  more=()
  [[ $target == raster ]] && more=("${raster_objects[@]}" -lgdal)
  clang++-19 "${flags[@]}" -fsanitize=fuzzer -Itests "tests/fuzz/${target}_fuzz.cpp" "${objects[@]}" "${more[@]}" \
    -lfmt -lspdlog -lz -ljpeg -o "$out/fuzz_$target"
done
[[ ${STEP:-} == build ]] && exit 0

declare -A seeds=([pytorch]=tests/golden/pt_files [pickle]=tests/fuzz/corpus/pickle [npz]=tests/golden/npz_files [image]=tests/fuzz/corpus/image
                [raster]=tests/fuzz/corpus/raster)
for target in "${targets[@]}"; do
  echo "== $target: $seconds seconds"
  mkdir -p "$out/corpus_$target" "$out/findings_$target"
  "$out/fuzz_$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$out/findings_$target/" "$out/corpus_$target" "tests/fuzz/corpus/$target" "${seeds[$target]}" \
    2>&1 | grep -vE "^#[0-9]+\s|# Uses:|Recommended dictionary|recommended dictionary" | tail -40
done
