#!/usr/bin/env bash
# How fast a large scene becomes tiles: ditdata make with one thread and with two, beside gdal_translate of the same scene.
#   scripts/bench_tiles.sh [SIDE] [FOLDER]       (default: 10980 pixels, 13 bands of u16 in Deflate, and a folder of its own)
# Prints seconds and peak memory of each. Needs gdal-bin, time, and 10 GB of disk for the default.
set -euo pipefail
folder=$([[ $# -lt 2 ]] && mktemp -d || realpath -m -- "$2")  # before cd: relative to where the caller is
cd "$(dirname "$0")/.."
side=${1:-10980}
[[ $# -ge 2 ]] || trap 'rm -rf "$folder"' EXIT
./scripts/install_packages.sh libgdal-dev gdal-bin time
./scripts/build.sh release ditdata
mkdir -p "$folder/scenes"
scene=$folder/scenes/scene.tif
if [[ ! -e $scene ]]; then
  # Thirteen views of the same noise, eight bits of it in numbers of sixteen: Deflate has work to do.
  head -c $((side * side + 13 * 997)) /dev/urandom >"$folder/noise.raw"
  {
    echo "<VRTDataset rasterXSize=\"$side\" rasterYSize=\"$side\">"
    for band in {1..13}; do
      echo "<VRTRasterBand dataType=\"Byte\" band=\"$band\" subClass=\"VRTRawRasterBand\"><Description>B$band</Description>"
      echo "<SourceFilename relativeToVRT=\"1\">noise.raw</SourceFilename><ImageOffset>$((band * 997))</ImageOffset>"
      echo "<PixelOffset>1</PixelOffset><LineOffset>$side</LineOffset></VRTRasterBand>"
    done
    echo "</VRTDataset>"
  } >"$folder/noise.vrt"
  gdal_translate -q -ot UInt16 -co TILED=YES -co BLOCKXSIZE=512 -co BLOCKYSIZE=512 -co COMPRESS=DEFLATE -co BIGTIFF=YES \
    "$folder/noise.vrt" "$scene"
fi
for threads in 1 2; do
  rm -rf "$folder/tiles"
  echo "== ditdata make, $threads thread(s)"
  /usr/bin/time -f "%e s, peak %M KiB" build/release/bin/ditdata make --from "$folder/scenes" --tile 256 --threads $threads \
    --out "$folder/tiles" | tail -n 1
done
echo "== gdal_translate of the same scene, uncompressed"
/usr/bin/time -f "%e s, peak %M KiB" gdal_translate -q -co TILED=YES -co BIGTIFF=YES "$scene" "$folder/copy.tif"
rm -f "$folder/copy.tif"
