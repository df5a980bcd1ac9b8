"""Notifies others that a job has ended, each of them once: URLs by a signed POST, commands on standard input.

Notifications wait in an outbox, a document that is replaced atomically before and after every attempt. So a
target that was notified is not notified again, whichever process is killed. Only if a process is killed
between an attempt and its record, the notification is sent twice: both attempts have the same ``webhook-id``,
by which a receiver can recognise the second one.

Signatures and headers are those of https://www.standardwebhooks.com: HMAC-SHA256 over
``ID.TIMESTAMP.BODY``, in base64, after ``v1,``.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from .masking import Masker

VERSION = 1
#: States of a target: it is due, an attempt is in progress, it was notified, or it cannot be notified.
DUE, TRYING, TOLD, FAILED = "due", "trying", "told", "failed"
SETTLED = (TOLD, FAILED)
#: Attempts for one target, and the delays between them in seconds, which double.
MOST_ATTEMPTS, FIRST_DELAY, LONGEST_DELAY = 8, 1.0, 120.0
TIMEOUT_SECONDS = 30.0
COMMAND_SECONDS = 300.0
#: A command that ends with this exit code is tried again (sysexits.h, EX_TEMPFAIL).
TRY_AGAIN = 75
#: The variable with the document of an outbox, if that is not in a file.
VARIABLE = "SHUNTER_NOTIFY"
_SECRET_PREFIX = "whsec_"
_LONGEST_ERROR = 300
_LAST_BYTES = 64 << 10


class NotDelivered(Exception):
    """An attempt failed.

    Args:
        text: why.
        is_final: whether another attempt would fail, too.
        wait: how many seconds the other side asked to wait.
    """

    def __init__(self, text: str, is_final: bool = False, wait: float = 0.0) -> None:
        super().__init__(text)
        self.is_final = is_final
        self.wait = wait


def new_targets(targets: list[str]) -> list[dict[str, Any]]:
    """Return the entries of an outbox for these URLs and commands, each with the id of its notification."""
    return [
        {"to": to, "id": "msg_" + os.urandom(16).hex(), "state": DUE, "attempts": 0, "error": ""}
        for to in dict.fromkeys(targets)
    ]


def is_url(target: str) -> bool:
    """Tell whether a target is a URL; every other is a command."""
    return target.lower().startswith(("http://", "https://"))


def sign(secret: str, delivery: str, timestamp: int, body: bytes) -> str:
    """Return the signature of a notification; a secret that begins with ``whsec_`` is base64."""
    key = secret.encode()
    if secret.startswith(_SECRET_PREFIX):
        try:
            key = base64.b64decode(secret[len(_SECRET_PREFIX) :], validate=True)
        except ValueError:
            pass
    signed = f"{delivery}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def end_message(
    handle: str,
    state: str,
    *,
    reason: str = "",
    cause: Mapping[str, Any] | None = None,
    restarts: int = 0,
    started_at: float | None = None,
    ended_at: float | None = None,
    results: str | None = None,
) -> dict[str, Any]:
    """Return the notification of a job that has ended; the caller masks the secrets in it.

    Args:
        handle: the job.
        state: the name of its state.
        reason: why it is in that state, in words.
        cause: of a failure: ``name``, ``text``, ``evidence``, ``replica`` (ROLE/ID or None), ``exit_code``.
        restarts: how many times it was restarted.
        started_at, ended_at: seconds since the epoch.
        results: where its results are.
    """
    scheduler, _, rest = handle.partition("://")
    return {
        "version": VERSION,
        "event": "job.ended",
        "handle": handle,
        "scheduler": scheduler,
        "job": rest.rpartition("/")[2],
        "state": state,
        "reason": reason,
        "cause": None if cause is None else dict(cause),
        "restarts": restarts,
        "started_at": started_at,
        "ended_at": ended_at,
        "results": results,
        "sent_at": time.time(),
    }


def main(words: list[str]) -> int:
    """Notify the targets of an outbox, ``FILE STATE [REASON]``; returns an exit code.

    FILE holds a JSON object with ``handle``, ``targets`` (from `new_targets`, or URLs and commands) and
    perhaps ``secret`` and ``more``, parameters of `end_message`; ``-`` stands for the content of the variable
    SHUNTER_NOTIFY. A file is replaced while targets are notified, and becomes FILE.settled; the content of
    a variable is not kept.
    """
    path, state, reason = (*words, "")[:3]
    if path == "-":
        box = Outbox(document=json.loads(os.environ.get(VARIABLE, "{}")))
    else:
        box = Outbox(path, path + ".settled")
    if not box.claim():
        return 0
    given = box.document["targets"]
    if any(isinstance(target, str) for target in given):
        box.document["targets"] = new_targets(given)
    more = box.document.get("more") or {}
    box.send(Masker().json(end_message(box.document["handle"], state, reason=reason, **more)))
    return int(any(target["state"] == FAILED for target in box.document["targets"]))


class Outbox:
    """The notifications of one job.

    Args:
        path: of the document. When all targets are settled, it is renamed to ``settled``, without the secret.
        settled: the name of the document then.
        document: in place of a file: nothing is recorded, for a process that notifies only while it runs.
    """

    def __init__(self, path: str = "", settled: str = "", document: dict[str, Any] | None = None) -> None:
        self.path = path
        self.settled = settled
        self.document: dict[str, Any] = document or {}
        self._lock = -1
        self._changes = threading.Lock()

    def claim(self) -> bool:
        """Lock the outbox; False if another process holds it, or there is nothing to do."""
        if not self.path:
            return bool(self.document)
        try:
            self._lock = os.open(self.path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with open(self.path, encoding="utf-8") as file:
                self.document = json.load(file)
        except (OSError, ValueError):
            return False
        return True

    def save(self) -> None:
        """Replace the document atomically."""
        if not self.path:
            return
        temporary = f"{self.path}.{os.getpid()}.tmp"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(self.document, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self.path)

    def send(self, message: Mapping[str, Any], sleep: Callable[[float], object] = time.sleep) -> None:
        """Notify all targets that are still due; returns when all are settled.

        Targets are notified at the same time, so that one that does not answer does not delay the others.

        Args:
            message: what to send, unless an earlier attempt has fixed it.
            sleep: waits between two attempts; called in a thread per target. What it raises ends the attempts
                at that target, and is raised when the threads of the others have ended.

        Raises:
            OSError: the outbox cannot be written.
        """
        if not self.document.get("message"):
            self.document["message"] = dict(message)
        waiting = [target for target in self.document["targets"] if target["state"] not in SETTLED]
        failures: list[BaseException] = []

        def settle(target: dict[str, Any]) -> None:
            try:
                self._settle(target, sleep)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=settle, args=(target,), daemon=True) for target in waiting]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        self.document.pop("secret", None)
        masked = Masker()
        for target in self.document["targets"]:  # nothing is sent any more, so no secret is needed
            target["to"], target["error"] = masked.text(target["to"]), masked.text(target["error"])
        if self.path:
            self.save()
            os.replace(self.path, self.settled)
            with contextlib.suppress(OSError):
                os.unlink(self.path + ".lock")

    def _settle(self, target: dict[str, Any], sleep: Callable[[float], object]) -> None:
        """Make attempts at a target until it is settled."""
        delay = FIRST_DELAY
        while True:
            wait = self._attempt(target)
            if target["state"] in SETTLED:
                return
            sleep(max(delay * (1 - 0.5 * random.random()), wait))
            delay = min(2 * delay, LONGEST_DELAY)

    def _attempt(self, target: dict[str, Any]) -> float:
        """Make one attempt, and record it before and after; returns how long the target asks to wait."""
        self._record(target, state=TRYING, attempts=target["attempts"] + 1)
        try:
            body = {**self.document["message"], "id": target["id"]}
            if is_url(target["to"]):
                post(target["to"], target["id"], body, self.document.get("secret") or "")
            else:
                run_command(target["to"], target["id"], body, self.document.get("cwd") or "/")
        except NotDelivered as error:
            is_last = error.is_final or target["attempts"] >= MOST_ATTEMPTS
            self._record(target, state=FAILED if is_last else DUE, error=str(error)[:_LONGEST_ERROR])
            return min(error.wait, LONGEST_DELAY)
        self._record(target, state=TOLD, error="", told_at=time.time())
        return 0.0

    def _record(self, target: dict[str, Any], **changes: Any) -> None:
        with self._changes:
            target.update(changes)
            self.save()


def post(url: str, delivery: str, message: Mapping[str, Any], secret: str) -> None:
    """Send a message by POST, following no redirect.

    Raises:
        NotDelivered: it was not accepted (a status from 200 to 299), or not in time.
    """
    import http.client
    import urllib.error
    import urllib.parse
    import urllib.request

    body = json.dumps(message).encode()
    timestamp = int(time.time())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "shunter",
        "webhook-id": delivery,
        "webhook-timestamp": str(timestamp),
    }
    if secret:
        headers["webhook-signature"] = sign(secret, delivery, timestamp, body)
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None:
        login = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        url = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *args: Any, **kwargs: Any) -> urllib.request.Request | None:
            return None

    try:
        request = urllib.request.Request(url, body, headers, method="POST")
        with urllib.request.build_opener(NoRedirects()).open(request, timeout=TIMEOUT_SECONDS):
            pass
    except urllib.error.HTTPError as error:
        asked = error.headers.get("Retry-After", "") if error.headers else ""
        error.close()
        is_final = error.code < 500 and error.code not in (408, 409, 425, 429)
        raise NotDelivered(
            f"it answered {error.code}",
            is_final,
            float(asked) if asked.isascii() and asked.isdigit() else 0.0,
        ) from None
    except ValueError as error:
        raise NotDelivered(f"this URL cannot be used: {error}", is_final=True) from None
    except (OSError, http.client.HTTPException) as error:
        raise NotDelivered(f"no answer: {getattr(error, 'reason', error)}") from None


def run_command(command: str, delivery: str, message: Mapping[str, Any], directory: str = "/") -> None:
    """Run a command of the shell in a directory, or in / if that is gone.

    It gets the message on its standard input, and parts of it in variables.

    Raises:
        NotDelivered: it did not end with 0.
    """
    cause = message.get("cause") or {}
    variables = {
        "SHUNTER_NOTIFICATION_ID": delivery,
        "SHUNTER_HANDLE": message.get("handle") or "",
        "SHUNTER_JOB": message.get("job") or "",
        "SHUNTER_STATE": message.get("state") or "",
        "SHUNTER_REASON": message.get("reason") or "",
        "SHUNTER_CAUSE": cause.get("name") or "",
    }
    # variables cannot hold a NUL, or half of a surrogate pair
    texts = {
        name: str(value).replace("\0", "").encode("utf-8", "replace") for name, value in variables.items()
    }
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
        given.write(json.dumps(message).encode())
        given.seek(0)
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                env={**os.environb, **{name.encode(): text for name, text in texts.items()}},
                cwd=directory if os.path.isdir(directory) else "/",
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        except OSError as error:
            raise NotDelivered(f"it cannot be started: {error.strerror}", is_final=True) from None
        try:
            code = process.wait(COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what it started too
            process.wait()
            raise NotDelivered(f"it did not end within {COMMAND_SECONDS:g} s", is_final=True) from None
        if code:
            text = ": ".join([f"it ended with exit code {code}", *_last_line(errors)])
            raise NotDelivered(text, is_final=code != TRY_AGAIN)


def _last_line(file: IO[bytes]) -> list[str]:
    """Return the last line of a file that is not empty; nothing without one."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST_BYTES))
    lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    return [line for line in lines if line][-1:]
