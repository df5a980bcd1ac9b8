#!/bin/bash
#SBATCH --job-name=APP
#SBATCH --output=/shared/jobs/APP/logs/slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --requeue
#SBATCH --signal=B:USR1@60
#SBATCH --partition=gpu
#SBATCH --time=2:00:00
#SBATCH --nodes=2
#SBATCH --ntasks=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=8000M
#SBATCH --gpus-per-node=4

# The first node of the allocation, by the name that the other nodes know it by.
rank0=$(scontrol show hostnames "$SLURM_JOB_NODELIST" 2>/dev/null | head -n 1)
rank0=${rank0:-${SLURMD_NODENAME:-$(hostname)}}
exec sh /shared/jobs/APP/run.sh job --retries 3 --rank0 "$rank0" -- srun --export=ALL --kill-on-bad-exit=1 --wait=0 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 sh /shared/jobs/APP/run.sh replica --grace 60 worker SLURM_PROCID
