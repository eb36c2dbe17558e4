#!/usr/bin/env bash
# What scripts/slurm/elastic.sh decides, with stand-ins for Slurm and for ditrain: each case writes what the lives of a
# run do and which nodes are dead or slow, and says on which nodes the script starts them and how it ends.
# scripts/test_elastic.sh shows the same with real runs.
#   tests/e2e/elastic_test.sh
# shellcheck disable=SC2016  # lives are texts
set -euo pipefail
elastic=$(cd "$(dirname "$0")/../.." && pwd)/scripts/slurm/elastic.sh
unset "${!SLURM_@}"
base=$(mktemp -d)
trap 'rm -rf "$base"' EXIT
bad=0
mkdir "$base/bin"
export DITRAIN=$base/bin/ditrain PATH=$base/bin:$PATH

# Its first words are its launcher's: the nodes, as "n1,n2".
cat >"$DITRAIN" <<'END'
#!/bin/bash
nodes=${NODES:-} words="$*"
case $* in
  *--version) [[ ! -e hangs ]] || { touch asked && exec sleep 30; }
    [[ ! -e dead_$nodes ]] || { echo "srun: error: Node $nodes is down" >&2; exit 1; } ;;
  *--print-config)
    [[ ! -e refusal ]] || cat refusal >&2
    [[ ! -e refused ]] || exit 2
    cat config ;;
  *--explain-memory*)
    ranks=${words##*--ranks }
    [[ ! -e slow_disk ]] || { rm slow_disk && exec sleep 30; }
    [[ " $(cat ranks) " == *" $ranks "* ]] || { echo "ditrain: error: [config] $ranks ranks do not divide" >&2; exit 2; } ;;
  *--preflight*)
    { echo '{"nodes": ['; sed 's/\(.*\) \(.*\) \(.*\)/{"host":"\1","ranks":1,"share":\2,"slow":\3},/' shares; echo ']'
      echo '"problems": []'; } >run/preflight.json
    exit 1 ;;
  *)
    life=$(($(wc -l <lives) + 1))
    echo "$nodes" >>lives
    [[ -e life_$life ]] || life=last
    export life
    . "./life_$life" ;;
esac
END
cat >"$base/bin/srun" <<'END'
#!/bin/bash
while [[ $1 == -* ]]; do
  [[ $1 != --nodelist=* ]] || export NODES=${1#*=}
  shift
done
exec "$@"
END
cat >"$base/bin/scontrol" <<'END'
#!/bin/bash
case $1-$2 in
  show-job) [[ ! -e no_job ]] || exit 1; [[ ! -e job ]] || cat job ;;
  show-*) tr , '\n' <<<"$3" ;;
  *) echo "$*" >>scontrol && [[ $1 != requeue || ! -e no_requeue ]] ;;
esac
END
printf '#!/bin/sh\n' | tee "$base/bin/squeue" "$base/bin/scancel" >/dev/null
chmod +x "$base"/bin/*

# What a life does: step N writes metrics, checkpoint N a checkpoint.
cat >"$base/life" <<'END'
step() { echo "{\"step\":$1,\"loss\":1}" >>run/metrics.jsonl; }
checkpoint() { mkdir -p run/checkpoints && ln -sfn "$(printf 'step_%08d' "$1")" run/checkpoints/latest; }
die() { echo "ditrain: error: $1" >&2; exit "${2:-1}"; }
END

# begin NAME NODES RANKS...: a case in a folder of its own; ditrain accepts these numbers of ranks.
begin() {
  name=$1 list=$2
  shift 2
  mkdir "$base/$((++cases))"
  cd "$base/$cases"
  mkdir run
  echo "$*" >ranks
  printf '%s\n' dist: '  timeout_s: auto  # x' '  verify_every: 0' '  outer: off' checkpoint: '  timeout_s: 0' >config
  touch lives shares scontrol
}
# life N|last COMMANDS
life() { { cat "$base/life" && echo "$2"; } >"life_$1"; }
# Starts the script; options are added.
start() {
  SLURM_JOB_ID=7 SLURM_JOB_NODELIST=$list "$elastic" --pause-s 0 --limit-s 20 "$@" --config c --out run >said 2>&1 &
  script=$!
}
complain() {
  bad=$((bad + 1))
  echo "BAD: $name: $1" && sed 's/^/    /' said
}
# ends CODE "LIVES": the exit code and the nodes of each life; "any" where they depend on when it was stopped.
ends() {
  local code=0
  wait "$script" || code=$?
  [[ $code -eq $1 ]] || complain "exit code $code, not $1"
  [[ $2 == any || $(tr '\n' ' ' <lives) == "${2:+$2 }" ]] || complain "lives on $(tr '\n' ' ' <lives), not $2"
}
says() { grep -qE -- "$1" said || complain "it does not say: $1"; }
slurm() { [[ $(tr '\n' ';' <scontrol) == "$1" ]] || complain "scontrol was called for '$(tr '\n' ';' <scontrol)', not '$1'"; }
cases=0

begin "a run that ends" n1,n2 2
life last 'step 9; checkpoint 9'
start && ends 0 n1,n2 && slurm ""

begin "a failure with checkpoints between goes on" n1,n2 2
life last 'step $((life_ = $(wc -l <lives) * 10)); checkpoint $life_; [[ $life_ -lt 50 ]] || exit 0; die "[data] EIO"'
start --failures 2 && ends 0 "n1,n2 n1,n2 n1,n2 n1,n2 n1,n2"

begin "failures at one step" n1,n2 2
life last 'checkpoint 5; step 7; die "[training] step 8: loss is not finite"'
start && ends 1 "n1,n2 n1,n2 n1,n2" && says "ended at step 7: .*loss is not finite"
says "given up: 3 failures in a row without a checkpoint after step 5" && slurm ""

begin "a full disk" n1,n2 2
life last 'die "[checkpoint] step 5 could not be written: No space left on device"'
start && ends 1 n1,n2 && says "given up: .*No space left"

begin "bad input that only ranks find" n1,n2 2
life last 'die "[data] there is no such folder" 2'
start && ends 2 n1,n2 && says "given up: .*no such folder"

begin "a bad config" n1,n2 7
start && ends 2 "" && says "given up: .*2 ranks do not divide"

begin "a lock that outlives its node" n1,n2 2
life last '[[ $(wc -l <lives) -ge 6 ]] || die "[output] run is used by a run that is alive: host n2" 2'
start && ends 0 "n1,n2 n1,n2 n1,n2 n1,n2 n1,n2 n1,n2"

begin "a node that dies, and a batch that its absence does not divide" n1,n2,n3,n4 4 2
life 1 'touch dead_n3; die "[watchdog] no answer at all: rank 2 (n3)"'
life last ''
start && ends 0 "n1,n2,n3,n4 n1,n2" && says "n3 does not answer: .*Node n3 is down"

begin "a batch that the nodes do not divide: it says how many stay idle, and why" n1,n2,n3,n4 3
life last ''
start && ends 0 "n1,n2,n3" && says "3 of 4 node" && says "1 node\(s\) stay idle: .*4 ranks do not divide"

begin "a node that comes back" n1,n2 2 1
life 1 'touch dead_n2; die "[x] y"'
life 2 'rm dead_n2; checkpoint 3; die "[x] y"'
life last ''
start && ends 0 "n1,n2 n1 n1,n2"

begin "a node whose ranks fail twice" n1,n2,n3 3 2
life last '[[ $(wc -l <lives) -ge 3 ]] || { echo "srun: error: n2: task 1: Killed" >&2; exit 137; }'
start && ends 0 "n1,n2,n3 n1,n2,n3 n1,n3" && says "ended at step 0: srun: error: n2: task 1: Killed"
says "n2 is left out: its ranks failed twice"

begin "a slow node of three" n1,n2,n3 3 2
printf 'n1.site 1.0 false\nn2.site 0.31 true\nn3.site 0.9 false\n' >shares
life last ''
start && ends 0 "n1,n3" && says "n2 is left out: slow, at 31 %"

begin "a slow node that is worth more than none" n1,n2 2 1
printf 'n1 1.0 false\nn2 0.7 true\n' >shares
life last ''
start && ends 0 "n1,n2"

begin "too few nodes" n1,n2 2
touch dead_n2
start --min-nodes 2 --failures 2 && ends 1 "" && slurm "requeue 7;update JobId=7 ExcNodeList=n2;"
start --min-nodes 2 --failures 2 && ends 1 ""
: >scontrol
start --min-nodes 2 --failures 2 && ends 1 ""
slurm "" && says "given up: too few nodes, after 2 times in the queue"

begin "too few nodes before there is a run folder: they are counted, too" n1,n2 2
rmdir run
touch dead_n2
for i in 1 2; do start --min-nodes 2 --failures 2 && ends 1 ""; done
: >scontrol
start --min-nodes 2 --failures 2 && ends 1 ""
slurm "" && says "given up: too few nodes, after 2 times in the queue"

begin "nodes that the user excluded stay so" n1,n2 2
touch dead_n2
echo "JobId=7 ExcNodeList=n8,n9 Features=(null)" >job
start --min-nodes 2 --failures 2 && ends 1 "" && slurm "requeue 7;update JobId=7 ExcNodeList=n8,n9,n2;"
echo "JobId=7 ExcNodeList=n8,n9,n2 Features=(null)" >job
: >scontrol
rm dead_n2 && touch dead_n1  # a node that was silent once is asked again
start --min-nodes 2 --failures 2 && ends 1 "" && slurm "requeue 7;update JobId=7 ExcNodeList=n8,n9,n1;"

begin "Slurm does not tell of the job" n1,n2 2
touch no_job
life last 'checkpoint 3; exit 75'
start && ends 75 n1,n2 && slurm "requeue 7;"

begin "a site whose jobs cannot be queued again" n1,n2 2
touch no_requeue
life last 'checkpoint 3; exit 75'
start && ends 75 n1,n2 && says "stopped: a checkpoint is written; it cannot be queued again"

begin "a file system that is slow once" n1,n2 2
touch slow_disk
life last ''
start --limit-s 5 && ends 0 n1,n2 && says "is not known: no answer within 5 s"

begin "the end of its time" n1,n2 2
life last 'step 1; trap "checkpoint 4; exit 75" USR2; touch ready; while :; do sleep 0.1; done'
start
while [[ ! -e ready ]] && kill -0 $script; do sleep 0.05; done
kill -USR2 $script || true
ends 75 n1,n2 && slurm "requeue 7;" && says "queued again: USR2; a checkpoint is written"

begin "a job that is cancelled" n1,n2 2
life last 'trap "checkpoint 4; exit 75" USR2; trap "touch saved" USR1; touch ready; while :; do sleep 0.1; done'
start
while [[ ! -e ready ]] && kill -0 $script; do sleep 0.05; done
kill -USR1 $script || true
while [[ ! -e saved ]] && kill -0 $script; do sleep 0.05; done
kill -TERM $script || true
ends 75 n1,n2 && slurm ""

begin "a stop while nodes are asked: none of them is to blame" n1,n2 2
touch hangs
start
while [[ ! -e asked ]] && kill -0 $script; do sleep 0.05; done
kill -USR2 $script || true
ends 75 "" && slurm "requeue 7;" && says "USR2 came between two starts"

for ((i = 0; i < 8; ++i)); do
  begin "a stop at any time: $i" n1,n2 2
  life last 'trap "checkpoint 4; exit 75" USR2; while :; do step 1; sleep 0.01; done'
  start --stall-s 1
  sleep "$(awk "BEGIN { print 0.2 + $i / 20 }")"
  kill -USR2 $script || true
  ends 75 any && slurm "requeue 7;"
done

begin "a script that is killed: its run ends as well" n1,n2 2
life last 'trap "touch ended; exit 1" TERM; touch ready; while :; do sleep 0.1; done'
start
while [[ ! -e ready ]] && kill -0 $script; do sleep 0.05; done
kill -KILL $script
for ((i = 0; i < 100; ++i)); do [[ -e ended ]] || sleep 0.1; done
[[ -e ended ]] || complain "the run goes on"

begin "what the config sets stays" n1 1
life last 'echo "$words" >words'
start && ends 0 n1
grep -q "dist.timeout_s=600 .*checkpoint.timeout_s=600 .*dist.verify_every=500 .*--resume auto" words || complain "its limits"
sed -i 's/timeout_s: auto/timeout_s: 60/; s/timeout_s: 0/timeout_s: 3600/; s/outer: off/outer: {every: 30}/' config
start && ends 0 "n1 n1"
! grep -qE "timeout_s|verify_every" words || complain "other limits: $(cat words)"

begin "a run that stands still" n1,n2 2
life 1 'step 1; sleep 60 & trap "kill $!; exit 143" TERM; wait'
life last ''
start --stall-s 1 && ends 0 "n1,n2 n1,n2" && says "no step and no checkpoint for 1 s"

for wrong in "--hosts" "--hosts /none/hosts" "--slow-share 85" "--failures 0" "--launcher ssh" "--measure maybe" "--resume auto"; do
  begin "wrong options: $wrong" n1 1
  # shellcheck disable=SC2086
  start $wrong && ends 2 "" && says "elastic: error: "
done

begin "its options behind those of ditrain" n1 1
start --config c --min-nodes 2 && ends 2 "" && says "stand before ditrain's flags: --min-nodes comes after --config"

begin "a config that ditrain refuses" n1 1
echo "ditrain: error: [config] unknown key a.b" >refusal && touch refused
start && ends 2 "" && says "elastic: error: \\[config\\] unknown key a.b; "

begin "a config that ditrain prints, and would refuse to train" n1 1
echo "warning: a run would refuse this config: [config] steps" >refusal
start && ends 2 "" && says "elastic: error: \\[config\\] steps; "

[[ $bad -eq 0 ]] && echo "$cases cases"
