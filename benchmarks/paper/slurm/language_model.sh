#!/usr/bin/env bash
# The LSTM-512 language model of 40,000 words on 1 to 32 servers and 4 to 256 workers.
#   sbatch benchmarks/paper/slurm/language_model.sh
#SBATCH --job-name=language-model --output=%x-%j.out
#SBATCH --nodes=288 --ntasks-per-node=1 --cpus-per-task=4 --mem=0 --time=02:00:00
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
for workers in 4 32 256; do
  for servers in 1 2 4 8 16 32; do
    ranks=$((workers + servers))
    srun --nodes="$ranks" --ntasks="$ranks" --kill-on-bad-exit=1 \
      --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" \
      hpcflow run --ps "$servers" --run-dir "$run/$workers-$servers" --set sync=async \
      benchmarks/paper/language_model.py --rank --out "$run/$workers-$servers" --seconds 60 \
      --words 40000 --units 512 --batch 128 --unroll 20
  done
done
python benchmarks/paper/language_model.py --tell "$run"/*/
