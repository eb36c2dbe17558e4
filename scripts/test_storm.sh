#!/usr/bin/env bash
# A storm: runs are killed again and again, at any moment and in many ways, and must lose nothing.
#   scripts/test_storm.sh [KILLS]        (default 1000, about an hour on two cores; BIN=folder of the programs)
# SEED=N repeats the choices of an earlier storm, which prints its seed; the moments vary with the machine all the same.
# For 1, 2 and 3 ranks, with and without shards of the optimiser, a run that is killed KILLS times in all has to end with
# the losses and the files of one that nobody disturbed. Between the lives: no checkpoint that is damaged, none that is
# lost, no line of metrics twice. Then second writers, flipped bits and a disk that fills up.
# Prints a table; exit 1 if anything was lost.
set -euo pipefail
kills=${1:-1000}
seed=${SEED:-$(((RANDOM << 15) | RANDOM))}
RANDOM=$seed
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${BIN:-$root/build/release/bin}
[[ -x $bin/ditrain && $kills =~ ^[0-9]+$ && $seed =~ ^[0-9]+$ ]] || { sed -n '2,8p' "$0"; exit 2; }
[[ $(id -u) -eq 0 ]] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
PATH=/usr/bin:$PATH
work=${STORM_WORK:-$(mktemp -d)}  # the variable: of a storm that starts itself again, see full_disk
mounted=""
cleanup() {
  [[ -z ${STORM_WORK:-} ]] || return 0
  pkill -KILL -f -- "--out $work" 2>/dev/null || true
  [[ -z $mounted ]] || umount "$mounted" || true
  rm -rf "$work"
}
trap cleanup EXIT

model=(model.name=custom model.input_size=16 model.in_channels=3 model.hidden_size=64 model.depth=3 model.num_heads=4
       model.patch_size=4 model.num_classes=8 data.kind=shapes train.global_batch=6 dist.bucket_mib=0.05
       parallel.threads=1 sample.every_steps=0 eval.every_steps=0 log.every_steps=1000)
often=(checkpoint.every_steps=1 checkpoint.keep_last=3 checkpoint.buffer_gib=0.0001)
echo "model: {name: custom}" >"$work/storm.yaml"

command -v pgrep >/dev/null || { echo "test_storm: pgrep is missing, by which it finds ranks: apt-get install procps" >&2; exit 2; }
set -E  # functions have the trap, too
exec 4>&2 2>/dev/null  # for complaints; the shell's own remarks on killed jobs go nowhere
trap 'echo "stopped in line $LINENO" >&4' ERR
tried=0 lost=0 hangs=0 launcher_hangs=0
declare -A count=()
complain() {
  echo "LOST: $*" >&4
  lost=$((lost + 1))
}

# set_job OUT RANKS SHARDS STEPS [SETTING...]: sets the array `job`.
set_job() {
  local out=$1 ranks=$2 shards=$3 steps=$4 setting
  shift 4
  job=()
  [[ $ranks -eq 1 ]] || job=(mpirun -np "$ranks" --oversubscribe --bind-to none)
  job+=("$bin/ditrain" --config "$work/storm.yaml" --out "$out" --resume auto)
  for setting in "${model[@]}" "train.steps=$steps" "dist.shard_optimizer=$shards" "$@"; do job+=(--set "$setting"); done
}

# Step and loss of each line, as text.
losses() { sed -E 's/^\{"step":([0-9]+),"loss":([^,]+),.*/\1 \2/' "$1/metrics.jsonl"; }
newest() {
  local name=none
  for folder in "$1"/checkpoints/step_*; do [[ -d $folder ]] && name=${folder##*_}; done
  echo "$name"
}
# draw N: sets `drawn` to one of 0 to N - 1. No command substitution: a subshell has random numbers of its own.
draw() { drawn=$((((RANDOM << 15) | RANDOM) % $1)); }
ranks_of() { pgrep -f -- "^$bin/ditrain .*--out $1 " || true; }

# Waits up to 30 s for processes to be gone.
gone() {
  local out=$1 launcher=$2 i
  for ((i = 0; i < 300; ++i)); do
    if ! kill -0 "$launcher" 2>/dev/null && [[ -z $(ranks_of "$out") ]]; then return 0; fi
    sleep 0.1
  done
  return 1
}

# A hang is ours if a rank is still there. mpirun of Open MPI 4.1 with PMIx 4.2 now and then blocks in
# PMIx_server_finalize when all of its ranks are gone: that is counted for itself.
report_hang() {
  local out=$1 launcher=$2 pid
  if [[ -n $(ranks_of "$out") ]]; then
    hangs=$((hangs + 1))
  else
    launcher_hangs=$((launcher_hangs + 1))
  fi
  echo "HANG after $3: still there after 30 s; the last lines of the log:" >&4
  tail -3 "$out.text" >&4
  for pid in $(ranks_of "$out") "$launcher"; do
    kill -0 "$pid" 2>/dev/null || continue
    echo "  $(ps -o pid=,stat=,wchan:24=,args= -p "$pid" | cut -c1-100)" >&4
    command -v gdb >/dev/null && gdb -p "$pid" -batch -ex "thread apply all bt 8" 2>/dev/null | sed 's/^/    /' >&4
    kill -KILL "$pid" 2>/dev/null || true
  done
  kill -KILL "$launcher" 2>/dev/null || true
  wait "$launcher" 2>/dev/null || true
}

# One life of a run: started, struck at a random moment.
life() {
  local out=$1 ranks=$2 shards=$3 steps=$4 before after kind launcher pids code=0 wait_ms victim at_once
  draw 1000; wait_ms=$drawn
  draw 2; [[ $drawn -eq 0 ]] || { draw 1000; wait_ms=$((wait_ms + drawn)); }
  draw 6; kind=$drawn
  draw "$ranks"; victim=$drawn
  draw 2; at_once=$drawn
  before=$(newest "$out")
  set_job "$out" "$ranks" "$shards" "$steps" "${often[@]}"
  "${job[@]}" >"$out.text" 2>&1 &
  launcher=$!
  sleep "$((wait_ms / 1000)).$(printf %03d $((wait_ms % 1000)))"
  mapfile -t pids < <(ranks_of "$out")
  # The launcher may not have come to its ranks yet: nobody to kill, and a signal to pass on would be lost.
  while [[ $kind != [23] && ${#pids[@]} -lt $ranks ]] && kill -0 "$launcher" 2>/dev/null; do
    sleep 0.02
    mapfile -t pids < <(ranks_of "$out")
  done
  case $kind in
    0) kind="kill -9 of one rank" ; [[ ${#pids[@]} -eq 0 ]] || kill -KILL "${pids[$((victim % ${#pids[@]}))]}" 2>/dev/null || true ;;
    1) kind="kill -9 of all ranks" ; [[ ${#pids[@]} -eq 0 ]] || kill -KILL "${pids[@]}" 2>/dev/null || true ;;
    2|3) kind="kill -9 of the launcher" ; kill -KILL "$launcher" 2>/dev/null || true ;;
    4) kind="SIGTERM" ; kill -TERM "$launcher" 2>/dev/null || true ;;
    5) kind="SIGUSR2" ; kill -USR2 "$launcher" 2>/dev/null || true ;;
  esac
  # After half of the kills of launchers the next life comes at once, as a script would start it.
  if [[ $kind == *launcher && $at_once -eq 0 ]]; then
    wait "$launcher" 2>/dev/null || code=$?
  elif ! gone "$out" "$launcher"; then
    report_hang "$out" "$launcher" "$kind"
  else
    wait "$launcher" 2>/dev/null || code=$?
  fi
  [[ $((++tried % 50)) -ne 0 ]] || echo "$tried of $kills, ${SECONDS} s" >&4
  count[$kind]=$((${count[$kind]:-0} + 1))
  # A run that was about to end by itself is as good.
  [[ $code -ne 2 ]] || { complain "exit 2 after $kind"; cat "$out.text" >&4; }
  if grep -qE 'internal check failed|terminate called|Segmentation fault|Bus error' "$out.text"; then
    complain "a crash beside $kind"
    cat "$out.text" >&4
  fi
  # A run that has begun writes a checkpoint and ends with 75, or was at its end.
  [[ $kind != SIGUSR2 || $code -eq 0 || $code -eq 75 ]] || ! grep -qE ': (new run|resuming) ' "$out.text" ||
    { complain "exit $code after SIGUSR2"; cat "$out.text" >&4; }
  after=$(newest "$out")
  [[ $before == none || ($after != none && 10#$after -ge 10#$before) ]] || complain "checkpoint $before is gone after $kind, $after is left"
}

check_folder() {
  local out=$1 text
  [[ $(newest "$out") == none ]] && return
  if ! text=$("$bin/ditverify" --checkpoint "$out" 2>&1); then complain "$out: $text"; fi
}

# Kills a run so often, then lets it end, and holds it against the undisturbed one.
storm() {
  local ranks=$1 shards=$2 n=$3 out=$work/storm_$1_$2 whole=$work/whole_$1_$2 steps=$((40 + 12 * $3)) i file
  set_job "$whole" "$ranks" "$shards" "$steps" checkpoint.every_steps=0
  "${job[@]}" >"$whole.text" 2>&1 || { cat "$whole.text" >&4; complain "the undisturbed run failed"; return; }
  mkdir -p "$out"
  for ((i = 0; i < n; ++i)); do
    life "$out" "$ranks" "$shards" "$steps"
    if [[ $((i % 10)) -eq 9 ]]; then
      gone "$out" 999999999 || report_hang "$out" 999999999 "a life"
      check_folder "$out"
    fi
  done
  set_job "$out" "$ranks" "$shards" "$steps" checkpoint.every_steps=0
  "${job[@]}" >"$out.text" 2>&1 || { cat "$out.text" >&4; complain "$out does not end"; }
  if ! diff -q <(losses "$out") <(losses "$whole") >/dev/null; then
    complain "$ranks ranks, shards $shards: other losses than those of an undisturbed run"
    diff <(losses "$out") <(losses "$whole") | head -5 >&4
  fi
  for file in model ema optimizer; do
    cmp -s "$out/checkpoints/latest/$file.safetensors" "$whole/checkpoints/latest/$file.safetensors" ||
      complain "$ranks ranks, shards $shards: $file differs"
  done
  check_folder "$out"
}

# Second writers on a run that lives: refused, and nothing of theirs is found.
writers() {
  local n=$1 out=$work/writers first i refused=0 lines
  set_job "$out" 1 false 100000 "${often[@]}"
  "${job[@]}" >"$out.text" 2>&1 &
  first=$!
  for ((i = 0; i < 100; ++i)); do [[ -s $out/metrics.jsonl ]] && break; sleep 0.1; done
  for ((i = 0; i < n; ++i)); do
    "$bin/ditrain" --config "$work/storm.yaml" --out "$out" "${job[@]:7}" >"$out.second" 2>&1 && complain "a second writer ran"
    grep -q "is used by a run that is alive" "$out.second" && refused=$((refused + 1))
  done
  kill -USR2 $first || complain "the first writer has ended"
  wait $first || true
  lines=$(losses "$out" | cut -d' ' -f1)
  [[ $(sort -nu <<<"$lines") == "$lines" ]] || complain "lines of two runs in one file of metrics"
  [[ $refused -eq $n ]] || complain "$((n - refused)) of $n second writers were not refused"
  writers_refused=$refused
  check_folder "$out"
}

# Bits of all files of a checkpoint.
flips() {
  local n=$1 folder file size at byte i found=0
  folder=$(echo "$work"/writers/checkpoints/step_* | tr ' ' '\n' | tail -1)
  local files=(model.safetensors ema.safetensors optimizer.safetensors state.json)
  for ((i = 0; i < n; ++i)); do
    file=$folder/${files[$((i % 4))]}
    size=$(stat -c %s "$file")
    draw "$size"; at=$drawn
    byte=$(od -An -tu1 -j "$at" -N 1 "$file")
    printf "\\x$(printf %x $((byte ^ (1 << (RANDOM % 8)))))" | dd of="$file" bs=1 seek="$at" conv=notrunc status=none
    if "$bin/ditverify" --checkpoint "$folder" >/dev/null 2>&1; then
      complain "a flipped bit of byte $at of ${file##*/} was not found"
    else
      found=$((found + 1))
    fi
    printf "\\x$(printf %x "$byte")" | dd of="$file" bs=1 seek="$at" conv=notrunc status=none
  done
  flips_found=$found
  check_folder "$work/writers"
}

# A disk that fills up while checkpoints are written, and gets space again: a small file system, which a user without
# rights mounts in a namespace of their own.
full_disk() {
  local disk=$work/disk
  mkdir -p "$disk"
  if mount -t tmpfs -o size=200m tmpfs "$disk" 2>/dev/null; then
    mounted=$disk
    fill "$disk"
    umount "$disk" && mounted=""
  elif unshare --user --map-root-user --mount true 2>/dev/null; then
    if ! STORM_WORK=$work unshare --user --map-root-user --mount "$0" 0 2>&4; then complain "see above"; fi
    full=$(cat "$work/full.result" 2>/dev/null || echo "failed")
  else
    full="this system lets nobody mount a tmpfs: not tried"
  fi
}

fill() {
  local disk=$1 out=$1/run
  fallocate -l 190m "$disk/filler"
  set_job "$out" 2 true 30 "${often[@]}"
  "${job[@]}" >"$work/full.text" 2>&1 && complain "a run on a full disk says that it is done"
  [[ -d $out/checkpoints ]] && check_folder "$out"
  rm "$disk/filler"
  "${job[@]}" >"$work/full.text" 2>&1 || { complain "the run did not resume after the disk had free space"; tail -3 "$work/full.text" >&4; }
  check_folder "$out"
  [[ $(newest "$out") == 00000030 ]] || complain "the run on the disk that was full did not end"
  full="went on after it had free space, to the last step"
}

if [[ -n ${STORM_WORK:-} ]]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export TMPDIR=$work  # Open MPI's folder of the real root is another user's
  mount -t tmpfs -o size=200m tmpfs "$work/disk"
  fill "$work/disk"
  echo "$full, in a user namespace" >"$work/full.result"
  exit "$lost"
fi

settings=("2 true" "1 false" "3 false" "2 false" "3 true")
echo "seed: $seed" >&4
start=$SECONDS
for ((s = 0; s < ${#settings[@]}; ++s)); do
  share=$((kills / ${#settings[@]} + (s < kills % ${#settings[@]} ? 1 : 0)))
  [[ $share -eq 0 ]] || storm ${settings[$s]} "$share"
done
writers $((kills < 200 ? (kills + 4) / 5 : 200))
flips $((2 * kills))
full_disk

echo
printf '%-26s %8s\n' "struck by" "times"
for kind in "${!count[@]}"; do printf '%-26s %8d\n' "$kind" "${count[$kind]}"; done | sort
printf '%-26s %8d\n' "all" "$tried"
echo
echo "seed:           $seed"
echo "second writers: $writers_refused refused"
echo "flipped bits:   $flips_found of $((2 * kills)) found"
echo "full disk:      $full"
echo "jobs that hung: $hangs"
echo "mpirun that hung after its ranks had ended: $launcher_hangs"
echo "lost:           $lost     ($((SECONDS - start)) s)"
[[ $lost -eq 0 && $hangs -eq 0 ]]
