"""`lsf`: IBM Spectrum LSF's own commands, options, states and words. What it shares with other clusters is in
`shunter.schedulers.hpc`, not here.
"""
