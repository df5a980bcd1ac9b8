"""Telling of a job's end: once each, with retries, signed, whatever is killed in between."""

import base64
import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
import threading

import pytest

from shunter._toolkit import notification
from tests.docs.documents import ROOT
from tests.receiver import receiving

MESSAGE = {"version": 1, "state": "FAILED", "handle": "x://y/z", "job": "z", "cause": {"name": "exception"}}


@pytest.fixture
def receiver():
    with receiving() as receiver:
        yield receiver


def outbox(folder, targets, **changes):
    document = {"handle": "x://y/z", "secret": "s3", "targets": notification.new_targets(targets)}
    for target in document["targets"]:
        target.update(changes)
    (folder / "waiting").write_text(json.dumps(document))
    box = notification.Outbox(str(folder / "waiting"), str(folder / "settled"))
    assert box.claim()
    return box


def settled(folder):
    assert not (folder / "waiting").exists()
    document = json.loads((folder / "settled").read_text())
    assert "secret" not in document
    return [(target["state"], target["attempts"], target["error"]) for target in document["targets"]]


def test_a_url_is_notified_once_and_signed(tmp_path, receiver):
    outbox(tmp_path, [receiver.url, receiver.url]).send(MESSAGE, sleep=pytest.fail)
    [(headers, body)] = receiver.received
    sent = json.loads(body)
    assert {**sent, "id": ""} == {**MESSAGE, "id": ""}
    assert headers["webhook-id"] == sent["id"]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    expected = base64.b64encode(hmac.digest(b"s3", signed, hashlib.sha256)).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert settled(tmp_path) == [("told", 1, "")]


def test_secrets_in_base64_are_those_of_standard_webhooks():
    plain = notification.sign("secret bytes", "msg_1", 7, b"{}")
    assert (
        notification.sign("whsec_" + base64.b64encode(b"secret bytes").decode(), "msg_1", 7, b"{}") == plain
    )


def test_it_is_tried_again_with_the_same_id(tmp_path, receiver):
    receiver.answers = [503, 429]
    delays = []
    outbox(tmp_path, [receiver.url]).send(MESSAGE, sleep=delays.append)
    assert len({headers["webhook-id"] for headers, _ in receiver.received}) == 1
    assert len(receiver.received) == 3
    assert len(delays) == 2
    assert settled(tmp_path) == [("told", 3, "")]


def test_what_is_refused_for_good_is_given_up(tmp_path, receiver):
    receiver.answers = [404]
    outbox(tmp_path, [receiver.url]).send(MESSAGE, sleep=pytest.fail)
    assert settled(tmp_path) == [("failed", 1, "it answered 404")]


def test_a_redirect_is_not_followed(tmp_path, receiver):
    receiver.answers = [307]
    outbox(tmp_path, [receiver.url]).send(MESSAGE, sleep=pytest.fail)
    assert len(receiver.received) == 1
    assert settled(tmp_path) == [("failed", 1, "it answered 307")]


def test_target_that_does_not_answer(tmp_path):
    with receiving() as gone:
        url = gone.url
    delays = []
    outbox(tmp_path, [url]).send(MESSAGE, sleep=delays.append)
    [(state, attempts, error)] = settled(tmp_path)
    assert (state, attempts) == ("failed", notification.MOST_ATTEMPTS)
    assert "refused" in error
    assert max(delays) <= notification.LONGEST_DELAY


def test_a_target_that_does_not_answer_holds_up_no_other(tmp_path, receiver, monkeypatch):
    monkeypatch.setattr(notification, "TIMEOUT_SECONDS", 60.0)
    monkeypatch.setattr(notification, "MOST_ATTEMPTS", 2)
    receiver.answers = [503]
    others_are_told = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_last():
            connection, _ = server.accept()
            with connection:
                others_are_told.wait()
                connection.recv(1 << 16)
                connection.sendall(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")

        threading.Thread(target=answer_last, daemon=True).start()
        slow = f"http://127.0.0.1:{server.getsockname()[1]}/"
        box = outbox(tmp_path, [slow, receiver.url, "cat >/dev/null"])
        saved = box.save

        def save():
            saved()
            if [target["state"] for target in box.document["targets"]] == ["trying", "told", "told"]:
                others_are_told.set()

        box.save = save
        box.send(MESSAGE, sleep=lambda delay: None)
    assert settled(tmp_path) == [("told", 1, ""), ("told", 2, ""), ("told", 1, "")]


def test_after_a_kill_only_those_who_may_not_know_are_told_again(tmp_path, receiver, monkeypatch):
    first = outbox(tmp_path, [receiver.url, f"{receiver.url}/2"])

    class KilledError(BaseException):
        pass

    one_is_recorded = threading.Event()
    saved, posted = first.save, notification.post

    def save():
        saved()
        if first.document["targets"][0]["state"] == notification.TOLD:
            one_is_recorded.set()

    def post(url, *more):
        if url.endswith("/2"):
            one_is_recorded.wait()
        posted(url, *more)
        if url.endswith("/2"):  # the record of this attempt is lost with the process
            raise KilledError

    first.save = save
    with monkeypatch.context() as patched:
        patched.setattr(notification, "post", post)
        with pytest.raises(KilledError):
            first.send(MESSAGE, sleep=pytest.fail)
    states = [target["state"] for target in json.loads((tmp_path / "waiting").read_text())["targets"]]
    assert states == [notification.TOLD, notification.TRYING]
    second = notification.Outbox(str(tmp_path / "waiting"), str(tmp_path / "settled"))
    assert not second.claim(), "the lock of the first is held"
    os.close(first._lock)
    assert second.claim()
    second.send({"other": "message"}, sleep=pytest.fail)
    ids = [headers["webhook-id"] for headers, _ in receiver.received]
    assert len(ids) == 3
    assert ids[2] == ids[1] != ids[0]
    assert json.loads(receiver.received[2][1]) == json.loads(receiver.received[1][1])


def test_a_command_gets_it_on_stdin_and_in_variables(tmp_path):
    command = f'cat >{tmp_path}/got; echo "$SHUNTER_STATE $SHUNTER_CAUSE $SHUNTER_JOB" >{tmp_path}/said'
    box = outbox(tmp_path, [command])
    box.send(MESSAGE, sleep=pytest.fail)
    assert json.loads((tmp_path / "got").read_text())["state"] == "FAILED"
    assert (tmp_path / "said").read_text() == "FAILED exception z\n"
    assert settled(tmp_path) == [("told", 1, "")]


def test_a_command_that_fails_is_tried_again_only_if_it_asks_for_that(tmp_path):
    again = f"cat >/dev/null; echo x >>{tmp_path}/runs; [ $(wc -l <{tmp_path}/runs) = 2 ] || exit 75"
    delays = []
    outbox(tmp_path, [again, "echo no good >&2; exit 3"]).send(MESSAGE, sleep=delays.append)
    assert settled(tmp_path) == [("told", 2, ""), ("failed", 1, "it ended with exit code 3: no good")]
    assert len(delays) == 1


def test_the_documented_receiver_takes_what_is_ours_and_nothing_else(tmp_path, receiver):
    text = (ROOT / "docs" / "supervision.md").read_text()
    names: dict = {}
    exec(text.partition("```python\n")[2].partition("```")[0], names)
    is_genuine = names["is_genuine"]
    outbox(tmp_path, [receiver.url]).send(MESSAGE, sleep=pytest.fail)
    [(headers, body)] = receiver.received
    sent = int(headers["webhook-timestamp"])
    assert is_genuine(headers, body, b"s3", now=sent + 299)
    assert not is_genuine(headers, body, b"s3", now=sent + 301)
    assert not is_genuine(headers, body + b" ", b"s3", now=sent)
    assert not is_genuine(headers, body, b"other", now=sent)
    assert not is_genuine({**headers, "webhook-timestamp": str(sent + 1)}, body, b"s3", now=sent)
    assert not is_genuine({**headers, "webhook-id": "msg_other"}, body, b"s3", now=sent)


def test_what_a_command_leaves_running_is_not_waited_for(tmp_path):
    held = tmp_path / "held"
    os.mkfifo(held)
    outbox(tmp_path, [f"cat {held} >&2 &"]).send(MESSAGE, sleep=pytest.fail)
    assert settled(tmp_path) == [("told", 1, "")]
    held.open("w").close()


def test_a_job_tells_of_its_own_end(tmp_path, receiver):
    document = {"handle": "kubernetes://s/j-1", "secret": "s3", "targets": [receiver.url]}
    toolkit = [sys.executable, "-m", "shunter_toolkit", "notify"]
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "toolkit" / "src"),
        "SHUNTER_NOTIFY": json.dumps(document),
    }
    subprocess.run([*toolkit, "-", "FAILED", "out of memory"], env=env, check=True, timeout=60)
    outbox = tmp_path / "outbox"
    outbox.write_text(env.pop(notification.VARIABLE))
    for _ in range(2):  # the second finds nothing to do
        subprocess.run([*toolkit, str(outbox), "SUCCEEDED"], env=env, check=True, timeout=60)
    first, second = receiver.wait_for(2)
    assert len(receiver.received) == 2
    assert (first["state"], first["reason"], first["job"]) == ("FAILED", "out of memory", "j-1")
    assert (second["state"], second["scheduler"]) == ("SUCCEEDED", "kubernetes")
    assert all(headers["webhook-signature"] for headers, _ in receiver.received)
    assert "s3" not in (tmp_path / "outbox.settled").read_text()


def test_no_secret_is_kept_of_targets_that_are_settled(tmp_path):
    target = "echo token=hunter2hunter2 >&2; exit 3; curl --password hunter2hunter2"
    outbox(tmp_path, [target]).send(MESSAGE, sleep=pytest.fail)
    assert "hunter2" not in (tmp_path / "settled").read_text()
