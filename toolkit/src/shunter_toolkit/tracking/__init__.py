"""Experiment tracking: what a run notes about itself, its artifacts and the runs that it builds on.

Jobs and the launcher use the same modules. Which trackers a job has is set by the launcher, in variables.
"""
