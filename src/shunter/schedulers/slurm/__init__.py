"""`slurm`: jobs on Slurm, by its own commands, on this machine or on a login node.

What all clusters share is not here: commands over ssh, the job's folder, logs (`schedulers/hpc`).
"""
