"""Handles the end of a cluster job: restarts it after some failures, and sends notifications of its end.

A small job, the follow-up, waits in the queue until the submission has ended, however it ends, and runs this
module in the job's folder on shared storage. If the outcome is clear, the job's script runs it earlier, and
removes the follow-up from the queue. It reads ``follow-up.json`` and the records of ``run.sh``, and writes:

- ``retries``: one JSON object per line: what was done about a failure and why, the oldest first;
- ``settled``: there if nothing is left to be done;
- ``native`` and ``follow-up.ids``: the ids of what it submits.

The launcher declares the content of ``follow-up.json`` in ``schedulers/hpc/follow_up_request.py``.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Dict

from . import failure_class, host_ledger, notification, retry_rule, usage_log
from .masking import Masker

Record = Dict[str, str]

NODE = "node"
#: How many seconds the queue may take until it says how a job ended, if it does at all.
LAG_SECONDS = 20.0
#: How much of a log's end is read.
LOG_BYTES = 64 * 1024
#: Most hosts that a job avoids.
MOST_AVOIDED = 16
COMMAND_SECONDS = 120.0
#: Files of `Outbox`: while there is something to send, and afterwards.
WAITING, SETTLED_BOX = "notify.waiting.json", "notify.json"


class NotNow(Exception):
    """A target does not answer now; the follow-up will try again later."""


class JobFolder:
    """A job's folder: what was requested, and what its records say.

    Args:
        path: the folder.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.asked: dict[str, Any] = json.loads(self.text("follow-up.json"))
        self.document: dict[str, Any] = json.loads(self.text("job.json"))
        #: The last record of each replica, and of the submission ("job"): attempt, start and exit.
        self.last: dict[str, tuple[int, Record, Record | None]] = {}
        self._read_records()

    def text(self, name: str) -> str:
        """Return the content of a file; "" without it."""
        try:
            with open(os.path.join(self.path, name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def put(self, name: str, text: str) -> None:
        """Replace a file atomically."""
        path = os.path.join(self.path, name)
        partial = f"{path}.{os.getpid()}.tmp"
        with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
        os.replace(partial, path)

    def note(self, entry: dict[str, Any]) -> None:
        """Add a line to ``retries``."""
        self.put("retries", self.text("retries") + json.dumps(entry) + "\n")

    @property
    def native_ids(self) -> list[str]:
        """The ids of its submissions."""
        return self.text("native").split()

    @property
    def retries(self) -> list[dict[str, Any]]:
        """What was done about its failures so far."""
        return [json.loads(line) for line in self.text("retries").splitlines() if line.strip()]

    def replicas(self) -> list[str]:
        """Return the names of the replicas, in order, without those that were cancelled alone."""
        alone = set(self.cancelled_alone())
        return [name for name in self._all_replicas() if name not in alone]

    def cancelled_alone(self) -> list[str]:
        """Return the replicas of an array that were cancelled while the others went on."""
        noted = {name.rpartition(".cancelled")[0] for name in os.listdir(os.path.join(self.path, "state"))}
        return [name for name in self._all_replicas() if name in noted]

    def _all_replicas(self) -> list[str]:
        return [f"{role}-{k}" for role, count in self.document["layout"] for k in range(count)]

    def _read_records(self) -> None:
        names = sorted(os.listdir(os.path.join(self.path, "state")))
        attempts: dict[str, int] = {}
        for name in names:
            what, _, number = name.rpartition(".")[0].rpartition(".")
            if name.endswith(".start") and number.isdigit():
                attempts[what] = max(attempts.get(what, 0), int(number))
        for what, attempt in attempts.items():
            ended = self.record(f"{what}.{attempt}.exit")
            self.last[what] = (attempt, self.record(f"{what}.{attempt}.start") or {}, ended)

    def record(self, name: str) -> Record | None:
        """Return a record of ``run.sh``; None without it."""
        text = self.text(os.path.join("state", name))
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line) if text else None

    def log_end(self, name: str, attempt: int) -> str:
        """Return the end of a replica's log, stderr last."""
        found = ""
        for stream in ("out", "err"):
            with contextlib.suppress(OSError):
                found += _end_of(os.path.join(self.path, "logs", name, f"{attempt}.{stream}")) + "\n"
        return found

    def queue_output(self) -> list[str]:
        """Return the last lines of what the queue's programs wrote about the last submission."""
        folder = os.path.join(self.path, "logs")
        try:
            paths = [
                os.path.join(folder, name)
                for name in os.listdir(folder)
                if name.endswith(".out") and name != "follow-up.out"
            ]
            return _end_of(max(paths, key=os.path.getmtime)).splitlines()
        except (OSError, ValueError):  # there is none
            return []


def _end_of(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        return usage_log.without_usage(file.read(LOG_BYTES)).decode("utf-8", "replace")


@dataclass
class End:
    """How a job ended: its state, the reason, and of a failure the cause, the replica and lost hosts."""

    state: str
    reason: str = ""
    found: failure_class.Found | None = None
    replica: str = ""
    exit_code: int | None = None
    hosts: list[str] = field(default_factory=list)


def main(words: Sequence[str]) -> int:
    """``FOLDER``, or ``FOLDER LINK CODE`` from the job's script; returns an exit code."""
    path = words[0]
    if not os.path.exists(os.path.join(path, "job.json")) or os.path.exists(os.path.join(path, "settled")):
        return 0  # the job has been deleted, or nothing is left to do
    job = JobFolder(path)
    if len(words) > 1:
        return _early(job, int(words[2]))
    native = job.native_ids[-1] if job.native_ids else ""
    states = _look(job, native)
    if any(state in job.asked["live"] for state in states):
        _submit_follow_up(job, native)  # the queue has started it again
        return 0
    end = end_of(job, states)
    is_new = not any(entry.get("native") == native for entry in job.retries)
    may_retry = end.state == "FAILED" and job.asked.get("retry") is not None and is_new
    if may_retry and _retry(job, end, native):
        return 0
    _tell(job, end, time.sleep)
    job.put("settled", end.state + "\n")
    return 0


def _early(job: JobFolder, code: int) -> int:
    """Do from the job's script what the exit code decides and takes no time; the follow-up does the rest."""
    if code and job.asked.get("retry") is not None:
        return 0
    exits = [job.last[name][2] or {} for name in job.replicas() if name in job.last]
    by_themselves = [each.get("code", "") for each in exits if each.get("why") == "ended"]
    is_plain = any(0 < int(each or 0) < 128 for each in by_themselves) if code else _all_succeeded(job)
    if not is_plain:
        return 0  # a program of the queue may end with 0 when the queue stops the job
    targets = json.loads(job.text(WAITING) or "{}").get("targets", [])
    if any(not notification.is_url(target["to"]) for target in targets):
        return 0  # a command may take longer than the job should
    end = end_of(job, [])

    def give_up(seconds: float) -> None:
        raise NotNow

    try:
        _tell(job, end, give_up)
    except NotNow:
        return 0
    job.put("settled", end.state + "\n")
    ids = job.text("follow-up.ids").split()
    if ids:
        _run([*job.asked["cancel"], ids[-1].partition(";")[0]])
    return 0


# ---- how it ended


def end_of(job: JobFolder, native_states: Sequence[str]) -> End:
    """Return how a job ended, from what the queue says and what the job's folder holds."""
    by_queue = [
        job.asked["states"].get(state, ["FAILED", f"the queue says {state}"]) for state in native_states
    ]
    by_queue = [each for each in by_queue if each[0]]
    failed = next((each for each in by_queue if each[0] == "FAILED"), None)
    cancelled_by = job.text("cancelled").strip()
    final = [job.last["job"]] if "job" in job.last else [job.last[n] for n in job.replicas() if n in job.last]
    exits = [ended for _, _, ended in final if ended is not None]
    is_over = bool(final) and len(exits) == len(final) and all(each.get("why") == "ended" for each in exits)
    if _all_succeeded(job):
        alone = job.cancelled_alone()
        return End("CANCELLED", f"{len(alone)} of its replicas were cancelled") if alone else End("SUCCEEDED")
    if cancelled_by or os.path.exists(os.path.join(job.path, "cancelled")):
        return End("CANCELLED", f"cancelled by {cancelled_by or 'somebody'}")
    if any(each.get("why") == "time-limit" for each in exits):
        return _explained(job, End("FAILED", "the time limit was reached"))
    if not is_over and failed is None:
        was_cancelled = next((each for each in by_queue if each[0] == "CANCELLED"), None)
        if was_cancelled is not None:
            return End("CANCELLED", was_cancelled[1])
        if exits and all(each.get("why") == "stopped" for each in exits):
            return End("CANCELLED", "it was stopped")
        if by_queue and not exits:
            return End("SUCCEEDED" if all(each[0] == "SUCCEEDED" for each in by_queue) else "FAILED")
    return _explained(job, End("FAILED", failed[1] if failed is not None else ""))


def _all_succeeded(job: JobFolder) -> bool:
    """Tell whether all replicas ended by themselves, with 0, and the submission with them."""
    exits = [job.last[name][2] if name in job.last else None for name in job.replicas()]
    if "job" in job.last:
        exits.append(job.last["job"][2])
    return all(each is not None and each.get("code") == "0" and each.get("why") == "ended" for each in exits)


def _explained(job: JobFolder, end: End) -> End:
    """Add the cause, from the first replica that failed by itself."""
    table = failure_class.Table(job.asked["table"])
    first: tuple[failure_class.Found, str, int | None] | None = None
    records = [(name, *job.last[name]) for name in job.replicas() if name in job.last]
    failed = [each for each in records if each[3] is not None and each[3].get("code") != "0"]
    failed.sort(key=lambda each: _number((each[3] or {}).get("time")) or 0.0)
    lost = [each for each in records if each[3] is None]
    said_of_job = [end.reason] if end.reason else []
    for name, attempt, _, ended in failed[:8]:
        number = _number((ended or {}).get("code"))
        code = None if number is None else int(number)
        said = [text for text in [(ended or {}).get("reason", "")] if text]
        if lost or len(records) == 1 or not said:
            said += said_of_job
        report = job.text(f"logs/{name}/{attempt}.error.json") or job.text(f"ml/{name}/output/failure")
        found = table.cause_of(said, code, job.log_end(name, attempt), report)
        if first is None or first[0].is_consequence:
            first = found, name, code
        if not first[0].is_consequence:
            break
    if first is None or (lost and said_of_job and first[0].is_consequence):
        name, attempt = (lost[0][0], lost[0][1]) if lost else ("", 0)
        found = table.cause_of(said_of_job, None, job.log_end(name, attempt) if name else "")
        first = found, name, None
    end.found, end.replica, end.exit_code = first
    if end.found.name in failure_class.UNEXPLAINED:
        end.found = table.cause_by_queue(job.queue_output()) or end.found
    if not end.reason and end.replica:
        ended = job.last[end.replica][2] or {}
        role, _, index = end.replica.rpartition("-")
        end.reason = f"{role}/{index}: {ended.get('reason') or 'exit code ' + ended.get('code', '?')}"
    if end.found.failure_class == NODE:
        hit = [end.replica] if end.replica and not said_of_job else [each[0] for each in lost or failed]
        end.hosts = sorted({job.last[name][1].get("host", "") for name in hit} - {""})
    return end


def _look(job: JobFolder, native: str) -> list[str]:
    """Return the queue's words for the state of a submission; [] if it does not know it any more."""
    deadline = time.monotonic() + LAG_SECONDS
    while True:
        text = _run([*job.asked["look"], native.partition(";")[0]])[1] if native else ""
        found = re.findall(r"^native=(\S+)", text, re.M)
        if found or not native or time.monotonic() > deadline:
            return found
        time.sleep(2.0)


# ---- starting it again


def _retry(job: JobFolder, end: End, native: str) -> bool:
    """Start a job again if a rule says so; returns whether it was."""
    assert end.found is not None
    found = end.found
    before = job.retries
    rules = {name: retry_rule.RetryRule(**rule) for name, rule in job.asked["retry"].items()}
    name = found.failure_class if found.failure_class in rules else "max_retries"
    rule = rules.get(name, retry_rule.RetryRule(int(job.asked["max_retries"])))
    used = sum(1 for entry in before if entry.get("again") and entry.get("rule") == name)
    memory = next((int(entry["memory"]) for entry in reversed(before) if entry.get("memory")), 0)
    memory = memory or int(job.asked["memory"])
    against = rule.verdict(used, memory if name == retry_rule.OOM else 0)
    if name == "max_retries" and not rule.times:
        against = "it must not be retried"
    text = retry_rule.words(found.text, found.evidence, found.failure_class, rule, used, against, memory)
    entry: dict[str, Any] = {
        "native": native,
        "rule": name,
        "class": found.failure_class,
        "cause": found.name,
        "again": not against,
        "text": text,
        "at": time.time(),
    }
    if found.failure_class == NODE:
        _note_hosts(job, end)
    if against:
        job.note(entry)
        return False
    if name == retry_rule.OOM:
        entry["memory"] = rule.more_memory(memory)
    options = _memory_option(job, entry.get("memory") or memory)
    avoided = _avoided(job, end)
    code, said, new = _submit(job, [*job.asked["submit"], *options, *_exclude_option(job, avoided)], "script")
    if avoided:
        entry["avoids"] = [] if code else avoided
        refusal = f", which the queue refuses: {said}" if code else ""
        entry["text"] += f"; it {'was to avoid' if code else 'avoids'} {', '.join(avoided)}{refusal}"
    if code and avoided:
        code, said, new = _submit(job, [*job.asked["submit"], *options], "script")
    if code:
        entry["again"] = False
        entry["text"] = f"{text.partition('; restarted')[0]}; the queue refuses to restart it: {said}"
        job.note(entry)
        return False
    entry["submitted"] = new
    job.put("native", job.text("native") + new + "\n")
    job.note(entry)
    if os.path.exists(os.path.join(job.path, "cancelled")):  # meanwhile
        _run([*job.asked["cancel"], new.partition(";")[0]])
    _submit_follow_up(job, new)
    return True


def _memory_option(job: JobFolder, memory: int) -> list[str]:
    """Return the options that give each replica of the next attempt this much memory; [] if not more."""
    if not job.asked["memory_option"] or memory <= int(job.asked["memory"]):
        return []
    amount = -int(-memory * float(job.asked["memory_factor"]) // 1)
    return [word.replace("%s", str(amount)) for word in job.asked["memory_option"]]


def _exclude_option(job: JobFolder, hosts: Sequence[str]) -> list[str]:
    if not hosts:
        return []
    items = [job.asked["exclude_item"].replace("%s", host) for host in hosts]
    return [
        word.replace("%s", job.asked["exclude_separator"].join(items)) for word in job.asked["exclude_option"]
    ]


def _note_hosts(job: JobFolder, end: End) -> None:
    """Note hosts that were lost or are defective; of several, only those that the queue reports as down."""
    assert end.found is not None
    if len(end.hosts) > 1 and job.asked["down"]:
        words = [word.replace("@HOSTS@", ",".join(end.hosts)) for word in job.asked["down"]]
        down = {host.partition(".")[0] for host in _run(words)[1].split()}
        end.hosts = [host for host in end.hosts if host.partition(".")[0] in down]
    for host in end.hosts:
        try:
            evidence = end.found.evidence or end.found.text
            host_ledger.add(
                ledger_path(job.path), NODE, host, os.path.basename(job.path), evidence, time.time()
            )
        except OSError as error:
            sys.stderr.write(f"{ledger_path(job.path)} cannot be written: {error.strerror}\n")


def _avoided(job: JobFolder, end: End) -> list[str]:
    """Return the hosts that the next attempt avoids: first those of this failure, then the ledger's."""
    if not job.asked["exclude_option"]:
        return []
    known = host_ledger.read(ledger_path(job.path), time.time()).get(NODE, {})
    latest = sorted(known, key=lambda host: float(known[host]["last"]), reverse=True)
    return list(dict.fromkeys([*end.hosts, *latest]))[:MOST_AVOIDED]


def ledger_path(folder: str) -> str:
    """Return the path of a cluster's ledger, which all of this user's jobs there share."""
    return os.path.join(os.path.dirname(os.path.dirname(folder)), host_ledger.FILE_NAME)


def _submit_follow_up(job: JobFolder, native: str) -> None:
    words = [word.replace("@AFTER@", native.partition(";")[0]) for word in job.asked["follow"]]
    code, said, new = _submit(job, words, "follow-up.script")
    if code:
        sys.stderr.write(f"the follow-up of {native} was refused: {said}\n")
        return
    job.put("follow-up.ids", job.text("follow-up.ids") + new + "\n")


def _submit(job: JobFolder, words: Sequence[str], script: str) -> tuple[int, str, str]:
    """Submit a script of the job; returns an exit code, what was said, and the native id."""
    code, text = _run(words, job.text(script))
    match = re.search(job.asked["id_pattern"], text, re.M)
    said = " ".join(text.split())[-300:]
    if code or match is None:
        return code or 1, said or f"{words[0]} cannot be run on {os.uname().nodename}", ""
    return 0, said, match[1]


def _run(words: Sequence[str], stdin: str = "") -> tuple[int, str]:
    """Run a command; returns its exit code, and what it printed."""
    try:
        done = subprocess.run(
            list(words),
            input=stdin.encode("utf-8", "surrogateescape"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, f"{words[0]}: {getattr(error, 'strerror', '') or 'no answer'}"
    return done.returncode, done.stdout.decode("utf-8", "replace")


# ---- notifications


def _tell(job: JobFolder, end: End, sleep: Any) -> None:
    """Send every requested notification once."""
    waiting = os.path.join(job.path, WAITING)
    if not os.path.exists(waiting):
        return
    box = notification.Outbox(waiting, os.path.join(job.path, SETTLED_BOX))
    if not box.claim():
        return
    box.send(Masker().json(_message(job, end)), sleep)
    for target in box.document["targets"]:
        if target["state"] == notification.FAILED:
            sys.stderr.write(f"{Masker().text(target['to'])} was not notified: {target['error']}\n")


def _message(job: JobFolder, end: End) -> dict[str, Any]:
    records = [(start, ended or {}) for _, start, ended in job.last.values()]
    starts = [when for start, _ in records if (when := _number(start.get("time"))) is not None]
    ends = [when for _, ended in records if (when := _number(ended.get("time"))) is not None]
    cause = None
    if end.found is not None:
        role, _, index = end.replica.rpartition("-")
        cause = {
            "name": end.found.name,
            "text": end.found.text,
            "evidence": end.found.evidence,
            "replica": f"{role}/{index}" if role else None,
            "exit_code": end.exit_code,
        }
    attempts = max((attempt for attempt, _, _ in job.last.values()), default=0)
    last = job.retries[-1:] if end.state == "FAILED" else []
    return notification.end_message(
        job.asked["handle"],
        end.state,
        reason="; ".join(filter(None, [end.reason, *(str(entry["text"]) for entry in last)])),
        cause=cause,
        restarts=attempts,
        started_at=min(starts, default=None),
        ended_at=max(ends, default=time.time()),
        results=job.document.get("results"),
    )


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
