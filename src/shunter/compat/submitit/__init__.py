"""submitit's names, for programs that submit functions: ``import shunter.compat.submitit as submitit``.

`install` lets libraries that say ``import submitit`` find this package. Facts are those of submitit 1.5. Each
name is imported on first use: jobs need few of them.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from shunter.compat.submitit.names import install

if TYPE_CHECKING:
    from shunter.compat.submitit import helpers
    from shunter.compat.submitit.executors import AutoExecutor, DebugExecutor, LocalExecutor, SlurmExecutor
    from shunter.compat.submitit.executors import AutoExecutor as Executor
    from shunter.compat.submitit.failures import FailedJobError, FailedSubmissionError, UncompletedJobError
    from shunter.compat.submitit.job_environment import JobEnvironment, JobPaths
    from shunter.compat.submitit.jobs import DebugJob, Job, LocalJob, SlurmJob
    from shunter.compat.submitit.submitted_function import DelayedSubmission

#: The version of submitit whose names these are.
__version__ = "1.5.4"

__all__ = [
    "AutoExecutor",
    "DebugExecutor",
    "DebugJob",
    "DelayedSubmission",
    "Executor",
    "FailedJobError",
    "FailedSubmissionError",
    "Job",
    "JobEnvironment",
    "JobPaths",
    "LocalExecutor",
    "LocalJob",
    "SlurmExecutor",
    "SlurmJob",
    "UncompletedJobError",
    "helpers",
    "install",
]

#: The modules of the names, in this package.
_MODULES = {
    "submitted_function": ("DelayedSubmission",),
    "job_environment": ("JobEnvironment", "JobPaths", "environment_variables"),
    "failures": ("FailedJobError", "FailedSubmissionError", "UncompletedJobError"),
    "executors": ("AutoExecutor", "DebugExecutor", "LocalExecutor", "SlurmExecutor"),
    "helpers": ("CommandFunction",),
    "jobs": ("DebugJob", "Job", "LocalJob", "SlurmJob"),
}


#: Modules of submitit by which programs name what is here: ``submitit.core.utils.FailedJobError``.
_PLACES = ("auto", "core", "debug", "local", "slurm", "utils")


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        return sys.modules[__name__]
    if name == "Executor":  # the base of all others
        name = "AutoExecutor"
    if name == "helpers":
        return import_module(f"{__name__}.helpers")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
