#!/bin/bash
#SBATCH --job-name=APP
#SBATCH --output=/shared/jobs/APP/logs/slurm-%A_%a.out
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --array=0-49%8
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=8000M

rank0=${SLURMD_NODENAME:-$(hostname)}
exec sh /shared/jobs/APP/run.sh replica --retries 1 --rank0 "$rank0" worker SLURM_ARRAY_TASK_ID
