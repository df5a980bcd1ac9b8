"""The actor of one replica, on its node: it starts the program, and makes lines of the log of its output.

A line of the log for each line of a replica::

    2026-11-22T14:58:01.234567Z worker/0 out| loss: 0.25

``out`` or ``err``, with ``64`` at its end where the text is in base64, for bytes that Ray's log cannot carry.
Then how the line ended: ``|`` by a line feed, ``<`` by a carriage return, ``>`` by both, ``:`` not yet.
"""

from __future__ import annotations

import base64
import collections
import importlib
import json
import os
import selectors
import shutil
import stat
import string
import subprocess
import sys
import tempfile
import threading
import time
from io import FileIO
from typing import Any

RANK0 = "TORCHX_RANK0_HOST"
PORTS = ("SHUNTER_RENDEZVOUS_PORT", "SHUNTER_MASTER_PORT")
#: Directories of the base directory that hold results.
RESULTS = ("model", os.path.join("output", "data"), "checkpoints")
#: Maximum bytes that a program may be ahead of the log, and maximum sizes of a line of the log and of an
#: error file.
BUFFERED, LONGEST_LINE, LONGEST_ERROR = 8 << 20, 64 << 10, 16 << 10
#: Which of a program's pipes says how it ended, after those of stdout and stderr; which one brings stacks.
REPORT, STACKS = 2, 3
#: Seconds after which a line without an end is shown, and how long one question to an actor may last.
UNFINISHED, ASKING = 0.5, 2.0


# ---- lines of the log


class Lines:
    """Turns one stream's bytes into lines of the log."""

    def __init__(self, name: str, stream: str) -> None:
        self.prefix = f" {name} {stream}"
        self.pending = b""
        self.since = 0.0

    def feed(self, data: bytes) -> str:
        """Return the lines that are complete now."""
        self.since = time.monotonic()
        data = self.pending + data
        found, at = [], 0
        while at < len(data):
            end = self._find_line_end(data, at)
            if end is None:
                break
            stop, mark, after = end
            found.append(self._line(data[at:stop], mark))
            at = after
        self.pending = data[at:]
        return "".join(found)

    def _find_line_end(self, data: bytes, at: int) -> tuple[int, str, int] | None:
        line, back = data.find(b"\n", at), data.find(b"\r", at)
        if back >= 0 and (line < 0 or back < line):
            if back + 1 == len(data):  # a line feed may follow
                end = None
            elif data[back + 1 : back + 2] == b"\n":
                end = (back, ">", back + 2)
            else:
                end = (back, "<", back + 1)
        else:
            end = (line, "|", line + 1) if line >= 0 else None
        if (len(data) if end is None else end[0]) - at > LONGEST_LINE:
            return at + LONGEST_LINE, ":", at + LONGEST_LINE
        return end

    def flush(self) -> str:
        """Return the unfinished line so far."""
        rest, self.pending = self.pending, b""
        if rest.endswith(b"\r"):
            return self._line(rest[:-1], "<")
        return self._line(rest, ":") if rest else ""

    def _line(self, text: bytes, mark: str) -> str:
        seconds, rest = divmod(time.time_ns() // 1000, 1_000_000)
        stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:06d}Z"
        try:
            shown, kind = text.decode("utf-8"), ""
            if "\0" in shown:
                raise ValueError
        except ValueError:
            shown, kind = base64.b64encode(text).decode(), "64"
        return f"{stamp}{self.prefix}{kind}{mark} {shown}\n"


# ---- on the nodes


class ReplicaActor:
    """One replica, on its node: it starts the program, as often as it is asked, and hands out its output.

    Args:
        plan: of the job. ``inside`` names a process (``node``, ``pid``) whose directory and variables the
            program gets, for a command in a running replica.
        role: of the replica, as the plan has it.
        index: of the replica in its role.
    """

    def __init__(self, plan: dict[str, Any], role: dict[str, Any], index: int) -> None:
        self.plan, self.role, self.index = plan, role, index
        self.name = f"{role['name']}/{index}"
        self.package = os.getcwd()
        #: Where the jobs of this user are if no directory was given; other users know the name too.
        self.own_root = "" if plan["job_dir"] else f"{tempfile.gettempdir()}/shunter-{os.getuid()}"
        root = plan["job_dir"] or self.own_root
        self.job_dir = os.path.join(root, plan["app_id"])
        self.directory = os.path.join(self.job_dir, f"{role['name']}-{index}")
        self.changed = threading.Condition()
        self.blocks: collections.deque[str] = collections.deque()
        self.buffered = 0
        self.outcome: dict[str, Any] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.error_file = self.base = ""
        self.pid = 0
        #: How much the program has written; why it was stopped if it hung; what is found of it, in words.
        self.written = 0
        self.hung, self.found = "", ""

    def host(self) -> dict[str, Any]:
        """Return where this is: address, name, and two ports that are free."""
        import socket

        import ray

        sockets = [socket.socket() for _ in PORTS]
        for each in sockets:
            each.bind(("", 0))
        ports = [each.getsockname()[1] for each in sockets]
        for each in sockets:
            each.close()
        node = ray.get_runtime_context().get_node_id()
        return {
            "ip": ray.util.get_node_ip_address(),
            "name": socket.gethostname(),
            "ports": ports,
            "node": node,
        }

    def start(self, attempt: int, shared: dict[str, str]) -> str:
        """Start the program; returns what went wrong, or "".

        Args:
            attempt: how often it was started before.
            shared: variables that the replicas of this job share.
        """
        try:
            self._start(attempt, shared)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

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
            found = string.Template(text).safe_substitute(values) if "$" in text else text
            return found.replace(code + "/../", self.directory + "/")

        given = {name: filled(value) for name, value in self.role["env"].items()}
        self.error_file = os.path.join(self.directory, "error.json")
        self.base = given.get("SAGEMAKER_BASE_DIR", "")
        if os.path.exists(self.error_file):
            os.remove(self.error_file)
        env = {**self._inherited(), "TORCHELASTIC_ERROR_FILE": self.error_file, **shared, **given}
        argv = [filled(word) for word in self.role["argv"]]
        looks_for_hangs = bool(self.plan.get("hang")) and not inside
        if looks_for_hangs:
            self._listen_for_stacks(env)
        if inside:
            env, argv = environment_of(inside["pid"]), self.role["argv"]
        outputs, inputs = zip(*[os.pipe() for _ in range(4 if looks_for_hangs else 3)])
        order = {
            "argv": argv,
            "env": env,
            "cwd": code,
            "grace": self.plan["grace"],
            "report": inputs[2],
            "toolkit": os.path.join(self.package, "toolkit.pyz"),
        }
        program = os.path.join(self.package, "replica_process.py")
        self.outcome = None
        self.process = subprocess.Popen(
            [sys.executable, "-S", program],
            stdin=subprocess.PIPE,
            stdout=inputs[0],
            stderr=inputs[1],
            pass_fds=[inputs[2]],
            start_new_session=True,
            cwd="/",
        )
        for end in inputs[:STACKS]:
            os.close(end)
        self.process.wait()  # it forks: the process that goes on is not a child of this one
        self._order(json.dumps(order).encode())
        self.hung = self.found = ""
        reader = threading.Thread(target=self._read, args=(outputs, inputs[STACKS:], attempt), daemon=True)
        reader.start()

    def _order(self, line: bytes) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def _unpack(self, code: str) -> None:
        """Give the replica its own copy of the code, once, and the toolkit beside it."""
        if os.path.isdir(code):
            return
        os.makedirs(self.job_dir, mode=0o700, exist_ok=True)
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        shutil.copyfile(
            os.path.join(self.package, "toolkit.pyz"), os.path.join(self.directory, "toolkit.pyz")
        )
        partial = tempfile.mkdtemp(prefix=".code-", dir=self.directory)
        os.chmod(partial, 0o755)
        archive = os.path.join(self.package, "code.tar")
        if os.path.exists(archive):
            import tarfile

            with tarfile.open(archive) as content:
                if hasattr(tarfile, "fully_trusted_filter"):
                    content.extractall(partial, filter="fully_trusted")
                else:
                    content.extractall(partial)
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

    # ---- hangs

    def _toolkit(self, name: str) -> Any:
        """Return a module of the toolkit, by name: this file runs on the cluster, beside its archive."""
        path = os.path.join(self.package, "toolkit.pyz")
        if path not in sys.path:
            sys.path.append(path)
        return importlib.import_module(f"shunter_toolkit.{name}")

    def _listen_for_stacks(self, env: dict[str, str]) -> None:
        """Have the program's Python processes write their stacks upon a signal."""
        stack_dump = self._toolkit("stack_dump")
        folder = os.path.join(self.directory, "python")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, stack_dump.HANDLER_FILE), "w", encoding="utf-8") as file:
            file.write(stack_dump.HANDLER)
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, env.get("PYTHONPATH", "")]))
        env[stack_dump.VARIABLE] = str(int(stack_dump.SIGNAL))

    def _watch(self, pid: int, stacks: int) -> None:
        """Watch the program for hangs to its end, in a thread to which the descriptor belongs."""
        hung_program = self._toolkit("hung_program")
        asked = self.plan["hang"]

        def note(text: str) -> None:
            self.found = text

        def note_stop(reason: str) -> None:
            self.hung = reason

        folders = [os.path.join(self.base, part) for part in RESULTS] if self.base else []
        program = hung_program.HungProgram(pid, asked["seconds"], folders, lambda: self.written, stacks, note)
        try:
            hung_program.watch(program, asked["on_hang"], self.plan["grace"], note_stop)
        except OSError:  # it has ended, and nobody reads the stacks
            pass
        finally:
            os.close(stacks)

    def _read(self, outputs: tuple[int, ...], stacks: tuple[int, ...], attempt: int) -> None:
        """Read the program's output to its end, in a thread, then how it ended."""
        lines = [Lines(self.name, "out"), Lines(self.name, "err")]
        copies = self._copies(attempt)
        selector = selectors.DefaultSelector()
        for number, end in enumerate(outputs):
            os.set_blocking(end, False)
            selector.register(end, selectors.EVENT_READ, number)
        report, ended_at = b"", None
        while any(key.data != STACKS for key in selector.get_map().values()):
            for key, _ in selector.select(UNFINISHED / 2):
                try:
                    data = os.read(key.fd, 256 << 10)
                except OSError:
                    data = b""
                if not data:
                    selector.unregister(key.fd)
                    if key.data == REPORT:
                        ended_at = time.monotonic()
                elif key.data == REPORT:
                    report += data
                    if self._note_pid(report) and stacks:
                        threading.Thread(target=self._watch, args=(self.pid, *stacks), daemon=True).start()
                        stacks = ()
                elif key.data == STACKS:
                    self._put(lines[1].feed(data))
                else:
                    self.written += len(data)
                    if copies:
                        copies[key.data].write(data)
                    self._put(lines[key.data].feed(data))
            for each in lines:
                if each.pending and time.monotonic() - each.since > UNFINISHED:
                    self._put(each.flush())
            if ended_at is not None and time.monotonic() - ended_at > ASKING:
                break  # a process that escaped keeps the pipes open
        selector.close()
        for end in (*outputs, *stacks):
            os.close(end)
        for each in lines:
            self._put(each.flush())
        for copy in copies:
            copy.close()
        outcome = {"code": 1, "signal": 0, "error": "the process that ran it was killed"}
        for line in report.decode().splitlines():
            news = json.loads(line)
            outcome = news if "code" in news else outcome
        outcome["time"] = time.time()
        outcome["hung"] = self.hung
        if outcome["code"]:
            outcome["structured"] = self._error()
        self.pid = 0
        with self.changed:
            self.outcome = outcome
            self.changed.notify_all()

    def _note_pid(self, report: bytes) -> bool:
        """Note the program's pid from its report; returns whether it is news."""
        first, end, _ = report.partition(b"\n")
        if end and not self.pid:
            self.pid = json.loads(first.decode()).get("pid", 0)
            return self.pid != 0
        return False

    def _copies(self, attempt: int) -> list[FileIO]:
        if not self.plan["job_dir"]:
            return []
        place = os.path.join(self.job_dir, "logs", f"{self.role['name']}-{self.index}")
        os.makedirs(place, mode=0o700, exist_ok=True)
        return [
            open(os.path.join(place, f"{attempt}.{stream}"), "ab", buffering=0) for stream in ("out", "err")
        ]

    def _error(self) -> str:
        """Return what the program says of its failure: torchelastic's file, or the toolkit's."""
        report = os.path.join(self.base, "output", "failure") if self.base else ""
        for path, is_json in ((self.error_file, True), (report, False)):
            if path and os.path.isfile(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read(LONGEST_ERROR).strip()
                if text:
                    return text if is_json else json.dumps({"message": {"message": text}})
        return ""

    def _put(self, text: str) -> None:
        if not text:
            return
        with self.changed:
            while self.buffered > BUFFERED:
                self.changed.wait()
            self.blocks.append(text)
            self.buffered += len(text)
            self.changed.notify_all()

    def read(self) -> tuple[str, dict[str, Any] | None, int, str]:
        """Wait for output; returns it, how the program ended once no output is left, its pid, and a note."""
        with self.changed:
            if not self.blocks and self.outcome is None:
                self.changed.wait(ASKING)
            text = "".join(self.blocks)
            self.blocks.clear()
            self.buffered = 0
            self.changed.notify_all()
            return text, self.outcome, self.pid, self.found

    def stop(self, grace: float) -> None:
        """Ask the program to end; the end comes by `read`."""
        if self.process is not None:
            try:
                self._order(b"stop %f" % grace)
            except (OSError, ValueError):
                pass

    def close(self) -> None:
        """Remove what is not needed after the job: everything but results and logs."""
        kept = [os.path.join(self.base, part) for part in RESULTS] if self.base else []
        has_results = any(names for top in kept for _, _, names in os.walk(top))
        shutil.rmtree(os.path.join(self.directory, "code"), ignore_errors=True)
        if not has_results:
            shutil.rmtree(self.directory, ignore_errors=True)
        try:
            os.rmdir(self.job_dir)
        except OSError:
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
        RANK0: "localhost" if own is None else first["ip"],
        "PET_LOCAL_ADDR": (own or first)["ip"],
        **{name: str(port) for name, port in zip(PORTS, first["ports"])},
    }


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = os.fsdecode(file.read()).split("\0")
    return dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)
