"""Sweeps: a component with several values of some arguments, as one job or as a job for each point."""

from shunter.sweeps.planning import Point, SweepPlan, grid, plan_sweep, run_sweep
from shunter.sweeps.point_jobs import repeat

__all__ = ["Point", "SweepPlan", "grid", "plan_sweep", "repeat", "run_sweep"]
