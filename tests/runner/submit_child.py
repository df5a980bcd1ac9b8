"""A process that submits one job to the fake scheduler and, if told so, is killed on the way.

    python -m tests.runner.submit_child NAME [sql:N | before-schedule | after-schedule | after-submitted]

``sql:N`` kills it at the N-th SQL statement. It prints the job's handle when it comes to its end.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from shunter.runner import Runner, submit
from shunter.runner import history as database
from shunter.specs import AppDef, Role
from tests.runner.fake_scheduler import FakeScheduler


def die(*args: Any, **kwargs: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_statement(number: int) -> None:
    connect = database._connect
    seen: list[str] = []

    def trace(statement: str) -> None:
        seen.append(statement)
        if len(seen) == number:
            die()

    def traced(*args: Any, **kwargs: Any) -> Any:
        connection = connect(*args, **kwargs)
        connection.set_trace_callback(trace)
        return connection

    database._connect = traced


class Killed(FakeScheduler):
    def schedule(self, dryrun_info: Any) -> str:
        if stage == "before-schedule":
            die()
        app_id = super().schedule(dryrun_info)
        if stage == "after-schedule":
            die()
        return app_id


name = sys.argv[1]
stage = sys.argv[2] if len(sys.argv) > 2 else ""
if stage.startswith("sql:"):
    kill_at_statement(int(stage[4:]))
if stage == "after-submitted":
    record = submit._record
    submit._record = lambda *args, **columns: (record(*args, **columns), die())
with Runner("sess", {"fake": Killed}) as runner:
    handle = runner.run(AppDef(name, [Role("r", "img", entrypoint="true")]))
print(handle)
