#!/usr/bin/env bash
# tests/slurm/up.sh DIR: a real SLURM of four virtual nodes on this host, all of it under DIR.
#
# Root on Debian 12. node1 and node2 are the partition "cpu", node3 and node4, with two pretended
# GPUs each, are "gpu"; all four are "main", and "high", whose jobs pre-empt the others'. Everything
# listens on 127.0.0.1. Running it again repairs what is down. Then: source DIR/env.sh.
set -euo pipefail
dir=$(mkdir -p "${1:?usage: up.sh DIR}" && cd "$1" && pwd)
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
# shellcheck source=tests/slurm/lib.sh
source "$here/lib.sh"

nodes=(node1 node2 node3 node4)
# libpmix-dev: SLURM's pmix plug-in opens libpmix.so, the name that only this package has.
packages=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge libpmix2 libpmix-dev libpmi2-0
  openmpi-bin libmpich12 environment-modules) # what a site has of its own: MPIs, `module load`

install_packages() {
  local missing=() package policy=/usr/sbin/policy-rc.d
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed ||
      missing+=("$package")
  done
  ((${#missing[@]})) || return 0
  # The packages must not start daemons of their own.
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    # shellcheck disable=SC2064
    trap "rm -f $policy" EXIT
  fi
  export DEBIAN_FRONTEND=noninteractive
  if ! {
    apt-get -qq -o DPkg::Lock::Timeout=300 update &&
      apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}"
  } >"$dir/apt.log" 2>&1 </dev/null; then
    tail -n 5 "$dir/apt.log" >&2
    echo "up.sh: apt-get cannot install ${missing[*]}" >&2
    exit 1
  fi
}

# Five ports in a row that nobody answers at, below those the system deals out.
free_ports() {
  local first port
  while true; do
    first=$((20000 + RANDOM % 1200 * 10))
    for port in $(seq "$first" $((first + 4))); do
      (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null && continue 2
    done
    echo "$first"
    return
  done
}

make_folders() {
  local node gpu
  # Jobs of other users must reach the munge socket and slurm.conf.
  mkdir -p "$dir"/{run,log,state,spool,tmp,dev}
  chmod 755 "$dir" "$dir"/{run,log,spool,tmp,dev}
  chmod 700 "$dir/state"
  for node in "${nodes[@]}"; do
    mkdir -p "$dir/spool/$node" "$dir/tmp/$node"
    chmod 1777 "$dir/tmp/$node"
  done
  # Twins of /dev/null: SLURM counts a GPU only if its file is a device.
  for gpu in 0 1; do
    [[ -c $dir/dev/gpu$gpu ]] || mknod -m 666 "$dir/dev/gpu$gpu" c 1 3
  done
  [[ -s $dir/run/munge.key ]] || (umask 077 && head -c 128 /dev/urandom >"$dir/run/munge.key")
}

write_files() {
  local host port node
  host=$(hostname -s)
  [[ -s $dir/port ]] || free_ports >"$dir/port"
  port=$(<"$dir/port")
  {
    echo "127.0.0.1 localhost $host"
    for node in "${nodes[@]}"; do echo "127.0.0.1 $node"; done
  } >"$dir/hosts"
  sed -e "s|@DIR@|$dir|g; s|@HOST@|$host|g; s|@PORT@|$port|g" \
    -e "s|@CPU_PORTS@|$((port + 1))-$((port + 2))|; s|@GPU_PORTS@|$((port + 3))-$((port + 4))|" \
    "$here/slurm.conf.in" >"$dir/slurm.conf"
  echo "NodeName=node[3-4] Name=gpu File=$dir/dev/gpu[0-1]" >"$dir/gres.conf"
  echo "export SLURM_CONF=$dir/slurm.conf" >"$dir/env.sh"
  # What the tests write there opens the way to their Python for other users, on the nodes alone.
  [[ -e $dir/reach.sh ]] || echo : >"$dir/reach.sh"
}

start_daemons() {
  local node
  running_of "$dir/run/munged.pid" ||
    munged --force --key-file="$dir/run/munge.key" --socket="$dir/run/munge.socket" \
      --pid-file="$dir/run/munged.pid" --log-file="$dir/log/munged.log" \
      --seed-file="$dir/run/munge.seed"
  running_of "$dir/run/slurmctld.pid" || slurmctld -f "$SLURM_CONF"
  for node in "${nodes[@]}"; do
    # A host name of its own for each node: PMIx and mpirun tell nodes by it; and slurmd looks it up.
    # shellcheck disable=SC2016
    running_of "$dir/run/slurmd-$node.pid" ||
      unshare --uts --mount --propagation private sh -c \
        'hostname "$1" && mount --bind "$2" /etc/hosts && . "$4" && exec slurmd -N "$1" -f "$3"' \
        sh "$node" "$dir/hosts" "$SLURM_CONF" "$dir/reach.sh"
  done
} </dev/null >>"$dir/log/start.log" 2>&1

wait_for_nodes() {
  local try states
  for try in $(seq 600); do
    states=$(timeout 5 sinfo -h -N -p main -o %t 2>/dev/null || true)
    if (($(grep -cE '^(idle|mix|alloc)$' <<<"$states") == ${#nodes[@]})); then
      echo "SLURM is up: ${#nodes[@]} nodes; source $dir/env.sh"
      return
    fi
    # A node that an unclean stop has left down.
    ((try % 25)) || timeout 5 scontrol update nodename="node[1-4]" state=resume 2>/dev/null || true
    sleep 0.2
  done
  timeout 5 sinfo -N -l >&2 || true
  tail -n 5 "$dir"/log/*.log >&2
  exit 1
}

((EUID == 0)) || { echo "up.sh: needs root, for host names and device files of its own" >&2; exit 2; }
install_packages
make_folders
write_files
start_daemons
wait_for_nodes
