"""The grace period of local jobs: each process gets one SIGTERM and the whole of it, whatever started it."""

import os
import signal
import sys
from pathlib import Path

import pytest

from shunter.components import utils
from shunter.specs import AppState, RetryPolicy

from .conftest import role, wait_until

#: Notes each SIGTERM in a file, and saves its state for as long as there is no file "gate".
SAVER = f"""#!{sys.executable}
import os, signal, sys, time
here = os.path.dirname(__file__)
def note(word):
    with open(here + "/notes", "a") as file:
        file.write(word + "\\n")
def save(*_):
    note("saving")
    while not os.path.exists(here + "/gate"):
        time.sleep(0.01)
    note("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
note("up")
while True:
    time.sleep(300)
"""
#: A launcher without handlers, whose child has a process group of its own.
LAUNCHER = f"""#!{sys.executable}
import os, subprocess, sys
subprocess.run(sys.argv[1:], preexec_fn=os.setpgrp)
"""


class Saver:
    """A program that saves its state when it is asked to end."""

    def __init__(self, directory: Path) -> None:
        self.notes, self.gate = directory / "notes", directory / "gate"
        self.path, self.launcher = directory / "save", directory / "launch"
        for path, text in ((self.path, SAVER), (self.launcher, LAUNCHER)):
            path.write_text(text)
            path.chmod(0o755)

    def wait(self, *words: str) -> None:
        wait_until(lambda: self.noted() == list(words), f"{words} in its notes")

    def noted(self) -> list[str]:
        return self.notes.read_text().split() if self.notes.exists() else []

    def finish(self) -> None:
        self.gate.touch()


@pytest.fixture
def saver(tmp_path):
    return Saver(tmp_path)


def wait_until_main_ended(jobs, app_id: str, name: str = "r") -> None:
    def has_ended() -> bool:
        (found,) = [item for item in jobs.state(app_id)["roles"] if item["role"] == name]
        return all(replica["pid"] and replica["state"] != "RUNNING" for replica in found["replicas"])

    wait_until(has_ended, f"the end of the main process of {name}")


@pytest.mark.parametrize(
    "script",
    [
        "{save}; true",
        "{save} & wait",
        "{launch} {save}; true",
        "setsid {save}; true",
        "setsid sh -c '{launch} {save}; true'; true",
    ],
)
def test_what_outlives_the_main_process_keeps_its_grace(jobs, saver, script):
    app_id = jobs.submit(role(script.format(save=saver.path, launch=saver.launcher)))
    saver.wait("up")
    jobs.scheduler.cancel(app_id)
    saver.wait("up", "saving")
    wait_until_main_ended(jobs, app_id)
    jobs.scheduler.cancel(app_id)
    assert jobs.scheduler.describe(app_id).state == AppState.RUNNING
    saver.finish()
    assert jobs.end_of(app_id).state == AppState.CANCELLED
    assert saver.noted() == ["up", "saving", "saved"]


def test_what_goes_on_after_the_grace_is_killed(jobs, saver):
    app_id = jobs.submit(role(f"setsid {saver.path}; true"), grace_period=2)
    saver.wait("up")
    jobs.scheduler.cancel(app_id)
    assert jobs.end_of(app_id).state == AppState.CANCELLED
    assert saver.noted() == ["up", "saving"]


@pytest.mark.parametrize("policy", ["fail_fast", "restart"])
def test_stop_for_a_peer_and_cancellation_are_one_sigterm(jobs, saver, policy):
    fails = saver.path.parent / "fails"
    restarts = {"max_retries": 1, "retry_policy": RetryPolicy.APPLICATION} if policy == "restart" else {}
    bad = role(f"while [ ! -e {fails} ]; do sleep 0.02; done; exit 3", name="bad", **restarts)
    app_id = jobs.submit(bad, role(f"{saver.path}; true"), fail_fast=True)
    saver.wait("up")
    fails.touch()
    saver.wait("up", "saving")
    wait_until_main_ended(jobs, app_id)
    jobs.scheduler.cancel(app_id)
    saver.finish()
    assert jobs.end_of(app_id).state == AppState.CANCELLED
    assert saver.noted() == ["up", "saving", "saved"]


def test_what_is_stopped_can_save_its_state(jobs, saver):
    app_id = jobs.submit(role(f"exec {saver.path}"))
    saver.wait("up")
    os.killpg(jobs.replica_pid(app_id), signal.SIGSTOP)
    jobs.scheduler.cancel(app_id)
    saver.wait("up", "saving")
    saver.finish()
    assert jobs.end_of(app_id).state == AppState.CANCELLED


def test_shell_component_becomes_the_program(jobs, saver):
    app_id = jobs.submit(*utils.sh(str(saver.path)).roles)
    saver.wait("up")
    pid = jobs.replica_pid(app_id)
    assert Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[1] == os.fsencode(saver.path)
    saver.finish()
    jobs.scheduler.cancel(app_id)
    jobs.end_of(app_id)
    assert saver.noted() == ["up", "saving", "saved"]
