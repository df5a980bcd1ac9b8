"""Write a history of jobs that have ended, by the calls that record real ones. Nothing is started.

Usage: ``fill_history.py NUMBER NAMES``: so many jobs of so many names, into the state directory. Prints the
handle of the last one.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from shunter.runner import get_runner
from shunter.runner.submission import describe_submission
from shunter.schedulers.ids import make_unique
from shunter.specs.handles import make_app_handle
from shunter.specs.status import AppState

number, names = map(int, sys.argv[1:])
handle = ""
kinds: list[dict[str, Any]] = []
with get_runner() as runner:
    scheduler, history = runner.scheduler("local_cwd"), runner.history
    for i in range(number):
        if i < names:
            info = runner.dryrun_component("utils.echo", ["--msg", f"hello {i}"], "local_cwd")
            columns = describe_submission(scheduler, info, os.getcwd())
            columns["name"] = f"{info.app.name}{i or ''}"
            kinds.append(columns)
        columns = kinds[i % names]
        app_id = make_unique(columns["name"])
        handle = make_app_handle("local_cwd", columns["session"], app_id)
        key = history.add_intent(durable=False, **{**columns, "app_id": app_id, "handle": handle})
        history.submitted(key, handle, app_id)
        state = AppState.FAILED if i % 10 == 9 else AppState.SUCCEEDED
        history.observe([(handle, state, "", time.time())])
print(handle)
