"""Write a history of jobs that have ended, by the calls that record real ones. Nothing is started.

Usage: ``fill_history.py NUMBER NAMES``: so many jobs of so many names, into the state directory. Prints the
handle of the last one.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace

from shunter.runner import get_runner
from shunter.runner.records import JobRecord
from shunter.runner.submit import intent_of
from shunter.schedulers.ids import make_unique
from shunter.specs.handles import make_app_handle
from shunter.specs.status import AppState, AppStatus

number, names = map(int, sys.argv[1:])
handle = ""
kinds: list[JobRecord] = []
with get_runner() as runner:
    scheduler, history = runner.scheduler("local_cwd"), runner.history
    for i in range(number):
        if i < names:
            info = runner.dryrun_component("utils.echo", ["--msg", f"hello {i}"], "local_cwd")
            kinds.append(replace(intent_of(scheduler, info), name=f"{info.app.name}{i or ''}"))
        kind = kinds[i % names]
        app_id = make_unique(kind.name)
        handle = make_app_handle("local_cwd", kind.session, app_id)
        record = replace(kind, app_id=app_id, handle=handle, key=os.urandom(16).hex())
        key = history.add_intent(record, durable=False)
        history.submitted(key, handle, app_id)
        state = AppState.FAILED if i % 10 == 9 else AppState.SUCCEEDED
        history.observe([(handle, AppStatus(state, ended_at=time.time()))])
print(handle)
