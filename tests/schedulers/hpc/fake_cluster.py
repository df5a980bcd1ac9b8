"""A scheduler on `fake_queue`: what a backend has to write, at its smallest."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

from shunter.schedulers.capabilities import SEPARATE_STREAMS, Capabilities
from shunter.schedulers.hpc.follow_up_request import AFTER, JOB_NAME, QueueWords
from shunter.schedulers.hpc.options import HpcOpts
from shunter.schedulers.hpc.queries import NativeJob
from shunter.schedulers.hpc.scheduler import HpcScheduler
from shunter.specs.options import option
from shunter.specs.status import AppState

QUEUE = str(Path(__file__).with_name("fake_queue.py"))
STATES = {
    "PENDING": AppState.PENDING,
    "RUNNING": AppState.RUNNING,
    "DONE": AppState.SUCCEEDED,
    "FAILED": AppState.FAILED,
    "TIMEOUT": AppState.FAILED,
    "CANCELLED": AppState.CANCELLED,
}


@dataclass
class FakeOpts(HpcOpts):
    limit: float | None = option("time limit in seconds", default=None)


class FakeCluster(HpcScheduler):
    capabilities = Capabilities(streams=SEPARATE_STREAMS, retries=("application",))
    id_pattern = r"^submitted (\d+)$"

    def __init__(self, session_name: str = "test", environment: str = "") -> None:
        super().__init__("fake", session_name)
        self.environment = environment  # over ssh, the queue's directory is not in the environment
        self.opts_class = FakeOpts

    def queue(self, *words: str) -> list[str]:
        return ["env", self.environment, QUEUE, *words] if self.environment else [QUEUE, *words]

    def make_script(self, plan, opts):
        lines = ["pids="]
        for role, count in plan.layout:
            for k in range(count):
                lines += [shlex.join(plan.replica(role, str(k))) + " &", 'pids="$pids $!"']
        lines += ["code=0", "for pid in $pids; do wait $pid || code=$?; done", "exit $code"]
        command = plan.around_job("sh", "-c", "\n".join(lines), retries=plan.retries)
        limit = ["--limit", str(opts.limit), "--warn", str(opts.grace_period)] if opts.limit else []
        return self.queue("submit", "--name", plan.app_id, *limit), f"#!/bin/sh\nexec {shlex.join(command)}\n"

    def queue_words(self, plan, opts, command):
        look = shlex.join(self.queue("list"))
        return QueueWords(
            directives=["#!/bin/sh"],
            submit=command,
            follow=[*self.queue("submit", "--name", JOB_NAME), "--after", f"{AFTER}:any"],
            look=f'{look} "$1" | sed -n \'s/.*"state": "\\([A-Z]*\\)".*/native=\\1/p\'',
            states={
                "DONE": ("SUCCEEDED", ""),
                "FAILED": ("", ""),
                "TIMEOUT": ("FAILED", "the time limit was reached"),
                "CANCELLED": ("CANCELLED", ""),
            },
            live=["PENDING", "RUNNING"],
            cancel=self.queue("cancel"),
            memory_option=["--memory", "%s"],
            exclude_option=["--without", "%s"],
        )

    def wait_options(self, after):
        return [
            word for native, any_end in after for word in ("--after", f"{native}:any" if any_end else native)
        ]

    def query(self, commands, refs):
        words = [word for ref in refs for word in ref.native_ids or [ref.app_id]]
        found: dict[str, list[NativeJob]] = {}
        for job in self._parse(self.ask(commands, self.queue("list", *words), "ask for jobs")):
            ref = next(r for r in refs if job.native_id in r.native_ids or job.app_id == r.app_id)
            found.setdefault(ref.app_id, []).append(job)
        return found

    def query_all(self, commands, since):
        return self._parse(self.ask(commands, self.queue("list"), "list jobs"))

    def cancel_natively(self, commands, native_ids):
        commands.check(self.queue("cancel", *native_ids), "cancel jobs")

    def enter_command(self, native, number, host, command, *, tty):
        return list(command)

    def _parse(self, text):
        jobs = []
        for line in text.splitlines():
            job = json.loads(line)
            native = NativeJob(job["id"], job.get("name", ""), native_state=job["state"])
            native.state = STATES.get(job["state"], AppState.UNKNOWN)
            native.submitted_at, native.started_at = job["submitted"], job.get("started")
            native.ended_at, native.exit_code = job.get("ended"), job.get("code")
            native.reason = "the time limit was reached" if job["state"] == "TIMEOUT" else ""
            jobs.append(native)
        return sorted(jobs, key=lambda job: int(job.native_id))
