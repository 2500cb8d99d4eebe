#!/usr/bin/env bash
# tests/slurm/down.sh DIR [--wipe]: stop the SLURM that up.sh started there, its jobs first; with
# --wipe delete DIR too.
set -euo pipefail
dir=$(cd "${1:?usage: down.sh DIR [--wipe]}" 2>/dev/null && pwd) || exit 0
here=$(cd "${BASH_SOURCE[0]%/*}" && pwd)
# shellcheck source=tests/slurm/lib.sh
source "$here/lib.sh"

end_jobs() {
  local jobs
  running_of "$dir/run/slurmctld.pid" || return 0
  mapfile -t jobs < <(timeout 5 squeue -h -o %A 2>/dev/null | sort -u)
  ((${#jobs[@]})) || return 0
  timeout 10 scancel --full -s KILL "${jobs[@]}" 2>/dev/null || true
  timeout 10 scancel "${jobs[@]}" 2>/dev/null || true
  for _ in $(seq 40); do
    [[ -n $(timeout 5 squeue -h 2>/dev/null) ]] || return 0
    sleep 0.25
  done
}

stop() { # files with process ids, which daemons remove when they end
  local file pid
  local -A pids=()
  for file in "$@"; do
    pid=$(cat "$file" 2>/dev/null) || continue
    if [[ -n $pid ]] && running "$pid"; then
      pids[$file]=$pid
      kill "$pid" 2>/dev/null || true
    fi
  done
  for file in "$@"; do
    pid=${pids[$file]:-}
    if [[ -n $pid ]]; then
      for _ in $(seq 50); do
        running "$pid" || break
        sleep 0.1
      done
      if running "$pid"; then kill -9 "$pid" 2>/dev/null || true; fi
    fi
    rm -f "$file"
  done
}

# Step daemons that outlived their slurmd: those whose environment names our slurm.conf.
stop_left_over() {
  local file pid
  while read -r file; do
    pid=${file//[!0-9]/}
    case $(cat "/proc/$pid/comm" 2>/dev/null) in
      slurmstepd | slurmscriptd | slurmctld) kill -9 "$pid" 2>/dev/null || true ;;
    esac
  done < <(grep -lsz "^SLURM_CONF=$dir/slurm.conf$" /proc/[0-9]*/environ || true)
}

end_jobs
stop "$dir"/run/slurmd-*.pid
stop "$dir/run/slurmctld.pid"
stop_left_over
stop "$dir/run/munged.pid"
if [[ ${2:-} == --wipe ]]; then rm -rf "$dir"; fi
