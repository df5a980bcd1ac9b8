"""What jobs leave on this machine, and whether jobs could run here."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable

from trainyard.schedulers.aws.sagemaker_local import store, submission
from trainyard.schedulers.aws.sagemaker_local.launch import Settings
from trainyard.schedulers.aws.sagemaker_local.recovery import current_state
from trainyard.schedulers.aws.sagemaker_local.store import TERMINAL
from trainyard.schedulers.base import Check, Leftover


def leftovers(older_than: float) -> list[Leftover]:
    """Return jobs that ended, and code that was last used, at least so many seconds ago."""
    now = time.time()
    found = []
    for job in store.all_jobs():
        state = current_state(job)
        if state is not None and state["status"] in TERMINAL and now - state["modified_at"] >= older_than:
            found.append(Leftover(f"job/{job.name}", job.name, now - state["modified_at"]))
    try:
        keys = sorted(os.listdir(submission.code_dir()))
    except FileNotFoundError:
        keys = []
    for key in keys:
        age = now - os.stat(os.path.join(submission.code_dir(), key)).st_mtime
        if age >= older_than and not _is_needed(key):
            found.append(Leftover(f"code/{key}", f"code {key[:12]}", age))
    return found


def remove(ids: Iterable[str]) -> None:
    """Remove what `leftovers` found."""
    for text in ids:
        kind, _, name = text.partition("/")
        job = store.find(name) if kind == "job" else None
        if job is not None:
            job.remove()
        elif kind == "code" and name and "/" not in name and name not in (".", ".."):
            shutil.rmtree(os.path.join(submission.code_dir(), name), ignore_errors=True)


def _is_needed(key: str) -> bool:
    """Tell whether a job that has not ended reads this code."""
    for job in store.all_jobs():
        state = current_state(job)
        if state is not None and state["status"] not in TERMINAL:
            document = job.read_request() or {}
            if key in str(document.get("request", {}).get("InputDataConfig")):
                return True
    return False


def doctor() -> list[Check]:
    """Look what hosts would be made of."""
    from trainyard.docker.engine import Engine
    from trainyard.errors import TrainyardError

    settings = Settings.from_env()
    if settings.docker == "never":
        return [Check("hosts", None, "processes: TRAINYARD_SAGEMAKER_DOCKER is never")]
    try:
        engine = Engine.from_env()
        try:
            text = f"containers of the daemon at {engine.endpoint}, API {engine.api_version}"
        finally:
            engine.close()
    except TrainyardError as error:
        if settings.docker == "always":
            return [Check("hosts", False, error.message, error.hint)]
        return [Check("hosts", None, f"processes, since no Docker daemon answers: {error.message}")]
    return [Check("hosts", True, text)]
