"""Submit a job to Ray exactly once, after the package with its plan."""

from __future__ import annotations

import io
from typing import Any

from shunter.errors import BackendError
from shunter.schedulers.ray_scheduler.dashboard import Dashboard, DashboardUnreachableError, job_path
from shunter.schedulers.ray_scheduler.ray_package import plan_package, send_package
from shunter.schedulers.ray_scheduler.request import TOKEN, RayRequest


def submit(dashboard: Dashboard, request: RayRequest, token: str) -> None:
    """Send a job's plan, then its submission. Ray accepts a submission id once, whatever is lost on the way.

    Raises:
        BackendError: Ray refused it or could not be reached.
    """
    uri, content = plan_package(request.plan)
    send_package(dashboard, uri, io.BytesIO(content), len(content))
    environment = request.submission["runtime_env"]
    submission = {
        **request.submission,
        "runtime_env": {**environment, "py_modules": [uri]},
        "metadata": {**request.submission["metadata"], TOKEN: token},
    }
    try:
        dashboard.post("/api/jobs/", submission)
    except BackendError as error:
        if not _was_accepted(dashboard, request.app_id, token):
            raise _refused(error, request) from error


def _was_accepted(dashboard: Dashboard, app_id: str, token: str) -> bool:
    """Tell whether Ray has the job although its answer was lost, or says that the id is taken."""
    try:
        job: Any = dashboard.get(job_path(app_id))
    except BackendError:
        return False
    return job is not None and (job.get("metadata") or {}).get(TOKEN) == token


def _refused(error: BackendError, request: RayRequest) -> BackendError:
    if isinstance(error, DashboardUnreachableError):
        return error
    labels = "entrypoint_label_selector" in request.submission
    if labels and "entrypoint_label_selector" in error.message:
        return BackendError(error.message, hint="This Ray is too old for entrypoint_label_selector (2.49).")
    return error
