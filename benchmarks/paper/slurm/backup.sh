#!/usr/bin/env bash
# Asynchronous against synchronous steps, then 50 workers with 0 to 5 backups, 17 servers.
#   sbatch benchmarks/paper/slurm/backup.sh
#SBATCH --job-name=backup --output=%x-%j.out
#SBATCH --nodes=217 --ntasks-per-node=1 --cpus-per-task=4 --mem=0 --time=02:00:00
#
# ---- your site: remove one '#' where there are two
##SBATCH --account=PROJECT --partition=NAME
# module load python openmpi
export PATH=$SLURM_SUBMIT_DIR/.venv/bin:$PATH # the environment that has hpcflow
export SLURM_MPI_TYPE=${SLURM_MPI_TYPE:-pmix} # Open MPI: pmix; MPICH: pmi2 (srun --mpi=list)
# ----
set -euo pipefail
export PYTHONUNBUFFERED=1
run=runs/$SLURM_JOB_ID
servers=17
measure() { # WORKERS RULE SECONDS
  ranks=$(($1 + servers))
  srun --nodes="$ranks" --ntasks="$ranks" --kill-on-bad-exit=1 \
    --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
    hpcflow run --ps "$servers" --run-dir "$run/$2-$1" --set "sync=$2" \
    benchmarks/paper/backup.py --rank --out "$run/$2-$1" --seconds "$3" --sync "$2" \
    --model 108.6e6 --mean 1.0 --sigma 0.28
}
for workers in 25 50 100 200; do
  measure "$workers" async 120
  measure "$workers" all 120
done
for backups in 1 2 3 4 5; do
  measure $((50 + backups)) "backup:$backups" 120
done
python benchmarks/paper/backup.py --tell "$run"/*/
