from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from shunter.runner.history import History
from shunter.runner.records import JobRecord
from shunter.specs.app import AppDef, Role
from shunter.specs.serialize import to_json
from shunter.ui.browser_guard import BrowserGuard, Secrets
from shunter.ui.runner_pool import RunnerPool
from shunter.ui.web_app import WebApp
from tests.schedulers.slurm.conftest import slurm  # noqa: F401
from tests.ui.real_browser import browser, server  # noqa: F401

PORT = 4768
ORIGIN = f"http://127.0.0.1:{PORT}"
SCHEDULERS = ("local_cwd", "local_docker", "slurm", "stuck")
NUMBERS = itertools.count()


class Page:
    """The pages, asked without a socket."""

    def __init__(self, client: TestClient, kept: Secrets) -> None:
        self.client = client
        self.kept = kept

    def get(self, path: str, **query: Any) -> Any:
        return self.client.get(path, params=query)

    def act(self, action: str, *handles: str, **more: Any) -> Any:
        form = {"csrf": self.kept.csrf, "action": action, "handle": list(handles), **more}
        return self.client.post("/jobs/act", data=form, headers={"origin": ORIGIN}, follow_redirects=False)


@pytest.fixture
def stranger(home: object) -> Iterator[Page]:
    """A browser that has not been given the token."""
    kept = Secrets()
    pool = RunnerPool()
    pages = WebApp(SCHEDULERS, pool)
    app = BrowserGuard(pages.asgi, kept, PORT)
    with TestClient(app, base_url=ORIGIN, raise_server_exceptions=False) as client:
        yield Page(client, kept)
    pages.close()
    pool.close()


@pytest.fixture
def page(stranger: Page) -> Page:
    assert stranger.get("/", token=stranger.kept.token).status_code == 200
    return stranger


def record(
    history: History, name: str, state: str = "SUCCEEDED", scheduler: str = "local_cwd", **columns: Any
) -> str:
    """Put a job into the history; returns its handle."""
    app_id = columns.pop("app_id", f"job-{next(NUMBERS)}")
    handle = f"{scheduler}://shunter/{app_id}"
    app = AppDef(name, [Role("trainer", image="", entrypoint="python", args=["train.py"])])
    defaults = {
        "scheduler": scheduler,
        "session": "shunter",
        "name": name,
        "component": "utils.python",
        "component_args": [],
        "cfg": {},
        "app": to_json(app),
        "workspace": None,
        "cwd": "/",
        "argv": ["shunter"],
        "user": "you",
        "host": "here",
        "submitter": "1:1:1",
    }
    msg = columns.pop("msg", "")
    key = history.add_intent(JobRecord(**{**defaults, **columns}))
    ended = time.time() if state in ("SUCCEEDED", "FAILED", "CANCELLED") else None
    history.submitted(key, handle, app_id, state=state, msg=msg, ended_at=ended)
    return handle
