"""What LSF says, by its documents and by answers that users have published, and what follows from it."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.schedulers.hpc.queries import NativeJob
from shunter.schedulers.lsf_scheduler import observe
from shunter.specs import AppState, is_terminal

NOW = time.mktime((2026, 3, 1, 12, 0, 0, 0, 0, -1))
#: Written after answers of LSF 10.1 that users have published, escaped slashes and " L" included.
ANSWER = r"""Cannot connect to LSF. Please wait ...
Cannot connect to LSF. Please wait ...
{
  "COMMAND":"bjobs",
  "JOBS":"5",
  "RECORDS":[
    {
      "JOBID":"22005",
      "JOBINDEX":"0",
      "JOB_NAME":"echo-bcdfghjkmn",
      "STAT":"DONE",
      "EXEC_HOST":"4*tbi-cn019:tbi-cn020",
      "EXIT_CODE":"",
      "EXIT_REASON":"",
      "PEND_REASON":"",
      "SUBMIT_TIME":"Dec 28 19:56",
      "START_TIME":"Dec 28 19:56",
      "FINISH_TIME":"Dec 28 19:57 L",
      "EXEC_CWD":"\/home\/me"
    },
    {
      "JOBID":"31",
      "JOBINDEX":"1",
      "JOB_NAME":"arr-bcdfghjkmn[1]",
      "STAT":"EXIT",
      "EXEC_HOST":"a",
      "EXIT_CODE":"3",
      "EXIT_REASON":""
    },
    {
      "JOBID":"31",
      "JOBINDEX":"2",
      "JOB_NAME":"arr-bcdfghjkmn[2]",
      "STAT":"PEND",
      "EXEC_HOST":"",
      "EXIT_CODE":"",
      "PEND_REASON":"The job array has reached its job slot limit;"
    },
    {
      "JOBID":"77",
      "ERROR":"Job <77> is not found"
    },
    {
      "JOBID":"40",
      "JOB_NAME":"new",
      "STAT":"HIBERNATING",
      "NEW_FIELD":{"a":1}
    }
  ]
}
"""


def jobs(text: str) -> dict[str, NativeJob]:
    return observe.jobs_from_json(text, NOW)


def one(**fields: str) -> NativeJob:
    record = {"JOBID": "1", "JOBINDEX": "0", "JOB_NAME": "x", **fields}
    return jobs(json.dumps({"COMMAND": "bjobs", "JOBS": 1, "RECORDS": [record]}))["1"]


def test_a_published_answer() -> None:
    found = jobs(ANSWER)
    assert set(found) == {"22005", "31", "40"}
    done = found["22005"]
    assert (done.app_id, done.state, done.exit_code) == ("echo-bcdfghjkmn", AppState.SUCCEEDED, 0)
    assert done.hosts == ["tbi-cn019", "tbi-cn020"]
    assert done.submitted_at == time.mktime((2025, 12, 28, 19, 56, 0, 0, 0, -1))  # not in the future
    assert done.ended_at == done.submitted_at + 60
    array = found["31"]
    assert (array.app_id, array.state) == ("arr-bcdfghjkmn", AppState.RUNNING)  # some have ended
    assert {k: (r.state, r.exit_code) for k, r in array.replicas.items()} == {
        0: (AppState.FAILED, 3),
        1: (AppState.PENDING, None),
    }
    assert array.reason == "The job array has reached its job slot limit"
    assert (found["40"].state, found["40"].reason) == (AppState.UNKNOWN, "LSF says HIBERNATING")


@pytest.mark.parametrize(
    ("stat", "code", "said", "state", "words"),
    [
        ("PEND", "", "New job is waiting for scheduling;", AppState.PENDING, "New job is waiting"),
        ("PSUSP", "", "", AppState.SUSPENDED, "bresume"),
        ("SSUSP", "", "", AppState.SUSPENDED, "suspended by LSF"),
        ("RUN", "", "", AppState.RUNNING, ""),
        ("UNKWN", "", "", AppState.UNREACHABLE, "lost contact"),
        ("ZOMBI", "", "", AppState.UNKNOWN, "may still run"),
        ("EXIT", "3", "", AppState.FAILED, ""),
        ("EXIT", "137", "", AppState.FAILED, "killed by SIGKILL"),
        ("EXIT", "130", "TERM_OWNER: job killed by owner.", AppState.CANCELLED, "killed by owner"),
        (
            "EXIT",
            "",
            "TERM_ADMIN: job killed by root or LSF administrator",
            AppState.CANCELLED,
            "administrator",
        ),
        (
            "EXIT",
            "140",
            "TERM_RUNLIMIT: job killed after reaching LSF run time limit",
            AppState.FAILED,
            "time limit",
        ),
        (
            "EXIT",
            "137",
            "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit",
            AppState.FAILED,
            "memory",
        ),
        ("EXIT", "1", "TERM_UNKNOWN: unknown reason", AppState.FAILED, "exit code 1: TERM_UNKNOWN"),
        ("EXIT", "", "TERM_ORPHAN_SYSTEM: orphaned job terminated", AppState.CANCELLED, "orphaned"),
        ("EXIT", "130", "TERM_REMOVE_HUNG_JOB: job removed from LSF", AppState.FAILED, "removed from LSF"),
        ("EXIT", "140", "TERM_PREEMPT: job killed after preemption", AppState.FAILED, "preemption"),
        (
            "EXIT",
            "143",
            "TERM_ZOMBIE: job exited while LSF is not there",
            AppState.FAILED,
            "not there",
        ),
        ("POST_ERR", "", "", AppState.SUCCEEDED, "post-processing failed"),
        ("POST_ERR", "3", "", AppState.FAILED, ""),
    ],
)
def test_states_and_reasons(stat: str, code: str, said: str, state: AppState, words: str) -> None:
    reason = {"PEND_REASON": said} if stat == "PEND" else {"EXIT_REASON": said}
    job = one(STAT=stat, EXIT_CODE=code, **reason)
    assert (job.state, job.native_state) == (state, stat)
    assert words in job.reason
    assert job.reason.startswith("stopped at its time limit: ") == ("RUNLIMIT" in said)


@given(st.text(max_size=8).filter(lambda stat: stat not in ("DONE", "EXIT", "POST_DONE", "POST_ERR")))
def test_only_documented_states_are_an_end(stat: str) -> None:
    assert not is_terminal(one(STAT=stat).state)


#: Written after "Understand successful application exit values" of 10.1's documents, and its bhist.
REQUEUED = """
Job <5583>, Job Name <a-b>, User <name>, Project <default>, Application <test>, Command <./non_zero.sh>
Sun Feb  1 10:52:20: Submitted from host <HostA>, to Queue <normal>, CWD <$HOME>;
Sun Feb  1 10:52:22: Dispatched to <intel4>, Effective RES_REQ <select[type == local] order[slots] >;
Sun Feb  1 10:52:22: Starting (Pid 31390);
Sun Feb  1 10:52:23: Running with execution home </home/dir>, Execution Pid <31390>;
Sun Feb  1 10:52:23: Exited with exit code 17. The CPU time used is 0.1 seconds;
Sun Feb  1 10:52:23: Pending: Requeued job is waiting for rescheduling;(exit code 17)
"""
AGAIN = """\
Sun Feb  1 10:52:23: Dispatched to <intel5>, Effective RES_REQ <select[type == local] order[slots] >;
Sun Feb  1 10:52:23: Starting (Pid 31394);
Sun Feb  1 10:55:49: Unknown; unable to reach the execution host;
"""
DONE = """\
Sun Feb  1 11:10:32: Running;
Sun Feb  1 11:10:38: Done successfully. The CPU time used is 0.1 seconds;
"""


def test_a_requeued_job_has_ended_with_its_last_run() -> None:
    assert observe.jobs_from_history(REQUEUED, NOW) == {}
    assert observe.jobs_from_history(REQUEUED + AGAIN, NOW) == {}  # a host that is lost is no end
    (job,) = observe.jobs_from_history(REQUEUED + AGAIN + DONE, NOW).values()
    assert (job.state, job.exit_code, job.hosts) == (AppState.SUCCEEDED, 0, ["intel5"])


#: Written after bhist(1) of LSF 10.1.
HISTORY = """
Job <1001>, Job Name <a-b>, User <me>, Project <default>, Command <sh>
Tue Feb  3 15:45:10: Submitted from host <hostA>, to Queue <normal>, CWD <$HOME>;
Tue Feb  3 15:45:11: Dispatched 2 Task(s) on Host(s) <hostB> <hostC>, Allocated 2 Slot(s);
Tue Feb  3 15:45:11: Starting (Pid 12);
Tue Feb  3 15:50:00: Done successfully. The CPU time used is 1.0 seconds;

Summary of time in seconds spent in various states by  Tue Feb  3 15:50:00
  PEND     PSUSP    RUN      USUSP    SSUSP    UNKWN    TOTAL
  1        0        289      0        0        0        290
------------------------------------------------------------------------------

Job <1002>, Job Name <c>, User <me>, Project <default>, Command <sh>
Tue Feb  3 15:45:10: Submitted from host <hostA>, to Queue <normal>, CWD <$HOME>;
Tue Feb  3 15:45:11: Dispatched 1 Task(s) on Host(s) <hostB>;
Tue Feb  3 15:46:00: Exited with exit code 140. The CPU time used is 1.0 seconds;
Tue Feb  3 15:46:00: Completed <exit>; TERM_RUNLIMIT: job killed after reaching LSF run time limit;
------------------------------------------------------------------------------

Job <1003>, Job Name <d>, User <me>, Project <default>, Command <sh>
Tue Feb  3 15:45:10: Submitted from host <hostA>, to Queue <normal>, CWD <$HOME>;
Tue Feb  3 15:45:11: Dispatched 1 Task(s) on Host(s) <hostB>;
Tue Feb  3 15:46:00: Exited by signal 9. The CPU time used is 1.0 seconds;
------------------------------------------------------------------------------

Job <1004>, Job Name <e>, User <me>, Project <default>, Command <sh>
Tue Feb  3 15:45:10: Submitted from host <hostA>, to Queue <normal>, CWD <$HOME>;
"""


def test_what_bjobs_has_forgotten() -> None:
    found = observe.jobs_from_history(HISTORY, NOW)
    assert {number: (job.state, job.exit_code) for number, job in found.items()} == {
        "1001": (AppState.SUCCEEDED, 0),
        "1002": (AppState.FAILED, 140),
        "1003": (AppState.FAILED, 137),
    }
    assert found["1001"].hosts == ["hostB", "hostC"]
    assert found["1002"].reason.startswith("stopped at its time limit: ")
    assert found["1003"].reason == "killed by SIGKILL"
