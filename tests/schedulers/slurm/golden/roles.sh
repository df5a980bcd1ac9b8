#!/bin/bash
#SBATCH --job-name=APP
#SBATCH --output=/shared/jobs/APP/logs/slurm-%j.out
#SBATCH --open-mode=append
#SBATCH --export=ALL
#SBATCH --requeue
#SBATCH --signal=B:USR1@60
#SBATCH --nodes=3
#SBATCH --ntasks=3
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=8000M

steps() {
    # Each role is a step. The first that fails ends the others, and its exit code is the job's.
    local code=0 stopped= left=2
    local -a nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
    trap 'stopped=yes; kill -TERM $(jobs -rp) 2>/dev/null' TERM
    SHUNTER_RANK0="${nodes[0]}" srun --export=ALL --kill-on-bad-exit=1 --wait=0 --exact --relative=0 --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 sh /shared/jobs/APP/run.sh replica --grace 60 trainer SLURM_PROCID &
    SHUNTER_RANK0="${nodes[2]}" srun --export=ALL --kill-on-bad-exit=1 --wait=0 --exact --relative=2 --nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=4 sh /shared/jobs/APP/run.sh replica --grace 60 reader SLURM_PROCID &
    while [ "$left" -gt 0 ]; do
        stopped=
        wait -n
        ended=$?
        [ -z "$stopped" ] || continue
        left=$((left - 1))
        if [ "$ended" != 0 ] && [ "$code" = 0 ]; then
            code=$ended
            kill -TERM $(jobs -rp) 2>/dev/null
        fi
    done
    return "$code"
}
if [ "${1:-}" = steps ]; then
    steps
    exit
fi
exec sh /shared/jobs/APP/run.sh job -- bash /shared/jobs/APP/script steps
