"""Experiments under a budget: run, compare by a metric, keep or discard; a journal that people can read."""

from shunter.lab.budget import Budget
from shunter.lab.experiments import attempt, look, start
from shunter.lab.journal import lab_book
from shunter.lab.lab_file import Experiment, Lab, labs
from shunter.lab.restoring import restore

__all__ = ["Budget", "Experiment", "Lab", "attempt", "lab_book", "labs", "look", "restore", "start"]
