#!/bin/bash
#SBATCH --job-name=APP
#SBATCH --output=/shared/jobs/APP/logs/slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --no-requeue
#SBATCH --comment="say \"hi\""
#SBATCH --mail-user=me@example.org
#SBATCH --mail-type=END,FAIL
#SBATCH --signal=B:USR1@60
#SBATCH --partition=a,b
#SBATCH --time=1-00:00:00
#SBATCH --account=team
#SBATCH --qos=low
#SBATCH --reservation=r1
#SBATCH --constraint=h100&ib
#SBATCH --nodelist=n[1-4]
#SBATCH --exclude=n3
#SBATCH --switches=1@60
#SBATCH --segment=2
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --exclusive
#SBATCH --nice=100
#SBATCH --mem=0

# The first node of the allocation, by the name that the other nodes know it by.
rank0=$(scontrol show hostnames "$SLURM_JOB_NODELIST" 2>/dev/null | head -n 1)
rank0=${rank0:-${SLURMD_NODENAME:-$(hostname)}}
exec sh /shared/jobs/APP/run.sh job --link @LINK@ --rank0 "$rank0" -- srun --export=ALL --kill-on-bad-exit=1 --wait=0 --ntasks=1 --ntasks-per-node=1 --mpi=pmix sh /shared/jobs/APP/run.sh replica worker SLURM_PROCID
