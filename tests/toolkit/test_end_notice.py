"""Telling of a job's end, and of hangs, from inside its first host."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import TYPE_CHECKING

import pytest

from shunter.schedulers.toolkit_supervision import EndRules, packed_causes
from tests.receiver import Receiver, receiving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .conftest import Tree


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def asked(target: str, rules: EndRules, **more: str) -> dict[str, str]:
    """Return the variables of a job that notifies."""
    again = {name: value for name, value in vars(rules).items() if name != "stopped"}
    return {
        "SHUNTER_NOTIFY": json.dumps({"targets": [target], "again": again, "stopped": rules.stopped}),
        "SHUNTER_NOTIFY_SECRET": "hush-hush-1",
        "SHUNTER_CAUSES": packed_causes(),
        "TORCHX_JOB_ID": "kubernetes://s/default:job-1",
        "TORCHX_ROLE_NAME": "train",
        "TORCHX_REPLICA_IDX": "0",
        **more,
    }


def test_the_end_is_told_once_and_signed(tree: Tree, receiver: Receiver) -> None:
    tree.script(
        "import os\nassert not any('NOTIFY' in n or 'CAUSES' in n for n in os.environ)\nimport torrch"
    )
    done = tree.train(**asked(receiver.url, EndRules()))
    assert done.returncode == 1
    [(headers, body)] = receiver.received
    message = json.loads(body)
    assert (message["handle"], message["state"]) == ("kubernetes://s/default:job-1", "FAILED")
    assert message["reason"] == "ModuleNotFoundError: No module named 'torrch'"
    cause = message["cause"]
    assert (cause["name"], cause["replica"], cause["exit_code"]) == ("missing_module", "train/0", 1)
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(b"hush-hush-1", signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert "hush" not in done.stderr


def test_success_is_told_by_the_first_host_alone(tree: Tree, receiver: Receiver) -> None:
    tree.script("print(1)")
    hook = {"HOOK": receiver.url}
    assert tree.train(**asked("env:HOOK", EndRules(), **hook, TORCHX_REPLICA_IDX="1")).returncode == 0
    assert tree.train(**asked("env:HOOK", EndRules(), **hook)).returncode == 0
    [(_, body)] = receiver.received
    assert json.loads(body)["state"] == "SUCCEEDED"


def test_a_failure_that_is_retried_is_not_the_end(tree: Tree, receiver: Receiver) -> None:
    tree.script("raise SystemExit(3)")
    rules = EndRules(2, "ATTEMPT", 1)
    assert tree.train(**asked(receiver.url, rules, ATTEMPT="1")).returncode == 3
    assert not receiver.received
    assert tree.train(**asked(receiver.url, rules, ATTEMPT="2")).returncode == 3
    [(_, body)] = receiver.received
    assert (json.loads(body)["state"], json.loads(body)["restarts"]) == ("FAILED", 1)


def test_a_failing_notification_changes_nothing(tree: Tree, receiver: Receiver) -> None:
    receiver.answers = [404]
    tree.script("print(1)")
    done = tree.train(**asked(receiver.url, EndRules()))
    assert done.returncode == 0
    assert "A URL was not notified of the job's end: it answered 404" in done.stderr
    assert tree.train(**{**asked(receiver.url, EndRules()), "SHUNTER_NOTIFY": "{"}).returncode == 0
    assert tree.train(**asked("env:NOWHERE", EndRules())).returncode == 0


@pytest.mark.parametrize("stopped", ["CANCELLED", ""])
def test_a_job_that_is_stopped(tree: Tree, receiver: Receiver, stopped: str) -> None:
    tree.script("import os, signal; os.kill(os.getppid(), 15); signal.pause()")
    tree.train(**asked(receiver.url, EndRules(stopped=stopped)))
    assert [json.loads(body)["state"] for _, body in receiver.received] == ([stopped] if stopped else [])


@pytest.mark.slow
def test_a_script_that_hangs_shows_its_stacks_and_goes_on(tree: Tree) -> None:
    """The script sees that its stacks are written, by what the signal's handler leaves, and ends then."""
    tree.script(
        """
        import os, time
        def waits_for_the_file():
            print("begin", flush=True)
            while not os.path.exists(os.environ["DUMP"]):
                time.sleep(0.05)
        waits_for_the_file()
        """
    )
    lines = []
    with tree.start(SHUNTER_HANG="5 report") as train:
        assert train.stderr is not None
        for line in train.stderr:
            lines.append(line)
            if "end of the stacks" in line:
                (tree.base / "dump.json").touch()
    assert train.returncode == 0
    text = "".join(lines)
    assert "shunter: no output for 5 s and no GPU activity; the stacks of its process:" in text
    assert "in waits_for_the_file" in text or "waits_for_the_file (" in text  # the latter by py-spy
    assert text.count("end of the stacks") == 1


@pytest.mark.slow
def test_a_hang_is_what_a_notification_tells(tree: Tree, receiver: Receiver) -> None:
    tree.script("import signal, sys; signal.signal(15, lambda *_: sys.exit(0)); import time; time.sleep(60)")
    done = tree.train(**asked(receiver.url, EndRules()), SHUNTER_HANG="5 stop")
    assert done.returncode == 1
    [(_, body)] = receiver.received
    message = json.loads(body)
    assert message["cause"]["name"] == "hung"
    assert message["reason"] == "train.py was stopped because it hung: no output for 5 s"
    assert tree.report["class"] == "hung"
