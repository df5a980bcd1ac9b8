"""The actor of one replica, on its node: it starts the program, and makes lines of the log of its output.

A line of the log for each line of a replica::

    2026-11-22T14:58:01.234567Z worker/0 out| loss: 0.25

``out`` or ``err``, with ``64`` at its end where the text is in base64, for bytes that Ray's log cannot carry.
Then how the line ended: ``|`` by a line feed, ``<`` by a carriage return, ``>`` by both, ``:`` not yet.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import shutil
import socket
import stat
import string
import subprocess
import sys
import tarfile
import tempfile
import time
from datetime import datetime, timezone
from io import FileIO
from typing import Any

RANK0 = "TORCHX_RANK0_HOST"
PORTS = ("SHUNTER_RENDEZVOUS_PORT", "SHUNTER_MASTER_PORT")
#: Directories of the base directory that hold results.
RESULTS = ("model", os.path.join("output", "data"), "checkpoints")
STREAMS = ("out", "err")
TOOLKIT = "toolkit.pyz"
#: Most bytes that are read of a stream at a time, and most of a line and of an error file.
CHUNK, LONGEST_LINE, LONGEST_ERROR = 256 << 10, 64 << 10, 16 << 10
#: Seconds after which a line without an end is shown, between two looks, and for which a call may last.
UNFINISHED, PAUSE, LONGEST_CALL = 0.5, 0.05, 2.0
#: A carriage return at the end of a piece may have its line feed in the next.
_LINE_END = re.compile(rb"(\r\n|\n|\r(?=.))", re.S)
_MARKS = {b"\n": "|", b"\r": "<", b"\r\n": ">"}


class LogLines:
    """Turns one stream's bytes into lines of the log."""

    def __init__(self, name: str, stream: str) -> None:
        self.prefix = f" {name} {stream}"
        self.pending = b""
        self.pending_since = 0.0

    def feed(self, data: bytes) -> str:
        """Return the lines that are complete now, and the unfinished one if it waits for long, or is long."""
        if data:
            *parts, pending = _LINE_END.split(self.pending + data)
            lines = [self._line(text, _MARKS[end]) for text, end in zip(parts[::2], parts[1::2])]
            if parts or not self.pending:
                self.pending_since = time.monotonic()
            self.pending = pending
        else:
            lines = []
        if len(self.pending) > LONGEST_LINE or time.monotonic() - self.pending_since > UNFINISHED:
            lines.append(self.flush())
        return "".join(lines)

    def flush(self) -> str:
        """Return the unfinished line so far."""
        rest, self.pending = self.pending, b""
        if rest.endswith(b"\r"):
            return self._line(rest[:-1], "<")
        return self._line(rest, ":") if rest else ""

    def _line(self, text: bytes, mark: str) -> str:
        stamp = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        try:
            shown, kind = text.decode("utf-8"), ""
        except ValueError:
            shown, kind = "\0", ""
        if "\0" in shown:
            shown, kind = base64.b64encode(text).decode(), "64"
        return f"{stamp}{self.prefix}{kind}{mark} {shown}\n"


class ReplicaActor:
    """One replica, on its node: it starts the program, as often as it is asked, and hands out its output.

    The driver calls `start`, and then `read` until that returns how the program ended.

    Args:
        plan: of the job. ``inside`` names a process (``node``, ``pid``) whose directory and variables the
            program gets, for a command in a running replica.
        role: of the replica, as the plan has it.
        index: of the replica in its role.
    """

    def __init__(self, plan: dict[str, Any], role: dict[str, Any], index: int) -> None:
        self.plan, self.role, self.index = plan, role, index
        self.package = os.getcwd()
        #: Where the jobs of this user are if no directory was given; other users know the name too.
        self.own_root = "" if plan["job_dir"] else f"{tempfile.gettempdir()}/shunter-{os.getuid()}"
        self.job_dir = os.path.join(plan["job_dir"] or self.own_root, plan["app_id"])
        self.directory = os.path.join(self.job_dir, f"{role['name']}-{index}")
        self.log_dir = os.path.join(self.job_dir, "logs", f"{role['name']}-{index}")
        self.base = ""
        self.process: subprocess.Popen[bytes] | None = None
        self.logs: list[tuple[Any, LogLines]] = []
        #: The pipe for what the process reports, and an unfinished report.
        self.report: FileIO | None = None
        self.reported = b""
        #: What the process has reported: ``pid``, ``note``, ``hung``, ``code``, ``signal``, ``error``.
        self.news: dict[str, Any] = {}
        self.attempt = self.stopped_attempt = -1

    def host(self) -> dict[str, Any]:
        """Return where this is: address, name, and two ports that are free."""
        import ray  # which the launcher's tests do not have

        sockets = [socket.socket() for _ in PORTS]
        for each in sockets:
            each.bind(("", 0))
        ports = [each.getsockname()[1] for each in sockets]
        for each in sockets:
            each.close()
        return {
            "address": ray.util.get_node_ip_address(),
            "hostname": socket.gethostname(),
            "ports": ports,
            "node": ray.get_runtime_context().get_node_id(),
        }

    def start(self, attempt: int, shared: dict[str, str]) -> dict[str, Any]:
        """Start the program; returns the same as `read`.

        Args:
            attempt: how often it was started before.
            shared: variables that the replicas of this job share.
        """
        try:
            self._start(attempt, shared)
        except Exception as error:
            self.logs, self.report = [], None
            self.news = {"code": 1, "signal": 0, "error": f"{type(error).__name__}: {error}"}
        return self.read()

    def _start(self, attempt: int, shared: dict[str, str]) -> None:
        inside = self.plan.get("inside")
        if self.own_root:
            make_own_directory(self.own_root)
        code = os.readlink(f"/proc/{inside['pid']}/cwd") if inside else os.path.join(self.directory, "code")
        if not inside:
            self._unpack(code)
        values = {
            "img_root": code,
            "app_id": self.plan["app_id"],
            "replica_id": str(self.index),
            "rank0_env": RANK0,
            "base_img_root": "DEPRECATED",
        }

        def filled(text: str) -> str:
            return string.Template(text).safe_substitute(values).replace(code + "/../", self.directory + "/")

        given = {name: filled(value) for name, value in self.role["env"].items()}
        self.base = given.get("SAGEMAKER_BASE_DIR", "")
        error_file = self._error_file()
        if os.path.exists(error_file):
            os.remove(error_file)
        os.makedirs(self.log_dir, mode=0o700, exist_ok=True)
        paths = [os.path.join(self.log_dir, f"{attempt}.{stream}") for stream in STREAMS]
        reading, report = os.pipe()
        order = {
            "argv": self.role["argv"] if inside else [filled(word) for word in self.role["argv"]],
            "env": environment_of(inside["pid"])
            if inside
            else {**self._inherited(), "TORCHELASTIC_ERROR_FILE": error_file, **shared, **given},
            "cwd": code,
            "grace": self.plan["grace"],
            "report": report,
            "hang": None if inside else self.plan.get("hang"),
            "results": [os.path.join(self.base, part) for part in RESULTS] if self.base else [],
            "handlers": os.path.join(self.directory, "python"),
        }
        self.reported, self.news = b"", {}
        with open(paths[0], "ab") as out, open(paths[1], "ab") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-S", os.path.join(self.package, "replica_process.py")],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                pass_fds=[report],
                start_new_session=True,
                cwd="/",
                env={**os.environ, "PYTHONPATH": os.path.join(self.package, TOOLKIT)},
            )
        os.close(report)
        self.report = open(reading, "rb", buffering=0)  # noqa: SIM115
        name = f"{self.role['name']}/{self.index}"
        self.logs = [(open(path, "rb"), LogLines(name, stream)) for path, stream in zip(paths, STREAMS)]  # noqa: SIM115
        assert self.process.stdin is not None
        self.process.wait()  # it forks: the process that goes on is not a child of this one
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()
        self.attempt = attempt
        if self.stopped_attempt == attempt:  # that was asked while the program was being started
            self.stop(attempt)

    def _unpack(self, code: str) -> None:
        """Give the replica its own copy of the code, once, and the toolkit beside it."""
        if os.path.isdir(code):
            return
        os.makedirs(self.job_dir, mode=0o700, exist_ok=True)
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        shutil.copyfile(os.path.join(self.package, TOOLKIT), os.path.join(self.directory, TOOLKIT))
        partial = tempfile.mkdtemp(prefix=".code-", dir=self.directory)
        os.chmod(partial, 0o755)
        archive = os.path.join(self.package, "code.tar")
        if os.path.exists(archive):
            options: Any = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
            with tarfile.open(archive) as content:
                content.extractall(partial, **options)
        os.rename(partial, code)

    def _inherited(self) -> dict[str, str]:
        """Return the actor's environment without what is for Ray's own processes."""
        env = {name: value for name, value in os.environ.items() if name != "RAY_JOB_CONFIG_JSON_ENV_VAR"}
        paths = env.pop("PYTHONPATH", "").split(os.pathsep)
        kept = [path for path in paths if path and "/runtime_resources/" not in path]
        if kept:
            env["PYTHONPATH"] = os.pathsep.join(kept)
        own = os.path.dirname(sys.executable)
        env["PATH"] = own + os.pathsep + env.get("PATH", os.defpath)
        env["PYTHONUNBUFFERED"] = "1"
        return env

    def read(self) -> dict[str, Any]:
        """Wait for news; returns ``text`` (lines of the log), ``pid``, ``note``, ``end`` once all is read."""
        until = time.monotonic() + LONGEST_CALL
        while True:
            has_ended = "code" in self.news
            pieces = [(lines, file.read(CHUNK)) for file, lines in self.logs]
            text = "".join(lines.feed(data) for lines, data in pieces)
            is_read = not any(data for _, data in pieces)
            if text or (has_ended and is_read) or time.monotonic() > until:
                break
            self._listen()
        end = None
        if has_ended and is_read:
            text += "".join(lines.flush() for _, lines in self.logs)
            end = {"hung": "", **self.news, "time": time.time(), "structured": ""}
            if end["code"]:
                end["structured"] = self._structured_error()
            for file, _ in self.logs:
                file.close()
            if self.report is not None:
                self.report.close()
            self.stop(self.attempt)
        pid = 0 if end else self.news.get("pid", 0)
        return {"text": text, "pid": pid, "note": self.news.get("note", ""), "end": end}

    def _listen(self) -> None:
        """Wait a moment for a report of the process."""
        if self.report is not None and select.select([self.report], [], [], PAUSE)[0]:
            data = self.report.read(4096) or b""
            *lines, self.reported = (self.reported + data).split(b"\n")
            for line in lines:
                self.news.update(json.loads(line.decode()))
            if not data:
                lost = {"code": 1, "signal": 0, "error": "the process that ran it was killed"}
                self.news = {**lost, **self.news}

    def _error_file(self) -> str:
        return os.path.join(self.directory, "error.json")

    def _structured_error(self) -> str:
        """Return what the program says of its failure: torchelastic's file, or the toolkit's."""
        report = os.path.join(self.base, "output", "failure") if self.base else ""
        for path, is_json in ((self._error_file(), True), (report, False)):
            if path and os.path.isfile(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read(LONGEST_ERROR).strip()
                if text:
                    return text if is_json else json.dumps({"message": {"message": text}})
        return ""

    def stop(self, attempt: int) -> None:
        """Ask the program to end; the end comes by `read`."""
        self.stopped_attempt = attempt
        if self.process is not None and self.process.stdin is not None and self.attempt == attempt:
            self.process.stdin.close()

    def close(self) -> None:
        """Remove what is not needed after the job: everything but results, and logs in a given directory."""
        kept = [os.path.join(self.base, part) for part in RESULTS] if self.base else []
        has_results = any(names for top in kept for _, _, names in os.walk(top))
        removed = [os.path.join(self.directory, "code") if has_results else self.directory]
        if self.own_root:
            removed.append(self.log_dir)
        for path in removed:
            shutil.rmtree(path, ignore_errors=True)
        for path in (os.path.dirname(self.log_dir), self.job_dir):
            try:
                os.rmdir(path)
            except OSError:  # other replicas, or results, are in it
                pass


def make_own_directory(path: str) -> None:
    """Make a directory that only this user can read and change, unless it is there.

    Raises:
        PermissionError: another user made it, or can change it, and with it the programs that we would run.
    """
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    facts = os.lstat(path)
    if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.getuid() or facts.st_mode & 0o077:
        raise PermissionError(
            f"cannot start programs in {path}: it is not a directory of this user alone, so others could "
            "change what runs. Remove it, or give the job a directory that all nodes share: -cfg job_dir=DIR"
        )


def shared_variables(first: dict[str, Any], own: dict[str, Any] | None) -> dict[str, str]:
    """Return a replica's variables from the first replica's host, and from its own host if that differs."""
    return {
        RANK0: "localhost" if own is None else first["address"],
        "PET_LOCAL_ADDR": (own or first)["address"],
        **{name: str(port) for name, port in zip(PORTS, first["ports"])},
    }


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = os.fsdecode(file.read()).split("\0")
    return dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)
