"""The tables of causes: texts of schedulers and programs, also of those that are not on this machine.

See ``evidence.tsv`` for where the texts are from.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shunter import plugins
from shunter.diagnosis import causes, waiting
from shunter.diagnosis.failures import explain_failure
from shunter.diagnosis.waiting import explain_waiting
from shunter.specs.status import AppState, AppStatus, ReplicaStatus, RoleStatus

ROWS = [
    line.split("\t")
    for line in Path(__file__).with_name("evidence.tsv").read_text().splitlines()
    if line and not line.startswith("#")
]


def recorded(kind):
    return pytest.mark.parametrize(("expected", "text"), [row[1:] for row in ROWS if row[0] == kind])


def failed(reason="", code=1, log="", msg=""):
    replica = ReplicaStatus(0, AppState.FAILED, "r", reason=reason, exit_code=code)
    status = AppStatus(AppState.FAILED, msg=msg, roles=[RoleStatus("r", [replica])])
    return explain_failure(status, lambda _: log.splitlines())


@recorded("scheduler")
def test_words_of_schedulers(expected, text):
    found = failed(text)
    assert found.cause.name == expected
    assert found.evidence in text


@recorded("exception")
def test_exceptions_of_libraries(expected, text):
    found = failed(log=f'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n{text}\n')
    assert (found.cause.name, found.evidence) == (expected, text)
    assert found.traceback[-1] == text


@pytest.mark.parametrize(("expected", "code", "line", "text"), [row[1:] for row in ROWS if row[0] == "log"])
def test_ends_of_logs(expected, code, line, text):
    lines = text.split(" / ")
    found = failed(code=int(code), log="\n".join(lines))
    assert (found.cause.name, found.evidence.strip()) == (expected, lines[int(line) - 1].strip(" |"))


@recorded("waiting")
def test_words_for_waiting(expected, text):
    found = explain_waiting(AppStatus(AppState.PENDING, msg=text))
    assert (found.kind, found.reason) == (expected, text)


NO_CHANGE = waiting.KINDS["no_capacity"][1]
QUOTA = "exceeded quota: compute, requested: requests.cpu=4, used: requests.cpu=8, limited: requests.cpu=10"
FLAVOR = (
    "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor x, 2 more needed"
)
SLOTS = "waits for 2 of 2 GPUs (1 free); held by a"
MOST = "the compute environment hosts has at most 16 vCPUs, and a replica needs 32"


@pytest.mark.parametrize(
    ("kind", "text", "change"),
    [
        ("no_capacity", SLOTS, "With 1 instead of 2 GPUs it could start now."),
        ("no_capacity", SLOTS + "; behind b", NO_CHANGE),
        ("no_capacity", SLOTS.replace("1 free", "0 free"), NO_CHANGE),
        ("quota", QUOTA, "The quota leaves requests.cpu=2: with at most that it could start now."),
        ("quota", FLAVOR, "With 2 cpu less it could start now."),
        ("impossible", MOST, "Ask for at most 16 vCPUs a replica."),
    ],
)
def test_the_smallest_change_is_named_where_the_words_tell_it(kind, text, change):
    found = explain_waiting(AppStatus(AppState.PENDING, msg=text))
    assert (found.kind, found.advice) == (kind, change)


def test_each_rule_has_recorded_evidence():
    lines = [(row[1], line.strip()) for row in ROWS if row[0] != "waiting" for line in row[-1].split(" / ")]
    waits = [(row[1], row[2]) for row in ROWS if row[0] == "waiting"]
    tables = [
        *((rule.cause, rule.pattern, lines) for rule in [*causes.rules(), *causes.LOG_RULES]),
        *((kind, pattern, waits) for kind, pattern in waiting.rules()),
    ]
    assert [
        (name, pattern)
        for name, pattern, evidence in tables
        if not any(name == of and re.search(pattern, text, re.IGNORECASE) for of, text in evidence)
    ] == []


def test_plugins_add_causes_and_reasons_to_wait(tmp_path, monkeypatch):
    info = tmp_path / "site_rules-1.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(
        "[shunter.failure_rules]\na = site_rules:failures\n[shunter.waiting_rules]\nb = site_rules:waits\n"
    )
    (tmp_path / "site_rules.py").write_text(
        "from shunter.diagnosis.causes import SCHEDULER, Cause, Rule\n"
        "def failures():\n"
        "    licence = Cause('licence', 'found no licence', 'Ask for seats.')\n"
        "    return [Rule(licence, SCHEDULER, 'LIC-7'), Rule('bad_gpu', SCHEDULER, 'LIC-8')]\n"
        "def waits():\n"
        "    return [('quota', 'SITE_BUDGET')]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    plugins._entry_points_of_group.cache_clear()
    try:
        assert (failed("LIC-7").cause.text, failed("LIC-8").cause.name) == ("found no licence", "bad_gpu")
        assert explain_waiting(AppStatus(AppState.PENDING, msg="waiting: SITE_BUDGET")).kind == "quota"
    finally:
        plugins._entry_points_of_group.cache_clear()


TORCHRUN = """\
epoch 1
[rank2]: nothing
E1122 18:00:00.000000 77 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: -11)
Traceback (most recent call last):
  File "/usr/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_18:00:00
  host      : n1
  rank      : 2 (local_rank: 2)
  exitcode  : -11 (pid: 79)
  error_file: <N/A>
  traceback : Signal 11 (SIGSEGV) received by PID 79
============================================================
"""


def test_the_summary_of_torchrun_names_rank_and_signal():
    found = failed(log=TORCHRUN)
    assert (found.cause.name, found.rank) == ("segfault", "2")


def test_a_replica_that_failed_because_of_another_is_not_the_cause():
    logs = {
        0: "Traceback (most recent call last):\n  x\nRuntimeError: Connection closed by peer [10.0.0.2]:1\n",
        1: "Traceback (most recent call last):\n  x\nValueError: bad\n",
    }
    replicas = [ReplicaStatus(k, AppState.FAILED, "r", exit_code=1, ended_at=10.0 + k) for k in range(2)]
    status = AppStatus(AppState.FAILED, roles=[RoleStatus("r", replicas)])
    found = explain_failure(status, lambda replica: logs[replica.id].splitlines())
    assert (found.replica.id, found.cause.name, found.failed) == (1, "exception", 2)


def test_a_traceback_that_was_handled_is_not_the_cause():
    log = (
        "Traceback (most recent call last):\n  x\nValueError: handled\nretrying\n"
        "Traceback (most recent call last):\n  y\nTypeError: the end\n"
    )
    assert failed(log=log).evidence == "TypeError: the end"


def test_words_of_the_program_in_a_reason_are_not_those_of_the_scheduler():
    found = failed("exit code 1: FileNotFoundError: no such file: preempted.txt")
    assert found.cause.name == "missing_file"


def test_of_a_line_of_megabytes_the_beginning_is_read():
    found = failed(log="y" * 5_000_000 + "\nstep 1\nRuntimeError: CUDA out of memory\n")
    assert found.cause.name == "gpu_out_of_memory"
    assert max(map(len, found.log)) < 10_000


def test_a_lost_node_explains_replicas_of_which_nothing_is_known():
    replicas = [
        ReplicaStatus(k, AppState.FAILED, "r", reason="it did not say how it ended") for k in range(2)
    ]
    status = AppStatus(AppState.FAILED, msg="a node failed", roles=[RoleStatus("r", replicas)])
    found = explain_failure(status, lambda _: [])
    assert (found.cause.name, found.evidence, found.replica.id) == ("node_lost", "a node failed", 0)
