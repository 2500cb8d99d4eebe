# Shared by up.sh and down.sh: sourced, with $dir set.
# shellcheck shell=bash disable=SC2154
export PATH=$PATH:/usr/sbin:/sbin
export SLURM_CONF=$dir/slurm.conf

# A process that has ended but was not reaped yet is not running.
running() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  [[ ${stat##*)} != " Z"* ]]
}

running_of() { # file with a process id
  local pid
  pid=$(cat "$1" 2>/dev/null) || return 1
  [[ -n $pid ]] && running "$pid"
}
