#!/usr/bin/env bash
# Trains on many nodes and outlives some of them. The Slurm scripts beside this one start it; without Slurm:
#   scripts/slurm/elastic.sh --hosts node1,node2,node3 --ranks-per-node 4 --cores-per-rank 38 \
#     --config configs/dit_xl2.yaml --set data.path=DIR --out runs/xl2
# Its options come first, then ditrain's flags. Before each start it asks every node for a sign of life and measures all
# that answer (ditrain --preflight). It takes the nodes that together train fastest, in a number that ditrain accepts:
# train.global_batch stays, so the ranks have to divide it. When a run ends before its last step, it says why and starts
# again from the newest checkpoint on the nodes that are left. It gives up where that cannot help: a bad config, a full
# disk, or --failures failures without a new checkpoint between them. In a Slurm job a stop by USR2 or --maxh, or too few
# nodes, queue the job again.
# Exit codes are those of ditrain: 0 done, 1 given up, 2 bad usage or input, 75 stopped early with a checkpoint.
# Signals: USR1 writes a checkpoint. USR2, TERM and INT write one and stop; after USR2 a Slurm job is queued again.
#
#   --hosts A,B|FILE          nodes, in a file the first word of each line (default: those of the Slurm job)
#   --ranks-per-node N        default: SLURM_NTASKS_PER_NODE, or else 1
#   --cores-per-rank N        default: those of SLURM_CPUS_PER_TASK; without either, mpirun binds nothing
#   --launcher srun|mpirun    default: srun in a Slurm job, mpirun elsewhere
#   --launcher-flags "..."    more words for the launcher, as "--mca btl_tcp_if_include eth0"
#   --min-nodes N             fewer than these do not train (default 1)
#   --failures N              failures in a row, without a new checkpoint, that end it (default 3)
#   --measure on|off          whether nodes are measured before each start (default on)
#   --slow-share S            a node below this share of the median rate is slow (default 0.85)
#   --limit-s S               seconds for a sign of life, and for the measurement (default 300)
#   --stall-s S               seconds without a step or checkpoint that end a run (default 3600); samples, validation
#                             and the reading of data at the start have to be shorter
#   --pause-s S               before a new start; doubles with each failure in a row (default 10)
# The program is DITRAIN, or else build/release/bin/ditrain, or else that of PATH; DITRAIN_PMI is what srun's --mpi gets
# (pmix).
set -euo pipefail
export LC_ALL=C  # numbers with a point

say() { echo "elastic: $*"; }
refuse() {
  echo "elastic: error: $*; --help lists the options" >&2
  exit 2
}
give_up() {
  say "given up: $2"
  exit "$1"
}

# --- Command line ------------------------------------------------------------------------------------------------------

hosts='' ranks_per_node=${SLURM_NTASKS_PER_NODE:-1} cores_per_rank=0 launcher_flags='' min_nodes=1 most_failures=3
measure=on slow_share=0.85 limit_s=300 stall_s=3600 pause_s=10 in_job=no launcher=mpirun
[[ -z ${SLURM_JOB_ID:-} ]] || in_job=yes launcher=srun
while [[ $# -gt 0 ]]; do
  value=${2:-}
  case $1 in
    --help | -h) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" && exit 0 ;;
    --hosts) hosts=$value ;;
    --ranks-per-node) ranks_per_node=$value ;;
    --cores-per-rank) cores_per_rank=$value ;;
    --launcher) launcher=$value ;;
    --launcher-flags) launcher_flags=$value ;;
    --min-nodes) min_nodes=$value ;;
    --failures) most_failures=$value ;;
    --measure) measure=$value ;;
    --slow-share) slow_share=$value ;;
    --limit-s) limit_s=$value ;;
    --stall-s) stall_s=$value ;;
    --pause-s) pause_s=$value ;;
    *) break ;;
  esac
  [[ -n $value && ($1 == --launcher-flags || $value != --*) ]] || refuse "$1 has no value"
  shift 2
done
flags=("$@") out=''
for ((i = 0; i < ${#flags[@]}; ++i)); do
  case ${flags[i]} in
    --out) out=${flags[i + 1]:-} ;;
    --out=*) out=${flags[i]#--out=} ;;
    --resume | --resume=*) refuse "ditrain's --resume is set here: leave it out" ;;
    --hosts | --ranks-per-node | --cores-per-rank | --launcher | --launcher-flags | --min-nodes | --failures | \
      --measure | --slow-share | --limit-s | --stall-s | --pause-s)
      refuse "elastic's options stand before ditrain's flags: ${flags[i]} comes after ${flags[0]}" ;;
  esac
done
[[ -n $out ]] || refuse "--out DIR is missing"
[[ $launcher == srun || $launcher == mpirun ]] || refuse "--launcher is srun or mpirun; got $launcher"
[[ $measure == on || $measure == off ]] || refuse "--measure is on or off; got $measure"
[[ $slow_share =~ ^[01](\.[0-9]+)?$ ]] || refuse "--slow-share is a share such as 0.85; got $slow_share"
for number in "$ranks_per_node" "$min_nodes" "$most_failures" "$limit_s" "$stall_s"; do
  [[ $number =~ ^[1-9][0-9]*$ ]] || refuse "a whole number from 1 is expected; got $number"
done
[[ $cores_per_rank =~ ^[0-9]+$ && $pause_s =~ ^[0-9]+$ ]] || refuse "--cores-per-rank and --pause-s are whole numbers"
program=${DITRAIN:-build/release/bin/ditrain}
[[ -x $program || -n ${DITRAIN:-} ]] || program=$(command -v ditrain || echo "$program")  # installed
[[ -x $program ]] || refuse "there is no program $program; set DITRAIN"
# --cpus-per-task counts hardware threads, PE and --cores-per-rank count cores.
threads=$({ LC_ALL=C lscpu 2>/dev/null || true; } | sed -n 's/^Thread(s) per core: *\([1-9][0-9]*\)$/\1/p')
threads=${threads:-1}
cpus_per_rank=$((cores_per_rank * threads))
if [[ $cores_per_rank -eq 0 && -n ${SLURM_CPUS_PER_TASK:-} ]]; then
  cpus_per_rank=$SLURM_CPUS_PER_TASK cores_per_rank=$((SLURM_CPUS_PER_TASK / threads))
  [[ $cores_per_rank -gt 0 ]] || cores_per_rank=1
fi
if [[ -f $hosts ]]; then
  mapfile -t nodes < <(awk '{ sub(/[:#].*/, "") } NF && !seen[$1]++ { print $1 }' "$hosts")
elif [[ $hosts == */* ]]; then
  refuse "--hosts: there is no file $hosts"
elif [[ -n $hosts ]]; then
  IFS=, read -ra nodes <<<"$hosts"
elif [[ $in_job == yes ]]; then
  mapfile -t nodes < <(scontrol show hostnames "${SLURM_JOB_NODELIST:?}")
else
  refuse "--hosts is missing"
fi
[[ ${#nodes[@]} -ge $min_nodes ]] || refuse "--min-nodes $min_nodes, but there are ${#nodes[@]} node(s)"

most_waits=10  # for a lock, at least 30 s each
here=$(mktemp -d)  # on a disk of this node: the run folder may hang
trap 'rm -rf "$here"' EXIT

# A rank that hangs is named by ditrain itself (dist.timeout_s), and so are a disk that hangs (checkpoint.timeout_s) and
# a rank whose weights differ (dist.verify_every). What the config sets stays.
if ! "$program" "${flags[@]}" --print-config >"$here/config" 2>"$here/refusal"; then
  why=$(tail -n 1 "$here/refusal")
  refuse "${why#ditrain: error: }"
fi
why=$(sed -n 's/^.*a run would refuse this config: //p' "$here/refusal" | head -n 1)  # a warning: the config is printed
[[ -z $why ]] || refuse "$why"
# setting SECTION KEY: its value.
setting() { awk -v s="$1:" -v k="$2:" '/^[a-z]/ { inside = $1 == s } inside && $1 == k { print $2; exit }' "$here/config"; }
train=("$program")
[[ $(setting dist timeout_s) != auto ]] || train+=(--set dist.timeout_s=600)
[[ $(setting checkpoint timeout_s) != 0 ]] || train+=(--set checkpoint.timeout_s=600)
[[ $(setting dist verify_every) != 0 || $(setting dist outer) != off ]] || train+=(--set dist.verify_every=500)
train+=("${flags[@]}")

# --- Processes that may hang -------------------------------------------------------------------------------------------

stop='' save=''  # the signal that asked for an end; whether one asked for a checkpoint
# Looks for what signals have asked for (see the end of this file).
look() {
  kill -0 $$ 2>/dev/null || exit 1  # the script was killed
  [[ -n $stop || ! -s $here/stop ]] || read -r stop <"$here/stop"
  [[ ! -e $here/save ]] || { rm -f "$here/save" && save=yes; }
}
# ended PID SECONDS: waits for a child to end; 1 if it does not in time.
ended() {
  local until=$((SECONDS + $2))
  while kill -0 "$1" 2>/dev/null; do
    [[ $SECONDS -lt $until ]] || return 1
    sleep 0.05
    look
  done
}
# Sets `status` to the exit code of a child that has a time limit of its own; a stop ends it.
finish() {
  until ended "$1" 1; do [[ -z $stop ]] || kill -TERM "$1" 2>/dev/null || true; done
  status=0
  wait "$1" || status=$?
}
# read_bounded COMMAND...: its output; what there is of it after 10 s, as on a file system that hangs.
read_bounded() {
  local text
  IFS= read -r -d '' -t 10 text < <(exec "$@" 2>/dev/null) || true
  printf '%s' "$text"
}

# launch "NODE..." RANKS-PER-NODE COMMAND...: sets the array `job`.
launch() {
  local count list
  local -a names words
  read -ra names <<<"$1"
  read -ra words <<<"$launcher_flags"
  count=${#names[@]}
  if [[ $launcher == srun ]]; then
    list=$(IFS=, && echo "${names[*]}")
    # --wait: a rank that was killed ends the job 20 s later, and srun names it.
    job=(srun "--mpi=${DITRAIN_PMI:-pmix}" "--nodelist=$list" "--nodes=$count" "--ntasks=$((count * $2))"
         "--ntasks-per-node=$2")
    [[ $cores_per_rank -eq 0 ]] || job+=(--cpu-bind=cores "--cpus-per-task=$cpus_per_rank")
    job+=(--wait=20)
  else
    list=$(printf ",%s:$2" "${names[@]}")
    job=(mpirun --host "${list#,}" -np $((count * $2)))
    if [[ $cores_per_rank -gt 0 ]]; then
      job+=(--map-by "ppr:$2:node:PE=$cores_per_rank" --bind-to core)
    else
      job+=(--bind-to none)
    fi
  fi
  job+=("${words[@]}" "${@:3}")
}

# --- What is known of the nodes and of the run -------------------------------------------------------------------------

declare -A left_out=() strikes=() share=()
# Sets `node` to the one of `nodes` that calls itself HOST, with or without its domain; 1 if there is none.
find_node() {
  for node in "${nodes[@]}"; do
    [[ $node != "$1" && (${node%%.*} != "${1%%.*}" || $node =~ ^[0-9.]+$) ]] || return 0
  done
  return 1
}

# Sets the array `alive`: nodes that are not left out and on which the program starts.
ask_nodes() {
  local i
  local -a asked=() pids=()
  alive=() silent=()
  for node in "${nodes[@]}"; do
    [[ -z ${left_out[$node]:-} ]] || continue
    launch "$node" 1 "$program" --version
    timeout -k 5 "$limit_s" "${job[@]}" >"$here/asked.$node" 2>&1 &
    asked+=("$node") pids+=($!)
    [[ ${#pids[@]} -lt 32 ]] || ended "${pids[-32]}" "$limit_s" || true  # not all at once
  done
  for ((i = 0; i < ${#asked[@]}; ++i)); do
    node=${asked[i]}
    finish "${pids[i]}"
    if [[ $status -eq 0 ]]; then
      alive+=("$node")
    elif [[ -z $stop ]]; then  # or it is we who ended the question
      silent+=("$node")
      say "$node does not answer: $(grep -vE '^[-[:space:]]*$|lacks support for cpu binding' "$here/asked.$node" |
        head -n 1 | cut -c 1-160)"
    fi
  done
}

# Sets `share`, in percent of the median rate, of slow nodes. 1 if they could not be measured.
measure_nodes() {
  local report=$out/preflight.json host percent why
  share=()
  [[ $measure == on && ${#alive[@]} -gt 1 ]] || return 0
  read_bounded mkdir -p "$out"
  read_bounded rm -f "$report"
  launch "${alive[*]}" "$ranks_per_node" "$program" "${flags[@]}" --preflight "$report" --slow-share "$slow_share"
  timeout -k 10 "$limit_s" "${job[@]}" >"$here/preflight" 2>&1 &
  finish $!
  read_bounded cat "$report" >"$here/report"
  if ! grep -q '^"problems"' "$here/report"; then
    why=$(grep -m 1 'ditrain: error:' "$here/preflight" || echo "exit code $status")
    [[ $status -ne 2 ]] || give_up 2 "$why"
    say "the nodes could not be measured: $why"
    return 1
  fi
  grep '^warning:' "$here/preflight" | sort -u || true
  while read -r host percent; do
    if find_node "$host"; then share[$node]=$percent; else say "$host is slow, but is no name in the list of nodes"; fi
  done < <(sed -n 's/^{"host":"\([^"]*\)".*"share":\([0-9.e+-]*\),"slow":true}.*/\1 \2/p' "$here/report" |
    awk '{ percent = int(100 * $2); print $1, percent < 1 ? 1 : percent }')
}

no_answer() { if [[ $1 -eq 124 ]]; then echo "no answer within $limit_s s"; else echo "exit code $1"; fi; }
# fits COUNT: whether ditrain takes as many nodes. What it said of the first count that it refused stays; `unasked` says
# why it could not be asked, as where a file system is slow to open the data.
fits() {
  local code=0
  SLURM_NNODES=$1 SLURM_NTASKS_PER_NODE=$ranks_per_node timeout -k 5 "$limit_s" "${train[@]}" \
    --explain-memory --ranks $(($1 * ranks_per_node)) >"$here/plan" 2>&1 || code=$?
  [[ $code -ne 0 ]] || return 0
  if [[ $code -ne 2 ]]; then
    unasked=$(grep -m 1 'ditrain: error:' "$here/plan" || no_answer "$code")
  elif [[ ! -e $here/refusal ]]; then
    cp "$here/plan" "$here/refusal"
  fi
  return 1
}
# Sets the array `use`. Every step waits for the slowest node, so N nodes train at N times the share of the slowest. 1 if
# ditrain could not be asked.
choose_nodes() {
  local count rate best=0 unasked='' slow=0 idle refusal
  local -a sorted
  mapfile -t sorted < <(for i in "${!alive[@]}"; do echo "${share[${alive[i]}]:-100} $i ${alive[i]}"; done |
    sort -k1,1nr -k2,2n | cut -d ' ' -f 3)
  use=()
  rm -f "$here/refusal"
  for ((count = ${#sorted[@]}; count >= min_nodes && 100 * count > best && ${#unasked} == 0; --count)); do
    rate=$((count * ${share[${sorted[count - 1]}]:-100}))
    if [[ $rate -gt $best ]] && fits "$count"; then best=$rate use=("${sorted[@]:0:count}"); fi
  done
  if [[ ${#use[@]} -eq 0 && -n $unasked ]]; then
    say "whether ditrain takes the nodes is not known: $unasked"
    return 1
  fi
  [[ ${#use[@]} -gt 0 || ! -e $here/refusal ]] || give_up 2 "$(tail -n 1 "$here/refusal")"
  for node in "${!share[@]}"; do
    [[ " ${use[*]} " != *" $node "* ]] || continue
    say "$node is left out: slow, at ${share[$node]} % of the median"
    [[ " ${alive[*]} " != *" $node "* ]] || slow=$((slow + 1))
  done
  idle=$((${#alive[@]} - ${#use[@]} - slow))
  if [[ $idle -gt 0 && -e $here/refusal ]]; then
    refusal=$(tail -n 1 "$here/refusal")
    say "$idle node(s) stay idle: ${refusal#*error: }"
  fi
}

# The last step in the metrics, and the newest checkpoint; 0 if there is none.
last_step() {
  local step
  step=$(read_bounded tail -n 1 "$out/metrics.jsonl" | sed -n 's/^{"step":\([0-9]*\),.*/\1/p')
  echo "${step:-0}"
}
newest_checkpoint() {
  local step
  step=$(read_bounded readlink "$out/checkpoints/latest" | sed -n 's/^step_0*\([0-9]\{1,\}\)$/\1/p')
  # A file system without symlinks has none.
  [[ -n $step ]] ||
    step=$(read_bounded ls "$out/checkpoints" | sed -n 's/^step_0*\([0-9]\{1,\}\)$/\1/p' | sort -n | tail -n 1)
  echo "${step:-0}"
}

# requeue CODE WHY: queues the Slurm job again, on other nodes than those that failed; without Slurm it ends.
requeue() {
  [[ $in_job == yes ]] || { say "stopped: $2; the same command goes on" && exit "$1"; }
  local bad=("${!left_out[@]}" "${silent[@]}") file=$out/.excluded_$SLURM_JOB_ID before
  # The list replaces the one of --exclude, so that is part of it: as the first life finds it, without nodes of lives.
  before=$(read_bounded cat "$file")
  if [[ $before != list=* ]]; then
    before=list=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.*ExcNodeList=\([^ ]*\).*/\1/p' || true)
    read_bounded mkdir -p "$out"
    read_bounded sh -c 'echo "$1" >"$2"' sh "$before" "$file"
  fi
  before=${before#list=}
  [[ -z $before || $before == '(null)' ]] || bad=("$before" "${bad[@]}")
  trap '' TERM  # Slurm ends this script now
  scontrol requeue "$SLURM_JOB_ID" ||
    { say "stopped: $2; it cannot be queued again, the same command goes on" && exit "$1"; }
  say "queued again: $2"
  # Slurm takes a list for a job that waits. Where it refuses, the next life finds these nodes by itself.
  [[ ${#bad[@]} -eq 0 ]] ||
    scontrol update "JobId=$SLURM_JOB_ID" "ExcNodeList=$(IFS=, && echo "${bad[*]}")" 2>/dev/null || true
  exit "$1"
}
# Queues a job again for other nodes, but not for ever.
too_few() {
  local step before='' count=0 file=$out/.requeues
  step=$(newest_checkpoint)
  read -r before count < <(read_bounded cat "$file"; echo) || true
  [[ $before == "$step" ]] || count=0
  [[ $count -lt $most_failures ]] || give_up 1 "too few nodes, after $count times in the queue without a new checkpoint"
  if [[ $in_job == yes ]]; then
    read_bounded mkdir -p "$out"
    read_bounded sh -c 'echo "$1" >"$2"' sh "$step $((count + 1))" "$file"
    [[ $(read_bounded cat "$file") == "$step $((count + 1))" ]] ||
      give_up 1 "too few nodes, and $file, which counts the times in the queue, cannot be written"
  fi
  requeue 1 "fewer than $min_nodes node(s) are left"
}

# --- A life of the run -------------------------------------------------------------------------------------------------

# Politely, then with all that Slurm knows of.
end_launcher() {
  local step
  kill -TERM "$1" 2>/dev/null || true
  ended "$1" 20 && return
  if [[ $in_job == yes ]]; then
    for step in $(squeue --noheader --steps "--jobs=$SLURM_JOB_ID" --format=%i || true); do
      [[ ! $step =~ \.[0-9]+$ ]] || scancel --signal=KILL "$step" || true
    done
  fi
  kill -KILL "$1" 2>/dev/null || true
  ended "$1" 20 || true
}

# Sets `status` and `stalled`.
train_once() {
  local errors tee_pid child progress='' now last=$SECONDS next=$SECONDS told=no
  status=1 stalled=no save=''
  launch "${use[*]}" "$ranks_per_node" "${train[@]}" --resume auto
  exec {errors}> >(exec tee "$here/errors" >&2)
  tee_pid=$!
  "${job[@]}" 2>&"$errors" &
  child=$! running=$!
  exec {errors}>&-
  until ended "$child" 1; do
    # srun and mpirun pass these two to the ranks; TERM would end them at once.
    if [[ -n $save ]]; then save='' && { kill -USR1 "$child" 2>/dev/null || true; }; fi
    if [[ -n $stop && $told == no ]]; then told=yes && { kill -USR2 "$child" 2>/dev/null || true; }; fi
    [[ $SECONDS -ge $next ]] || continue
    next=$((SECONDS + stall_s / 20 + 1))
    now="$(last_step) $(newest_checkpoint)"
    [[ $now == "$progress" ]] || { progress=$now && last=$SECONDS; }
    [[ $((SECONDS - last)) -gt $stall_s ]] || continue
    stalled=yes
    end_launcher "$child"
    break
  done
  if ! kill -0 "$child" 2>/dev/null; then
    running=''
    status=0
    wait "$child" || status=$?
  fi
  ended "$tee_pid" 2 || true  # a rank that cannot be killed may hold it open
}

# Why the run ended, in a line.
reason() {
  [[ $stalled == no ]] || { echo "no step and no checkpoint for $stall_s s" && return; }
  { grep -m 1 'ditrain: error:' "$here/errors" ||
    grep -m 1 -E 'exited on signal|tasks? [0-9,-]*: (Killed|Seg|Bus|Abort|Illegal)|ode failure|lost communication' \
      "$here/errors" || echo "exit code $status"; } | cut -c 1-300
}
# The host to which launcher or ditrain give the fault, if any.
blamed_host() {
  local host disks
  host=$(sed -n -E -e 's/.*process rank [0-9]+ with PID [0-9]+ on node ([^ ]+) exited on signal.*/\1/p' \
    -e 's/^srun: error: ([^ :]+): tasks? [0-9,-]+: (Killed|Seg|Bus|Abort|Illegal).*/\1/p' \
    -e 's/.*(no answer at all: |differences on )rank [0-9]+ \(([^)]+)\).*/\2/p' "$here/errors" | head -n 1)
  # A disk that all of them share is nobody's.
  disks=$(sed -n -E 's/.*\[checkpoint\] the disk of ([^ ]+) has done nothing.*/\1/p' "$here/errors" | sort -u)
  [[ $disks == *$'\n'* ]] || host=${host:-$disks}
  echo "$host"
}

# Ends this script unless another start may help. Sets `locked` if the run did not even start, because the last one still
# holds its folder: a file system may find out late that the node of a lock is gone (NFS: 90 s).
judge_end() {
  locked=no
  ! grep -q 'ditrain: error:.*is used by a run that is alive' "$here/errors" || locked=yes
  case $status in
    0) say "done" && exit 0 ;;
    75)
      [[ $stop != TERM && $stop != INT ]] || { say "stopped by $stop; the same command goes on" && exit 75; }
      requeue 75 "${stop:+$stop; }a checkpoint is written" ;;
    126 | 127) give_up 1 "$launcher or $program does not start" ;;
    2) [[ $locked == yes ]] || give_up 2 "$(reason)" ;;
  esac
  ! grep -qE 'ditrain: error:.*(No space left on device|Disk quota exceeded)' "$here/errors" || give_up 1 "$(reason)"
  say "the run ended at step $(last_step): $(reason)"
}
# A node whose ranks failed twice is left out.
strike() {
  local host
  host=$(blamed_host)
  [[ -n $host ]] && find_node "$host" || return 0
  strikes[$node]=$((${strikes[$node]:-0} + 1))
  [[ ${strikes[$node]} -eq 2 ]] || return 0
  left_out[$node]=yes
  say "$node is left out: its ranks failed twice"
}
expect_no_stop() {
  look
  [[ -n $stop ]] || return 0
  [[ $stop == USR2 ]] && requeue 75 "$stop came between two starts"
  say "stopped by $stop between two starts; the same command goes on" && exit 75
}

# All lives of the run. Its launcher must not outlive it.
lives() {
  running=''
  trap 'echo $? >"$here/status"; [[ -z $running ]] || kill -TERM "$running" 2>/dev/null || true' EXIT
  say "$launcher, ${#nodes[@]} node(s), $ranks_per_node rank(s) each, run folder $out"
  failures=0 waits=0 newest=$(newest_checkpoint) silent=()
  while true; do
    locked=no
    ask_nodes
    expect_no_stop
    if [[ ${#alive[@]} -ge $min_nodes ]] && measure_nodes && choose_nodes; then
      expect_no_stop
      say "${#use[@]} of ${#nodes[@]} node(s), $((${#use[@]} * ranks_per_node)) rank(s), from step $newest: ${use[*]}"
      train_once
      judge_end
      strike
    fi
    expect_no_stop
    before=$newest newest=$(newest_checkpoint)
    [[ $newest -le $before ]] || failures=0
    if [[ $locked == yes && $waits -lt $most_waits ]]; then waits=$((waits + 1)); else waits=0 failures=$((failures + 1)); fi
    if [[ $failures -ge $most_failures ]]; then
      [[ ${#alive[@]} -ge $min_nodes ]] || too_few
      give_up 1 "$failures failures in a row without a checkpoint after step $newest"
    fi
    pause=$((pause_s << (failures > 1 ? failures - 1 : 0)))
    say "a new start from step $newest in $pause s (failure $failures of $most_failures without a new checkpoint)"
    sleep "$pause" &
    until ended $! 1; do expect_no_stop; done
  done
}

# --- Signals -----------------------------------------------------------------------------------------------------------

# bash 5.2 ends with a syntax error when a trap runs while it reads a substitution. So this shell only waits, and leaves
# what signals ask for in files, which the other one looks for. Ctrl-C is for the process group of this one.
# shellcheck disable=SC2317  # traps call it
stop_by() { [[ -s $here/stop ]] || echo "$1" >"$here/stop"; }
trap ': >"$here/save"' USR1
trap 'stop_by USR2' USR2
trap 'stop_by TERM' TERM HUP
trap 'stop_by INT' INT
set -m  # a process group of its own
lives </dev/null &
set +m
while kill -0 $! 2>/dev/null; do wait $! || true; done
status=1  # it was killed
[[ ! -s $here/status ]] || read -r status <"$here/status"
exit "$status"
