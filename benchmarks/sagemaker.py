"""From the command to an accepted CreateTrainingJob: shunter beside the SageMaker SDK (v2).

Usage: ``python benchmarks/sagemaker.py [--sdk DIR] [--rounds N] [--json FILE]``, where DIR is an environment
    with the SDK (``make .venv-sagemaker-sdk``). Both submit the same script with its code, a channel and an
    output, to the same endpoint on this machine, which takes uploads and requests and does nothing else. Code
    is uploaded again by both each time; further rows show shunter where the code is in S3 already.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from harness import HERE, Usage, Workplace, alternate, load
from report import Goal, Row, table

SDK = "SageMaker SDK"
ARN = "arn:aws:sagemaker:us-east-1:123456789012:training-job/job"
FILES = 50


class Aws(ThreadingHTTPServer):
    """Takes everything: objects, and training jobs, which it counts.

    Attributes:
        accepted: the requests that it was sent.
        remembers: whether objects that were uploaded are there.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.accepted: list[dict[str, Any]] = []
        self.objects: set[str] = set()
        self.remembers = False


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Aws

    def do_HEAD(self) -> None:
        self._answer(200 if self.server.remembers and self.path in self.server.objects else 404)

    def do_PUT(self) -> None:
        self._body()
        self.server.objects.add(self.path)
        self._answer(200, headers={"ETag": '"0"'})

    def do_POST(self) -> None:
        self.server.accepted.append(json.loads(self._body()))
        self._answer(200, json.dumps({"TrainingJobArn": ARN}).encode())

    def do_GET(self) -> None:
        self._answer(404)

    def _body(self) -> bytes:
        if self.headers.get("Expect"):
            self.send_response_only(100)
            self.end_headers()
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def aws() -> Iterator[Aws]:
    server = Aws()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Place(Workplace):
    """A workplace from which AWS is the server of this machine."""

    url = ""

    def environ(self) -> dict[str, str]:
        return {
            **super().environ(),
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


def ours_command() -> list[str]:
    cfg = (
        "role=arn:aws:iam::123456789012:role/Training,instance_type=ml.m5.large,"
        "output_path=s3://bucket/results,code_location=s3://bucket/code"
    )
    words = ["run", "-s", "aws_sagemaker", "-cfg", cfg, "train.script", "--script", "train.py"]
    words += [
        "--image",
        "registry.example.com/image:1",
        "--channel",
        "training=s3://bucket/data",
        "--",
        "--lr",
        "0.1",
    ]
    return [str(Path(sys.executable).with_name("shunter")), *words]


def measure(sdk: Path, rounds: int) -> list[Row]:
    place = Place()
    try:
        with aws() as server:
            place.url = f"http://127.0.0.1:{server.server_port}"
            for number in range(FILES):
                (place.path / "cwd" / f"module{number}.py").write_text("x = 1\n" * 500)
            (place.path / "cwd" / "train.py").write_text("print(1)\n")
            theirs = [str(sdk / "bin" / "python"), str(HERE / "programs" / "submit_sdk.py")]

            def submitted(command: list[str]) -> Usage:
                before = len(server.accepted)
                usage = place.run(command)
                assert len(server.accepted) == before + 1, usage.err.read_text()
                return usage

            def unchanged() -> Usage:
                server.remembers = True
                try:
                    return submitted(ours_command())
                finally:
                    server.remembers = False

            sides = {
                "ours": lambda: submitted(ours_command()),
                "unchanged": unchanged,
                "other": lambda: submitted(theirs),
            }
            results = alternate(sides, rounds)
    finally:
        place.close()
    return list(_rows(results))


def _rows(results: dict[str, list[Usage]]) -> Iterator[Row]:
    goal = Goal(1 / 4)
    for side, subject in (
        ("ours", "submit a script, code uploaded"),
        ("unchanged", "the same, code in S3 already"),
    ):
        for measure, value in (
            ("wall, ms", lambda usage: usage.wall * 1000),
            ("cpu, ms", lambda usage: usage.cpu * 1000),
            ("peak memory, MiB", lambda usage: usage.peak_mib),
        ):
            yield Row(
                subject,
                measure,
                [value(usage) for usage in results[side]],
                [value(usage) for usage in results["other"]],
                SDK,
                goal if measure != "peak memory, MiB" else None,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    parser.add_argument(
        "--sdk", type=Path, default=Path(".venv-sagemaker-sdk"), help="environment of the SDK"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every sample too")
    args = parser.parse_args()
    before = load()
    rows = measure(args.sdk.absolute(), args.rounds)
    print(table(rows))
    print(f"\nload {before:.1f} before, {load():.1f} after; {args.rounds} rounds")
    if args.json:
        args.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
