"""Sweeps: a component with several values of some arguments, as one job or as a job for each point."""

from shunter.specs.sweep_points import Point
from shunter.sweeps.grids import grid
from shunter.sweeps.planning import SweepPlan, plan_sweep, run_sweep
from shunter.sweeps.point_jobs import repeat

__all__ = ["Point", "SweepPlan", "grid", "plan_sweep", "repeat", "run_sweep"]
