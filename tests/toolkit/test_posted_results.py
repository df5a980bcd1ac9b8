"""Results that a job sends by a presigned form: what arrives, and what becomes of them if it does not."""

from __future__ import annotations

import http.server
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from email.message import Message
from email.parser import BytesParser
from typing import Any

import pytest

from shunter._toolkit import logged_results, posted_results

from .conftest import Tree

DOCUMENT = {"version": 1, "name": "job", "program": "train.py", "host_count": 1, "output": {"log": True}}


class Bucket(http.server.BaseHTTPRequestHandler):
    """Takes forms, and answers as told."""

    answers: list[int]
    forms: list[dict[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        kind = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        parsed: Message = BytesParser().parsebytes(kind + body)
        self.forms.append(
            {
                str(part.get_param("name", header="content-disposition")): part.get_payload(decode=True)
                for part in parsed.get_payload()  # type: ignore[union-attr,misc]
            }
        )
        self.send_response(self.answers.pop(0) if self.answers else 204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def bucket() -> Iterator[Any]:
    handler = type("Handler", (Bucket,), {"answers": [], "forms": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        handler.url = f"http://127.0.0.1:{server.server_port}/bucket"  # type: ignore[attr-defined]
        yield handler
        server.shutdown()


def run(tree: Tree, bucket: Any, script: str) -> str:
    tree.script(script)
    form = {"url": bucket.url, "fields": {"key": "results/job/${filename}", "policy": "signed-by-me"}}
    done = tree.train(
        SHUNTER_JOB=json.dumps({**DOCUMENT, "code": str(tree.base / "code")}),
        TORCHX_ROLE_NAME="trainer",
        TORCHX_REPLICA_IDX="2",
        **{logged_results.FORM: json.dumps(form)},
    )
    assert done.returncode == 0, done.stderr
    assert "signed-by-me" not in done.stdout + done.stderr
    return done.stdout + done.stderr


SCRIPT = """
import os
assert "SHUNTER_RESULTS_SECRET" not in os.environ
open(os.environ["SM_MODEL_DIR"] + "/weights", "wb").write(b"\\r\\n--x" * 1000)
"""


def test_they_arrive_as_one_archive_for_each_replica(tree: Tree, bucket: Any) -> None:
    bucket.answers.append(500)
    said = run(tree, bucket, SCRIPT)
    assert logged_results.MARK.decode() not in said
    failed, form = bucket.forms
    assert failed == form
    assert form["key"] == b"results/job/trainer/2/results.tar.gz"
    assert form["policy"] == b"signed-by-me"
    with tarfile.open(fileobj=io.BytesIO(form["file"])) as archive:
        member = archive.extractfile("model/weights")
        assert member is not None
        assert member.read() == b"\r\n--x" * 1000


def test_small_results_go_to_the_log_if_the_form_has_expired(tree: Tree, bucket: Any) -> None:
    bucket.answers.append(403)
    said = run(tree, bucket, SCRIPT)
    assert "The results could not be sent to S3: it answers 403" in said
    assert logged_results.read(line.encode() for line in said.splitlines()) is not None


def test_a_form_that_cannot_be_read_is_a_warning(tree: Tree, capfd: pytest.CaptureFixture[str]) -> None:
    from shunter._toolkit.layout import Layout

    (tree.base / "model").mkdir()
    (tree.base / "model/x").write_text("x")
    for form in ("", "[]", "{}", '{"url": "nowhere", "fields": {"key": ""}}'):
        assert posted_results.send(Layout(str(tree.base)), form) is False
    assert capfd.readouterr().err.count("could not be sent") == 4
