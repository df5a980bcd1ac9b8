"""The lease of a race that is an object of S3: of many jobs one can create it, and nothing else of it runs.

A job has two presigned URLs. A PUT with ``If-None-Match: *`` creates the object, whose content is the job's
handle; S3 answers 412 if it is there, and 409 while another PUT is under way
(https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html). A GET tells who has it: an
attempt of a job, or a PUT whose answer was lost, finds the job's own handle.

This is also a program, which is put before the command of a job: it takes the lease and becomes the command,
or ends. It needs no other module of the toolkit.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Sequence

#: Has the URLs, as JSON: ``put`` and ``get``.
VARIABLE = "SHUNTER_LEASE_SECRET"
#: Has the job's handle.
HANDLE = "TORCHX_JOB_ID"
#: Has this program, where its text travels in a variable; `COMMAND` precedes the words of the job then.
PROGRAM = "SHUNTER_LEASE"
COMMAND = ("python3", "-I", "-c", f"import os;exec(os.environ.pop('{PROGRAM}'))")
#: Exit codes: another job has the lease; nobody knows who has it.
LOST, UNKNOWN = 117, 74
#: Seconds before each attempt to reach S3, about four minutes in all, and for each answer.
PAUSES = (0, 1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30)
ANSWER_SECONDS = 20
_TO_BE_REPEATED = (404, 408, 409, 429)
_CODES_OF_TIME = ("AccessDenied", "ExpiredToken", "InvalidToken", "RequestTimeTooSkewed")


def is_object(place: str) -> bool:
    """Whether a lease is given as the URLs of an object, in JSON, rather than as a path."""
    return place.startswith("{")


def take(urls: str, handle: str, pauses: Sequence[float] = PAUSES) -> str:
    """Take a lease for a job, unless another one has it; returns the handle of the one that has it.

    Args:
        urls: JSON with the presigned URLs ``put`` and ``get``.
        handle: the job's.
        pauses: seconds before each attempt.

    Raises:
        OSError: nobody knows who has it: S3 was not reached, or refuses the URLs, which may be too old.
    """
    place = json.loads(urls)
    problem = ""
    for pause in pauses:
        time.sleep(pause)
        try:
            try:
                _ask("PUT", place["put"], f"{handle}\n".encode())
            except _Refused as error:
                if error.code != 412:
                    raise
            return _ask("GET", place["get"])
        except _Refused as error:
            problem = str(error)
            if error.code < 500 and error.code not in _TO_BE_REPEATED:
                break
        except OSError as error:
            problem = f"it cannot be reached: {error}"
    raise OSError(problem)


def holder(urls: str) -> str:
    """Return the handle of the job that has a lease, asking once; "" if none has it.

    Raises:
        OSError: it cannot be seen now.
    """
    try:
        return _ask("GET", json.loads(urls)["get"])
    except _Refused as error:
        if error.code in (403, 404):  # S3 says 403 of a missing object to those who may not list
            return ""
        raise


class _Refused(OSError):
    """S3 answers with an error: its HTTP status, and what it says."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(said)
        self.code = code


def _ask(method: str, url: str, body: bytes | None = None) -> str:
    import http.client  # these take longer to load than most jobs need
    import urllib.error
    import urllib.request

    headers = {} if body is None else {"If-None-Match": "*", "Content-Type": "text/plain"}
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            text: str = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:  # or its connection stays open
            text = error.read(2000).decode("utf-8", "replace")
        raise _Refused(error.code, _said(error.code, error.reason, text)) from None
    except (OSError, http.client.HTTPException) as error:
        raise OSError(str(getattr(error, "reason", error))) from error
    return text.strip()


def _said(status: int, reason: str, text: str) -> str:
    """Return what S3 says, with what is probably the cause."""
    code, message = (re.search(f"<{tag}>(.*?)</{tag}>", text) for tag in ("Code", "Message"))
    said = f"S3 answers {status} ({message[1] if message else reason})"
    if code and code[1] in _CODES_OF_TIME:
        said += ": its URL is valid for 7 days at most, and not longer than the credentials that signed it"
    return said


# ---- before the command of a job


def enter() -> int:
    """Take the lease of this process's job, if it is in a race; returns 0, or the code with which to end.

    The variables with the lease are taken out of the environment. What is wrong is written to stderr.
    """
    urls = os.environ.pop(VARIABLE, "")
    if not urls:
        return 0
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # process 1 would ignore it
    try:
        found = take(urls, os.environ[HANDLE])
    except OSError as error:
        print(f"shunter: never started: the lease of its race cannot be taken: {error}", file=sys.stderr)
        return UNKNOWN
    finally:
        signal.signal(signal.SIGTERM, before)
    if found != os.environ[HANDLE]:
        print(f"shunter: race lost to {found}", file=sys.stderr)
        return LOST
    return 0


def main(words: Sequence[str]) -> int:
    """Take the lease and become a command; without one, print who has the lease."""
    if not words:
        try:
            print(take(os.environ[VARIABLE], os.environ[HANDLE]))
        except OSError as error:
            print(error, file=sys.stderr)
            return UNKNOWN
        return 0
    code = enter()
    if code:
        return code
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
    try:
        os.execvp(words[0], list(words))
    except OSError as error:
        print(f"shunter: cannot run {words[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
