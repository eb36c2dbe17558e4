#!/usr/bin/env bash
# Runs a command as MPI ranks on two "hosts" of this machine: two network namespaces with host names of their own, joined
# by a pair of virtual network cards. Nothing but TCP over that pair connects them, as between two real nodes.
#   scripts/two_hosts.sh [--gbit G] [--ranks-per-host N] [--] COMMAND...
#   scripts/two_hosts.sh --gbit 1 build/release/bin/ditrain --config quickstart.yaml --out runs/two_hosts
# --gbit lets the link carry at most so much each way (tc); each host gets half of the cores. Needs root. Exit code: that
# of mpirun, or 77 where the system allows no network namespaces.
set -euo pipefail

usage() {
  sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
gbit='' ranks_per_host=1
while [[ ${1:-} == -* ]]; do
  case $1 in
    --gbit) gbit=${2:?} && shift 2 ;;
    --ranks-per-host) ranks_per_host=${2:?} && shift 2 ;;
    --) shift && break ;;
    *) usage ;;
  esac
done
[[ $# -gt 0 ]] || usage
if [[ $(id -u) -ne 0 ]]; then
  echo "$0: network namespaces need root: sudo $0 ..." >&2
  exit 77
fi

subnet=10.77.0
ns=("ditrain_a_$$" "ditrain_b_$$") host=(ditrain-a ditrain-b)
folder=$(mktemp -d)
# shellcheck disable=SC2317  # called by the trap
cleanup() {
  for n in "${ns[@]}"; do
    { ip netns pids "$n" | xargs -r kill -9; } 2>/dev/null || true  # what a killed mpirun left behind
    ip netns del "$n" 2>/dev/null || true                           # and the card in it, and so the other one
  done
  rm -rf "$folder"
}
trap cleanup EXIT

allowed=$(sed -n 's/^Cpus_allowed_list:\t//p' /proc/self/status)
read -ra ids <<<"$(for range in ${allowed//,/ }; do seq -s ' ' "${range%-*}" "${range#*-}"; done | tr '\n' ' ')"
half=$((${#ids[@]} / 2))
cpus=("$(IFS=, && echo "${ids[*]:0:half > 0 ? half : 1}")" "$(IFS=, && echo "${ids[*]:half}")")

if ! { ip netns add "${ns[0]}" && ip netns add "${ns[1]}" &&
       ip link add card netns "${ns[0]}" type veth peer name card netns "${ns[1]}"; } 2>"$folder/why"; then
  echo "$0: this system allows no network namespaces: $(head -n 1 "$folder/why")" >&2
  exit 77
fi
for i in 0 1; do
  ip -n "${ns[i]}" address add "$subnet.$((i + 1))/24" dev card
  ip -n "${ns[i]}" link set card up
  ip -n "${ns[i]}" link set lo up
  # The burst holds a few of the 64 KiB packets that such cards pass on.
  [[ -z $gbit ]] || ip netns exec "${ns[i]}" tc qdisc add dev card root tbf rate "${gbit}gbit" burst 2mb latency 20ms
done

# on_host.sh NUMBER COMMAND...: in the namespace, under the name and on the cores of a host.
cat >"$folder/on_host.sh" <<END
#!/bin/sh
case \$1 in 0) ns=${ns[0]} name=${host[0]} cpus=${cpus[0]} ;; *) ns=${ns[1]} name=${host[1]} cpus=${cpus[1]} ;; esac
shift
exec ip netns exec "\$ns" unshare --uts sh -c 'hostname "\$1" && shift && exec "\$@"' sh "\$name" taskset -c "\$cpus" "\$@"
END
# What mpirun calls instead of ssh: agent ADDRESS COMMAND-LINE. Only the second host is remote.
cat >"$folder/agent" <<END
#!/bin/sh
shift
exec "$folder/on_host.sh" 1 sh -c "\$*"
END
chmod +x "$folder/on_host.sh" "$folder/agent"

PATH=/usr/bin:$PATH
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
status=0
"$folder/on_host.sh" 0 mpirun --host "$subnet.1:$ranks_per_host,$subnet.2:$ranks_per_host" -np $((2 * ranks_per_host)) \
  --bind-to none --mca plm rsh --mca plm_rsh_agent "$folder/agent" --mca btl tcp,self,vader --mca pml ob1 \
  --mca btl_tcp_if_include "$subnet.0/24" --mca oob_tcp_if_include "$subnet.0/24" "$@" &
run=$!
for signal in USR1 USR2 TERM INT; do trap 'kill -'"$signal"' "$run" 2>/dev/null' "$signal"; done
wait "$run" || status=$?
while kill -0 "$run" 2>/dev/null; do  # a signal ended the wait
  status=0
  wait "$run" || status=$?
done
exit "$status"
