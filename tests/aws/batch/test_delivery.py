"""Code that reaches containers of AWS Batch without an image: the requests, and what fetches it."""

from __future__ import annotations

import base64
import gzip
import hashlib
import http.server
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from shunter._toolkit import function_call
from shunter.errors import ConfigError
from shunter.progress import Silent
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_batch_scheduler import code_delivery
from shunter.schedulers.aws_batch_scheduler.replicas import original_command
from shunter.schedulers.aws_batch_scheduler.scheduler import AWSBatchScheduler
from shunter.specs import AppDef, Role, macros
from tests.aws.batch.jobs import app, role
from tests.aws_services import running_moto

LOCATION = "s3://bucket/team"


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "main.py").write_text("import sys\nprint('main', sys.argv[1:])\n")
    return folder


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    with running_moto() as url:
        yield url


def planned(scheduler: AWSBatchScheduler, code: Path | str, *roles: Role, **cfg: Any) -> Any:
    return scheduler.submit_dryrun(app(*roles), {"queue": "queue", **cfg}, str(code))


def variables(info: Any) -> dict[str, str]:
    """Return all variables of the first container, as Batch would set them."""
    definition = info.request.job_def["containerProperties"]["environment"]
    override = info.request.submission["containerOverrides"]["environment"]
    return {each["name"]: each["value"] for each in [*definition, *override]}


def training(**output: Any) -> Role:
    return role(
        entrypoint="python",
        args=["main.py"],
        metadata={"train": {"version": 1, "name": "job", "program": "main.py", **output}},
    )


def test_small_code_is_within_the_definition(scheduler: AWSBatchScheduler, code: Path) -> None:
    info = planned(scheduler, code)
    assert info.shipment.plan()["kind"] == "request"
    found = variables(info)
    packed = base64.b64decode(found[code_delivery.CODE])
    assert hashlib.sha256(packed).hexdigest() == found[code_delivery.DIGEST]
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        assert tar.getnames() == ["main.py"]
    # the same for every run, so that the definition serves them all
    again = planned(scheduler, code)
    assert again.request.job_def == info.request.job_def
    command = info.request.job_def["containerProperties"]["command"]
    assert original_command(command) == ["python", "train.py", "--lr", "0.1"]


def test_the_command_of_an_array_is_recognised(scheduler: AWSBatchScheduler, code: Path) -> None:
    array = role(num_replicas=3, args=["train.py", macros.replica_id])
    info = planned(scheduler, code, array, array=True)
    command = info.request.job_def["containerProperties"]["command"]
    assert original_command(command) == ["python", "train.py", macros.replica_id]


def test_what_does_not_fit_is_refused_before_anything_is_sent(
    scheduler: AWSBatchScheduler, code: Path
) -> None:
    (code / "noise").write_bytes(os.urandom(20_000))
    with pytest.raises(ConfigError, match=r"definition has \d+ bytes, and AWS Batch takes 24576"):
        planned(scheduler, code)
    (code / "noise").write_bytes(os.urandom(2 << 20))
    with pytest.raises(ConfigError, match=r"\d+ bytes of code do not fit") as raised:
        planned(scheduler, code)
    assert "code_location=s3://BUCKET/PREFIX" in str(raised.value.hint)
    with pytest.raises(ConfigError, match="container's own variables and command have"):
        planned(scheduler, "", role(env={"JOB": macros.app_id + "x" * 9000}))


def test_the_toolkit_does_not_fit_unless_the_image_has_it(scheduler: AWSBatchScheduler, code: Path) -> None:
    with pytest.raises(ConfigError, match="the toolkit, which runs the script, does not fit"):
        planned(scheduler, code, training())
    info = planned(scheduler, code, training(), toolkit_in_image=True)
    packed = gzip.decompress(base64.b64decode(variables(info)[code_delivery.CODE]))
    assert b"from shunter_toolkit.cli import main" in packed


def test_a_bad_location_is_refused(scheduler: AWSBatchScheduler, code: Path) -> None:
    with pytest.raises(ConfigError, match="code_location must be s3://BUCKET/PREFIX, not 'bucket'"):
        planned(scheduler, code, code_location="bucket")


def test_urls_are_signed_when_the_code_is_shipped_and_shown_nowhere(
    scheduler: AWSBatchScheduler, code: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example")
    info = planned(scheduler, code, training(), code_location=f"{LOCATION}/")
    assert "Signature" not in json.dumps([info.request.job_def, info.request.submission])
    assert info.shipment.plan()["place"] == LOCATION
    with pytest.raises(ConfigError, match="there is no bucket bucket, which code_location names"):
        info.shipment.ship(Silent())
    session = scheduler._jobs.session(None, None)
    place = {"LocationConstraint": session.region}
    session.call("s3", "CreateBucket", Bucket="bucket", CreateBucketConfiguration=place)
    scheduler._check_before_shipping = lambda info: None  # type: ignore[method-assign]
    scheduler.ship(info)
    found = variables(info)
    url, form = found[code_delivery.URL], json.loads(found[code_delivery.FORM])
    assert f"/team/code/{found[code_delivery.DIGEST]}.tar.gz?" in url
    assert "X-Amz-Expires=604800" in url
    assert form["fields"]["key"] == f"team/results/{info.request.name}/${{filename}}"
    # in what this run overrides, not in the definition that others can use
    assert "X-Amz-Signature" not in json.dumps(info.request.job_def)
    shown = str(info.request)
    assert "X-Amz-Signature" not in shown
    assert form["fields"]["policy"] not in shown
    assert url not in shown
    # what has been uploaded is not sent again
    before = session.call("s3", "ListObjectsV2", Bucket="bucket")["Contents"]
    scheduler.ship(planned(scheduler, code, training(), code_location=LOCATION))
    assert session.call("s3", "ListObjectsV2", Bucket="bucket")["Contents"] == before


def test_temporary_credentials_are_named(
    scheduler: AWSBatchScheduler, code: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"AWS_ENDPOINT_URL": s3, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert planned(scheduler, code, code_location=LOCATION).warnings == []
    longest = code_delivery.url_end(AwsSession("eu-west-1"))
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    [warning] = planned(scheduler, code, code_location=LOCATION).warnings
    assert "the credentials are temporary (AWS_SESSION_TOKEN)" in warning
    unknown = code_delivery.url_end(AwsSession("eu-west-1"))
    monkeypatch.setenv(
        "AWS_CREDENTIAL_EXPIRATION", f"{datetime.now(UTC) + timedelta(hours=2):%Y-%m-%dT%H:%M:%SZ}"
    )
    known = code_delivery.url_end(AwsSession("eu-west-1"))
    assert known < unknown < longest
    checks = {check.name: check for check in scheduler.doctor({"code_location": LOCATION})}
    assert checks["code_location"].ok is not True
    assert f"arn:aws:s3:::{LOCATION[5:]}/*" in checks["policy"].text


def test_results_with_a_place_need_no_form(scheduler: AWSBatchScheduler, code: Path) -> None:
    sent = training(output={"uri": "s3://other/results"})
    assert code_delivery.FORM not in variables(planned(scheduler, code, sent, code_location=LOCATION))


# ---- the program that fetches


#: A status with which the connection breaks before all has come.
BROKEN = 203


class Server(http.server.BaseHTTPRequestHandler):
    """Gives each answer of a list once, the last one again and again."""

    answers: list[tuple[int, bytes]]

    def do_GET(self) -> None:
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:50] if status == BROKEN else body)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, list[tuple[int, bytes]]]]:
    answers: list[tuple[int, bytes]] = []
    handler = type("Handler", (Server,), {"answers": answers})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}/code?X-Amz-Signature=secret", answers
        running.shutdown()


def packed_code() -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        member = tarfile.TarInfo("say.sh")
        content = b'echo said "$@"; env\n'
        member.size, member.mode = len(content), 0o755
        tar.addfile(member, io.BytesIO(content))
    return raw.getvalue()


def start(folder: Path, url: str, content: bytes) -> subprocess.CompletedProcess[str]:
    (folder / "tarfile.py").write_text("raise SystemExit('a module of the working directory was imported')")
    return subprocess.run(
        [sys.executable, *code_delivery.STARTER[1:], "sh", "say.sh", "a b"],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "SAGEMAKER_BASE_DIR": "/none",
            code_delivery.START: code_delivery._PROGRAM,
            code_delivery.URL: url,
            code_delivery.DIGEST: hashlib.sha256(content).hexdigest(),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_code_is_fetched_and_the_program_does_not_see_the_url(server: Any, tmp_path: Path) -> None:
    url, answers = server
    answers += [(503, b"slow down"), (BROKEN, packed_code()), (200, packed_code())]
    done = start(tmp_path, url, packed_code())
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("said a b\n")
    assert "secret" not in done.stdout
    assert "SHUNTER_" not in done.stdout


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (
            403,
            b"<Error><Message>Request has expired</Message></Error>",
            r"403 \(Request has expired\): the URL is",
        ),
        (404, b"", r"404 \(Not Found\)"),
        (200, packed_code()[:-1] + b"x", "its SHA-256 is not that of the code that was submitted"),
    ],
)
def test_code_that_is_gone_or_was_changed_is_not_run(
    server: Any, tmp_path: Path, status: int, body: bytes, message: str
) -> None:
    url, answers = server
    answers.append((status, body))
    done = start(tmp_path, url, packed_code())
    assert done.returncode == 1
    assert done.stderr.startswith("shunter: cannot fetch the job's code: ")
    assert re.search(message, done.stderr)
    assert "secret" not in done.stderr
    assert not (tmp_path / "say.sh").exists()


def test_the_plan_of_a_job_changes_no_other(scheduler: AWSBatchScheduler, code: Path) -> None:
    """Two jobs with the same code have the same definition but different forms."""
    infos = [planned(scheduler, code, training(), code_location=LOCATION) for _ in range(2)]
    assert infos[0].request.job_def == infos[1].request.job_def
    assert len({variables(info)[code_delivery.RESULTS] for info in infos}) == 2


def test_calls_of_a_function_have_one_definition(scheduler: AWSBatchScheduler) -> None:
    def requested(call: str) -> Any:
        env = {function_call.KEY: call, function_call.PAYLOAD: call}
        return scheduler.submit_dryrun(app(role(env=env)), {"queue": "queue"}).request

    assert requested("one").job_def == requested("two").job_def
    assert requested("x" * 5000).job_def != requested("y" * 5000).job_def


def test_an_image_repository_comes_first(scheduler: AWSBatchScheduler, code: Path) -> None:
    info = scheduler.submit_dryrun(
        AppDef("job", [role()]),
        {"queue": "queue", "image_repo": "registry/x", "code_location": LOCATION},
        str(code),
    )
    assert info.shipment.plan()["kind"] == "image"
