#!/usr/bin/env bash
# Runs that outlive what happens to their nodes, by scripts/slurm/elastic.sh on nodes that are played here: each has a
# host name (a UTS namespace) and an MPI daemon of its own, and TCP alone connects them.
#   scripts/test_elastic.sh [RUNS] [KIND]...     (default 20 runs of all kinds, five minutes on two free cores)
# KIND: kill (of a rank), dead (node), slow (node), eio (the disk answers with an error) or hang (it hangs for 20 s).
# SEED=N repeats the choices of an earlier call, which prints its seed; BIN is the folder of the programs, and LIB that of
# libtrapped_calls.so. Kinds take turns, under mpirun and stand-ins for Slurm, with and without shards of the optimiser.
# Every run has to end, with the losses of an undisturbed one: the same to the bit as long as the number of ranks is the
# same, within 1e-5 on fewer. Prints a table; exit 1 if a run did not, 77 if this system has no such namespaces.
set -euo pipefail
runs=${1:-20}
shift $(($# > 0))
kinds=("$@")
[[ ${#kinds[@]} -gt 0 ]] || kinds=(kill dead slow eio hang)
seed=${SEED:-$(((RANDOM << 15) | RANDOM))}
RANDOM=$seed
root=$(cd "$(dirname "$0")/.." && pwd)
bin=${BIN:-$root/build/release/bin}
lib=${LIB:-$root/build/release/tests}
[[ -x $bin/ditrain && -e $lib/libtrapped_calls.so && $runs =~ ^[0-9]+$ ]] || { sed -n '2,11p' "$0"; exit 2; }
[[ $(id -u) -eq 0 ]] && export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
PATH=/usr/bin:$PATH
separate=(unshare --uts)
[[ $(id -u) -eq 0 ]] || separate=(unshare --user --map-root-user --uts)
"${separate[@]}" hostname n1 2>/dev/null || { echo "$0: this system allows no UTS namespaces" >&2; exit 77; }
unset "${!SLURM_@}"
# shellcheck disable=SC2155
export CLUSTER=$(mktemp -d)
mkdir "$CLUSTER"/{bin,dead,slow,fault,sessions}
# All that runs on a played node, by its sessions.
kill_node() {
  local session
  [[ -e $CLUSTER/sessions/$1 ]] || return 0
  while read -r session; do pkill -KILL -s "$session" || true; done <"$CLUSTER/sessions/$1"
}
cleanup() {
  [[ -z ${elastic:-} ]] || kill -KILL "$elastic" 2>/dev/null || true
  for node in n1 n2 n3 n4; do kill_node "$node"; done
  rm -rf "$CLUSTER"
}
trap cleanup EXIT
set -E  # functions have the trap, too
trap 'echo "stopped in line $LINENO" >&2' ERR

# --- The cluster ---------------------------------------------------------------------------------------------------------

# What mpirun calls instead of ssh: agent NODE COMMAND-LINE.
cat >"$CLUSTER/bin/agent" <<END
#!/bin/bash
node=\$1
shift
[[ ! -e \$CLUSTER/dead/\$node ]] || { echo "ssh: connect to host \$node port 22: No route to host" >&2; exit 255; }
[[ ! -e \$CLUSTER/slow/\$node ]] || export DITRAIN_ISA=baseline
[[ ! -e \$CLUSTER/fault/\$node ]] || export LD_PRELOAD=$lib/libtrapped_calls.so DITRAIN_TEST_TRAP="\$(<"\$CLUSTER/fault/\$node")"
exec setsid ${separate[*]} sh -c 'echo \$\$ >>"\$CLUSTER/sessions/\$1"; hostname "\$1"; shift; exec sh -c "\$*"' sh "\$node" "\$@"
END
mca="--mca plm rsh --mca plm_rsh_agent $CLUSTER/bin/agent --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo"
mca+=" --mca oob_tcp_if_include lo"
cat >"$CLUSTER/bin/srun" <<END
#!/bin/bash
while [[ \$1 == -* ]]; do
  case \$1 in
    --nodelist=*) nodes=\${1#*=} ;;
    --ntasks-per-node=*) per_node=\${1#*=} ;;
    --ntasks=*) tasks=\${1#*=} ;;
  esac
  shift
done
unset \${!SLURM_*}  # or mpirun asks Slurm for the nodes
exec mpirun --host "\${nodes//,/:\$per_node,}:\$per_node" -np "\$tasks" --bind-to none $mca "\$@"
END
cat >"$CLUSTER/bin/scontrol" <<'END'
#!/bin/bash
if [[ $1 == show ]]; then tr , '\n' <<<"$3"; else echo "$*" >>"$CLUSTER/scontrol"; fi
END
printf '#!/bin/sh\n' | tee "$CLUSTER/bin/squeue" >"$CLUSTER/bin/scancel"
chmod +x "$CLUSTER"/bin/*
PATH=$CLUSTER/bin:$PATH

# --- Runs ----------------------------------------------------------------------------------------------------------------

steps=60
model=(model.name=custom model.input_size=16 model.in_channels=3 model.hidden_size=32 model.depth=2 model.num_heads=2
       model.patch_size=4 model.num_classes=8 data.kind=shapes dist.bucket_mib=0.05 parallel.threads=1
       sample.every_steps=0 eval.every_steps=0 log.every_steps=1000 "train.steps=$steps" checkpoint.every_steps=5
       checkpoint.on_error=stop checkpoint.timeout_s=3)
echo "model: {name: custom}" >"$CLUSTER/elastic.yaml"
# set_run NODES SHARDS OUT: sets the arrays `nodes` and `flags`.
set_run() {
  local setting
  nodes=(n1 n2 n3 n4)
  nodes=("${nodes[@]:0:$1}")
  flags=(--config "$CLUSTER/elastic.yaml" --out "$3")
  # 3 nodes and 2 divide 12; of 4 nodes with 8 samples, 3 do not.
  for setting in "${model[@]}" "train.global_batch=$(($1 == 3 ? 12 : 8))" "dist.shard_optimizer=$2"; do
    flags+=(--set "$setting")
  done
}
losses() { sed -E 's/^\{"step":([0-9]+),"loss":([^,]+),.*/\1 \2/' "$1/metrics.jsonl"; }
draw() { drawn=$((((RANDOM << 15) | RANDOM) % $1)); }
lines() { if [[ -e $1/metrics.jsonl ]]; then wc -l <"$1/metrics.jsonl"; else echo 0; fi; }
# rank_of_node NODE: the process of its rank.
rank_of_node() {
  local session
  session=$(tail -n 1 "$CLUSTER/sessions/$1" 2>/dev/null) || return 0
  pgrep -s "$session" -x ditrain || true
}
is_stopped() { [[ $(ps -o stat= -p "$1" 2>/dev/null) == T* ]]; }

# undisturbed NODES SHARDS: the folder of such a run, in `whole`.
undisturbed() {
  whole=$CLUSTER/whole_$1_$2
  [[ ! -e $whole ]] || return 0
  set_run "$1" "$2" "$whole"
  srun "--nodelist=$(IFS=, && echo "${nodes[*]}")" --ntasks-per-node=1 "--ntasks=$1" "$bin/ditrain" "${flags[@]}" \
    >"$CLUSTER/whole.text" 2>&1 || { cat "$CLUSTER/whole.text" >&2 && exit 1; }
}

# Equal, or from a step on within 1e-5: same_losses OUT WHOLE EXACT-UNTIL.
same_losses() {
  [[ $(lines "$1") -eq $steps ]] && paste -d ' ' <(losses "$1") <(losses "$2") | awk -v exact="$3" '
    function abs(x) { return x < 0 ? -x : x }
    $1 != $3 || ($1 <= exact ? $2 != $4 : abs($2 - $4) > 1e-5 * abs($4)) { print "  " $0; bad = 1 }
    END { exit bad }'
}

# One run: disturbed KIND LAUNCHER SHARDS NUMBER-OF-NODES. Prints why it is not as it should be.
disturbed() {
  local kind=$1 launcher=$2 shards=$3 count=$4 out text victim at exact=$steps left code=0 slow_share=0.01 measure=off
  local stall=60 until=$((SECONDS + 120))
  rm -f "$CLUSTER"/{dead,slow,fault,sessions}/*
  undisturbed "$count" "$shards"
  out=$CLUSTER/run_$number text=$out.text
  set_run "$count" "$shards" "$out"
  draw "$count"; victim=${nodes[drawn]}
  draw 6; at=step_000000$((10 + 5 * drawn)) left=$count  # a checkpoint
  case $kind in
    # Rank 0 stops itself while it writes, or before a checkpoint gets its name, until the victim is struck.
    kill | dead) draw 2; echo "$([[ $drawn -eq 0 ]] && echo pwrite || echo rename) $at stop" >"$CLUSTER/fault/n1" ;;
    slow) touch "$CLUSTER/slow/$victim"; measure=on slow_share=0.6 left=2 exact=0 ;;
    eio) echo "pwrite $at 5" >"$CLUSTER/fault/n1" ;;
    hang)
      draw 2
      if [[ $drawn -eq 0 ]]; then
        echo "pwrite $at sleep:20" >"$CLUSTER/fault/n1"
      else
        echo "rename topology.txt sleep:20" >"$CLUSTER/fault/n1"  # where ditrain itself has no timeout
        stall=8
      fi ;;
  esac
  local options=(--launcher "$launcher" --pause-s 1 --limit-s 60 --stall-s "$stall" --slow-share "$slow_share"
                 --measure "$measure" --min-nodes 2)
  if [[ $launcher == srun ]]; then
    SLURM_JOB_ID=4711 SLURM_JOB_NODELIST=$(IFS=, && echo "${nodes[*]}") DITRAIN=$bin/ditrain \
      "$root/scripts/slurm/elastic.sh" "${options[@]}" "${flags[@]}" >"$text" 2>&1 &
  else
    DITRAIN=$bin/ditrain "$root/scripts/slurm/elastic.sh" --hosts "$(IFS=, && echo "${nodes[*]}")" \
      --launcher-flags "$mca" "${options[@]}" "${flags[@]}" >"$text" 2>&1 &
  fi
  elastic=$!
  if [[ $kind == kill || $kind == dead ]]; then
    until is_stopped "$(rank_of_node n1)" || ! kill -0 "$elastic" 2>/dev/null; do sleep 0.05; done
    if [[ $kind == kill ]]; then
      kill -KILL "$(rank_of_node "$victim")"
    else
      touch "$CLUSTER/dead/$victim"
      kill_node "$victim"
      left=2
    fi
  fi
  while kill -0 "$elastic" 2>/dev/null && [[ $SECONDS -lt $until ]]; do
    # The disk is well again after it was ill once.
    if grep -qs 'elastic: the run ended' "$text"; then rm -f "$CLUSTER/fault/n1"; fi
    sleep 0.1
  done
  if kill -0 "$elastic" 2>/dev/null; then
    kill -KILL "$elastic"
    for node in "${nodes[@]}"; do kill_node "$node"; done
    echo "  it did not end"
    return 1
  fi
  wait "$elastic" || code=$?
  elastic=''
  [[ $code -eq 0 ]] || { echo "  exit code $code"; return 1; }
  [[ $kind == slow ]] || grep -q 'elastic: the run ended' "$text" || { echo "  nothing happened to it"; return 1; }
  grep -q "elastic: $left of $count node(s), $left rank(s)" "$text" || { echo "  not on $left nodes"; return 1; }
  [[ $left -eq $count ]] || ! grep "^elastic: $left of" "$text" | tail -n 1 | grep -qw "$victim" || { echo "  on $victim"; return 1; }
  # The checkpoint from which fewer ranks went on.
  [[ $kind != dead ]] || exact=$(sed -n 's/^elastic: 2 of .* from step \([0-9]*\): .*/\1/p' "$text" | tail -n 1)
  same_losses "$out" "$whole" "$exact" || { echo "  other losses than those of an undisturbed run"; return 1; }
}

echo "seed: $seed"
printf '%-4s %-6s %-8s %-7s %-6s %8s  %s\n' run kind launcher shards nodes seconds result
bad=0 start=$SECONDS elastic=''
for ((number = 1; number <= runs; ++number)); do
  kind=${kinds[$(((number - 1) % ${#kinds[@]}))]} round=$(((number - 1) / ${#kinds[@]}))
  launcher=$([[ $((number % 2)) -eq 0 ]] && echo srun || echo mpirun)
  shards=$([[ $((round % 4 / 2)) -eq 0 ]] && echo false || echo true)
  draw 2; count=$((3 + drawn))
  began=$SECONDS result=ended
  if ! disturbed "$kind" "$launcher" "$shards" "$count" >"$CLUSTER/why"; then result=BAD bad=$((bad + 1)); fi
  printf '%-4s %-6s %-8s %-7s %-6s %8d  %s\n' "$number" "$kind" "$launcher" "$shards" "$count" $((SECONDS - began)) "$result"
  [[ $result == ended ]] || { cat "$CLUSTER/why" && sed 's/^/    /' "$CLUSTER/run_$number.text"; }
done
echo "$((runs - bad)) of $runs runs ended as they should, seed $seed, $((SECONDS - start)) s"
[[ $bad -eq 0 ]]
