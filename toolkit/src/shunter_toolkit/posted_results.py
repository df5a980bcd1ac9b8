"""Results that a job sends to S3 without a role: by a form that was signed when it was submitted.

The form (S3's "POST Object") allows objects below one prefix, until a time that is in it. Each replica sends
what it leaves as one archive.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from . import archive, log
from .layout import Layout
from .logged_results import result_entries

NAME = "results.tar.gz"
#: Seconds before each attempt.
_PAUSES = (0, 1, 4, 16)
_BLOCK = 1 << 20


def send(layout: Layout, form: str) -> bool:
    """Send the results; returns whether they are there, or there are none. Never raises.

    Args:
        layout: the job's directories.
        form: JSON, ``{"url": ..., "fields": {...}}``.
    """
    try:
        entries = result_entries(layout)
        if not any(os.path.isfile(path) for _, path in entries):
            return True
        with tempfile.TemporaryDirectory(prefix="shunter-") as folder:
            path = os.path.join(folder, NAME)
            archive.pack(entries, path, keeps_times=True)
            problem = _post(json.loads(form), path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        problem = str(error) or type(error).__name__
    if problem:
        log.warning(f"The results could not be sent to S3: {problem}")
    return not problem


def _post(form: Mapping[str, Any], path: str) -> str:
    """Send a file by a form; returns what went wrong, "" if nothing did."""
    fields = dict(form["fields"])
    replica = f"{os.environ.get('TORCHX_ROLE_NAME', '')}/{os.environ.get('TORCHX_REPLICA_IDX', '0')}/{NAME}"
    fields["key"] = fields["key"].replace("${filename}", replica)
    boundary = os.urandom(16).hex()
    before = "".join(
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    before += f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{NAME}"\r\n\r\n'
    start, end = before.encode(), f"\r\n--{boundary}--\r\n".encode()
    headers = {
        "Content-Type": f"multipart/form-data; boundary={boundary}",
        "Content-Length": str(len(start) + os.path.getsize(path) + len(end)),
    }
    problem = ""
    for pause in _PAUSES:
        time.sleep(pause)
        request = urllib.request.Request(form["url"], _body(start, path, end), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=60):
                return ""
        except urllib.error.HTTPError as error:
            with error:
                said = re.search(r"<Message>(.*?)</Message>", error.read(2000).decode("utf-8", "replace"))
            problem = f"it answers {error.code} ({said.group(1) if said else error.reason})"
            if error.code < 500:
                break
        except (OSError, http.client.HTTPException) as error:
            problem = str(getattr(error, "reason", error))
    return problem


def _body(start: bytes, path: str, end: bytes) -> Iterator[bytes]:
    yield start
    with open(path, "rb") as file:
        while True:
            block = file.read(_BLOCK)
            if not block:
                break
            yield block
    yield end
