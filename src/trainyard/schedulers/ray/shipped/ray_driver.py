"""The driver of one job: it finds room for the replicas, starts an actor for each, and keeps the job's state.

Its stdout is the job's log, which has a line for each line of a replica::

    2026-11-22T14:58:01.234567Z worker/0 out| loss: 0.25

``out`` or ``err``, with ``64`` at its end where the text is in base64, for bytes that Ray's log cannot carry.
Then how the line ended: ``|`` by a line feed, ``<`` by a carriage return, ``>`` by both, ``:`` not yet. The
state is a JSON document beside the log, replaced when something changes, and at the end a line of the
log.
"""

from __future__ import annotations

import base64
import collections
import json
import os
import selectors
import shutil
import signal
import string
import subprocess
import sys
import tempfile
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from io import FileIO
    from typing import Any

PLAN = "trainyard_plan"
STATE_MARK = "trainyard-state "
RANK0 = "TORCHX_RANK0_HOST"
PORTS = ("TRAINYARD_MUSTER_PORT", "TRAINYARD_MASTER_PORT")
#: Directories of the base directory that hold results.
RESULTS = ("model", os.path.join("output", "data"), "checkpoints")
#: Most bytes that a program may be ahead of the log, of a line of the log, and of an error file.
BUFFERED, LONGEST_LINE, LONGEST_ERROR = 8 << 20, 64 << 10, 16 << 10
#: Which of a program's pipes says how it ended, after those of stdout and stderr.
REPORT = 2
#: Seconds after which a line without an end is shown, and how long one question to an actor may last.
UNFINISHED, ASKING = 0.5, 2.0
#: Seconds between two looks at other jobs, and at the room in the cluster.
LOOKING = 2.0
#: For how many seconds a replica's room may be on a node that is gone, until Ray moves it.
PLACING = 120.0
STATE_INTERVAL = 0.1
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")


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
            end = self._end(data, at)
            if end is None:
                break
            stop, mark, after = end
            found.append(self._line(data[at:stop], mark))
            at = after
        self.pending = data[at:]
        return "".join(found)

    def _end(self, data: bytes, at: int) -> tuple[int, str, int] | None:
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
        """Return what is there of an unfinished line."""
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
        root = plan["job_dir"] or os.path.join(tempfile.gettempdir(), f"trainyard-{os.getuid()}")
        self.job_dir = os.path.join(root, plan["app_id"])
        self.directory = os.path.join(self.job_dir, f"{role['name']}-{index}")
        self.changed = threading.Condition()
        self.blocks: collections.deque[str] = collections.deque()
        self.buffered = 0
        self.outcome: dict[str, Any] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.error_file = self.base = ""
        self.pid = 0

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
        if inside:
            env, argv = environment_of(inside["pid"]), self.role["argv"]
        outputs, inputs = zip(*[os.pipe() for _ in range(3)])
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
        for end in inputs:
            os.close(end)
        self.process.wait()  # what goes on is no child of this process
        self._order(json.dumps(order).encode())
        reader = threading.Thread(target=self._read, args=(outputs, attempt), daemon=True)
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

    def _read(self, outputs: tuple[int, ...], attempt: int) -> None:
        """Read the program's output to its end, in a thread, then how it ended."""
        lines = [Lines(self.name, "out"), Lines(self.name, "err")]
        copies = self._copies(attempt)
        selector = selectors.DefaultSelector()
        for number, end in enumerate(outputs):
            os.set_blocking(end, False)
            selector.register(end, selectors.EVENT_READ, number)
        report, ended_at = b"", None
        while selector.get_map():
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
                    self._note_pid(report)
                else:
                    if copies:
                        copies[key.data].write(data)
                    self._put(lines[key.data].feed(data))
            for each in lines:
                if each.pending and time.monotonic() - each.since > UNFINISHED:
                    self._put(each.flush())
            if ended_at is not None and time.monotonic() - ended_at > ASKING:
                break  # somebody who got away holds the pipes
        selector.close()
        for end in outputs:
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
        if outcome["code"]:
            outcome["structured"] = self._error()
        self.pid = 0
        with self.changed:
            self.outcome = outcome
            self.changed.notify_all()

    def _note_pid(self, report: bytes) -> None:
        first, end, _ = report.partition(b"\n")
        if end and not self.pid:
            self.pid = json.loads(first.decode()).get("pid", 0)

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

    def read(self) -> tuple[str, dict[str, Any] | None, int]:
        """Wait for output; returns some, how the program ended when all is handed out, and its pid."""
        with self.changed:
            if not self.blocks and self.outcome is None:
                self.changed.wait(ASKING)
            text = "".join(self.blocks)
            self.blocks.clear()
            self.buffered = 0
            self.changed.notify_all()
            return text, self.outcome, self.pid

    def stop(self, grace: float) -> None:
        """Ask the program to end; the end comes by `read`."""
        if self.process is not None:
            try:
                self._order(b"stop %f" % grace)
            except (OSError, ValueError):
                pass

    def close(self) -> None:
        """Remove what nobody needs after the job: all but results and logs."""
        kept = [os.path.join(self.base, part) for part in RESULTS] if self.base else []
        has_results = any(names for top in kept for _, _, names in os.walk(top))
        shutil.rmtree(os.path.join(self.directory, "code"), ignore_errors=True)
        if not has_results:
            shutil.rmtree(self.directory, ignore_errors=True)
        try:
            os.rmdir(self.job_dir)
        except OSError:
            pass


def environment_of(pid: int) -> dict[str, str]:
    """Return the environment that a process was started with."""
    with open(f"/proc/{pid}/environ", "rb") as file:
        pairs = os.fsdecode(file.read()).split("\0")
    return dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)


# ---- the driver


class ActorReplica:
    """What the driver knows of a replica."""

    def __init__(self, role: dict[str, Any], index: int) -> None:
        self.role, self.index = role, index
        self.name = f"{role['name']}/{index}"
        self.is_spare = role["min"] is not None and index >= role["min"]
        self.state, self.reason, self.structured = "PENDING", "", ""
        self.code: int | None = None
        self.restarts = 0
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.group: Any = None
        self.bundle = 0
        self.room: Any = None
        self.actor: Any = None
        self.host: dict[str, Any] | None = None
        self.question: Any = None
        self.asked = ""
        self.pid = 0
        self.placing_since = 0.0
        self.place_at: float | None = None
        self.stop_reason = ""

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and is not to be started again."""
        return self.state in ENDED

    def to_json(self) -> dict[str, Any]:
        """Return its part of the state document."""
        return {
            "id": self.index,
            "state": self.state,
            "reason": self.reason,
            "exit_code": self.code,
            "restarts": self.restarts,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "hostname": self.host["name"] if self.host else "",
            "address": self.host["ip"] if self.host else "",
            "node": self.host["node"] if self.host else "",
            "pid": self.pid,
            "structured": self.structured,
        }


class Driver:
    """Runs one job to its end.

    Args:
        plan: what `trainyard.schedulers.ray.request` made.
        state_path: where the state document goes; "" for nowhere.
    """

    def __init__(self, plan: dict[str, Any], state_path: str) -> None:
        self.plan = plan
        self.state_path = state_path
        self.roles = plan["roles"]
        self.replicas = [
            ActorReplica(role, index) for role in self.roles for index in range(role["replicas"])
        ]
        self.phase, self.waits_for = "placing", ""
        self.final, self.msg = "", ""
        self.app_restarts, self.role_restarts = 0, {role["name"]: 0 for role in self.roles}
        self.restarting: set[str] = set()
        self.stopping: tuple[str, str] | None = None
        self.asked_to_stop = False
        self.deadline: float | None = None
        self.kill_at: float | None = None
        self.is_dirty, self.written = True, 0.0

    # ---- life

    def obey_signals(self) -> None:
        """Stop the job when Ray asks for it, which it does by a signal."""

        def note(*_: object) -> None:
            self.asked_to_stop = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, note)

    def run(self) -> int:
        """Run the job; returns the exit code."""
        self.write_state(force=True)
        if self.plan["after"] and not self.wait_for_others():
            return self.finish()
        if not self.find_room():
            return self.finish()
        self.phase, self.waits_for = "running", ""
        for replica in self.replicas:
            if not replica.is_spare:
                replica.placing_since = time.monotonic()
                self.make_actor(replica)
        while not self.is_over():
            self.step()
        return self.finish()

    def is_over(self) -> bool:
        """Whether every replica has ended, spare ones that found no room aside."""
        if self.restarting:
            return False
        return all(
            replica.has_ended or (replica.is_spare and replica.actor is None) for replica in self.replicas
        )

    def step(self) -> None:
        """Handle what comes next."""
        import ray

        self.check_orders()
        self.place_again()
        self.start_those_ready()
        questions = {replica.question: replica for replica in self.replicas if replica.question is not None}
        self.write_state()
        if questions:
            done, _ = ray.wait(list(questions), num_returns=1, timeout=0.5)
            for question in done:
                self.answered(questions[question])
        elif not self.is_over():
            time.sleep(0.05)
        self.restart_if_ready()
        self.use_spare_room()

    def place_again(self) -> None:
        """Make actors once more whose room was on a node that is gone."""
        now = time.monotonic()
        for replica in self.replicas:
            if replica.place_at is not None and now >= replica.place_at and not self.stopping:
                replica.place_at = None
                self.make_actor(replica)

    def check_orders(self) -> None:
        """Stop where that was asked for, or the time is up; kill what does not stop."""
        now = time.monotonic()
        if self.asked_to_stop:
            self.stop_all("CANCELLED", "cancelled")
        elif self.deadline is not None and now >= self.deadline:
            self.stop_all("FAILED", f"stopped at its time limit of {self.plan['timeout']:g} s")
        if self.kill_at is not None and now >= self.kill_at:
            self.kill_at = None
            for replica in self.replicas:
                if not replica.has_ended:
                    self.lost(replica, "it did not stop")

    def finish(self) -> int:
        """Say how the job ended; returns the exit code."""
        import ray

        for replica in self.replicas:
            if not replica.has_ended:
                replica.state = "CANCELLED"
                replica.reason = self.stopping[1] if self.stopping else "not needed: there was no room for it"
        failed = [replica for replica in self.replicas if replica.state == "FAILED"]
        fatal = [replica for replica in failed if not self.can_do_without(replica)]
        code = 0
        if self.stopping:
            self.final, self.msg = self.stopping
            code = 143 if self.final == "CANCELLED" else 1
        elif fatal:
            first = min(fatal, key=lambda replica: replica.ended_at or 0.0)
            others = f" (and {len(fatal) - 1} more replicas failed)" if fatal[1:] else ""
            self.final, self.msg = "FAILED", f"{first.name}: {first.reason}{others}"
            code = first.code or 1
        else:
            self.final = "SUCCEEDED"
        self.phase, self.waits_for = "ended", ""
        closing = [replica.actor.close.remote() for replica in self.replicas if replica.actor is not None]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=10)
        self.write_state(force=True)
        sys.stdout.write(STATE_MARK + json.dumps(self.document()) + "\n")
        sys.stdout.flush()
        return code

    def can_do_without(self, failed: ActorReplica) -> bool:
        """Whether enough replicas of an elastic role succeeded without this one."""
        least = failed.role["min"]
        peers = [replica for replica in self.replicas if replica.role is failed.role]
        return least is not None and sum(replica.state == "SUCCEEDED" for replica in peers) >= least

    # ---- other jobs

    def wait_for_others(self) -> bool:
        """Wait for the jobs that this one is to run after; returns whether it may run."""
        from ray.job_submission import JobSubmissionClient

        client = None
        waiting = list(self.plan["after"])
        while waiting:
            self.phase, self.waits_for = (
                "waiting",
                "waits for " + ", ".join(each["job"] for each in waiting),
            )
            self.is_dirty = True
            self.write_state()
            until = time.monotonic() + LOOKING
            while time.monotonic() < until:
                if self.asked_to_stop:
                    self.stopping = ("CANCELLED", "cancelled")
                    return False
                time.sleep(0.1)
            try:
                client = client or JobSubmissionClient()
                for each in list(waiting):
                    status = str(getattr(client.get_job_status(each["job"]), "value", "")).upper()
                    if status not in ("SUCCEEDED", "FAILED", "STOPPED"):
                        continue
                    waiting.remove(each)
                    if status != "SUCCEEDED" and not each["any"]:
                        self.stopping = ("CANCELLED", f"not started: {each['job']} is {status}")
                        return False
            except Exception as error:
                if "does not exist" in str(error):
                    self.stopping = ("CANCELLED", f"not started: {waiting[0]['job']} is no longer known")
                    return False
                client = None  # the dashboard is away, which says nothing of the jobs
        self.phase = "placing"
        return True

    # ---- room

    def find_room(self) -> bool:
        """Reserve what the replicas need, all at once; returns whether it was found."""
        import ray

        if self.plan.get("inside"):
            return True
        needed = [replica for replica in self.replicas if not replica.is_spare]
        group = reserve(needed, self.plan["strategy"])
        for bundle, replica in enumerate(needed):
            replica.group, replica.bundle = group, bundle
        ready, started, looked = group.ready(), time.monotonic(), float("-inf")
        limit = self.plan["placement_timeout"]
        while not ray.wait([ready], timeout=0.5)[0]:
            now = time.monotonic()
            self.check_orders()
            if self.stopping:
                return False
            if limit is not None and now - started >= limit:
                self.stopping = ("FAILED", f"no room within {limit:g} s: {self.waits_for or 'no details'}")
                return False
            if now - looked >= LOOKING:
                looked = now
                self.waits_for = room_wanted(needed)
                self.is_dirty = True
                self.write_state()
        return True

    def use_spare_room(self) -> None:
        """Start replicas of elastic roles beyond their fewest where room was found."""
        import ray

        if self.stopping or self.restarting:
            return
        spare = [replica for replica in self.replicas if replica.is_spare and replica.actor is None]
        for replica in spare:
            if replica.has_ended:
                continue
            if replica.room is None:
                replica.group, replica.bundle = reserve([replica], "PACK"), 0
                replica.room = replica.group.ready()
            elif ray.wait([replica.room], timeout=0)[0]:
                self.make_actor(replica)

    # ---- replicas

    def make_actor(self, replica: ActorReplica) -> None:
        """Put a replica's actor into its room, and ask where it is."""
        import ray
        from ray.util.scheduling_strategies import (
            NodeAffinitySchedulingStrategy,
            PlacementGroupSchedulingStrategy,
        )

        inside = self.plan.get("inside")
        bundle = {} if inside else replica.role["bundle"]
        custom = {name: value for name, value in bundle.items() if name not in ("CPU", "GPU", "memory")}
        options = {
            "num_cpus": bundle.get("CPU", 0),
            "num_gpus": bundle.get("GPU", 0),
            "resources": custom or None,
            "max_concurrency": 8,
            "max_restarts": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(inside["node"], soft=False)
            if inside
            else PlacementGroupSchedulingStrategy(
                placement_group=replica.group, placement_group_bundle_index=replica.bundle
            ),
        }
        if "memory" in bundle:
            options["memory"] = bundle["memory"]
        plan = {key: value for key, value in self.plan.items() if key != "roles"}
        replica.actor = ray.remote(**options)(ReplicaActor).remote(plan, replica.role, replica.index)
        replica.host = None
        self.ask(replica, "host", replica.actor.host.remote())

    def ask(self, replica: ActorReplica, what: str, question: Any) -> None:
        """Note a question to a replica's actor, one at a time."""
        replica.asked, replica.question = what, question

    def start_those_ready(self) -> None:
        """Start replicas that have their place: those that belong together, together."""
        if self.stopping or self.restarting:
            return
        ready = [r for r in self.replicas if r.host and r.state == "PENDING" and r.question is None]
        first = self.replicas[0]
        is_complete = all(r.host or r.has_ended for r in self.replicas if not r.is_spare)
        if not ready or not first.host or not is_complete:
            return
        if self.plan["timeout"] is not None and self.deadline is None:
            self.deadline = time.monotonic() + self.plan["timeout"]
        for replica in ready:
            shared = {
                RANK0: "localhost" if replica is first else first.host["ip"],
                "PET_LOCAL_ADDR": (replica.host or first.host)["ip"],
                **{name: str(port) for name, port in zip(PORTS, first.host["ports"])},
            }
            replica.started_at, replica.ended_at = time.time(), None
            replica.code, replica.reason, replica.structured, replica.stop_reason = None, "", "", ""
            replica.state = "RUNNING"
            self.ask(replica, "start", replica.actor.start.remote(replica.restarts, shared))
            self.is_dirty = True

    def answered(self, replica: ActorReplica) -> None:
        """Handle an answer of a replica's actor."""
        import ray

        try:
            answer = ray.get(replica.question)
        except Exception as error:
            self.lost(replica, first_line(error))
            return
        what, replica.question = replica.asked, None
        if what == "host":
            replica.host = answer
            self.is_dirty = True
        elif what == "start":
            if answer:
                self.ended(replica, {"code": 1, "signal": 0, "error": answer, "time": time.time()})
            else:
                if self.stopping or replica.name in self.restarting:  # asked to stop before it had started
                    replica.actor.stop.remote(self.plan["grace"])
                self.ask(replica, "read", replica.actor.read.remote())
        else:
            text, outcome, pid = answer
            self.is_dirty = self.is_dirty or pid != replica.pid
            replica.pid = pid
            if text:
                sys.stdout.write(text)
                sys.stdout.flush()
            if outcome is None:
                self.ask(replica, "read", replica.actor.read.remote())
            else:
                self.ended(replica, outcome)

    def ended(self, replica: ActorReplica, outcome: dict[str, Any]) -> None:
        """Note how a replica's program ended, and apply the retry policy."""
        replica.code, replica.ended_at = outcome["code"], outcome["time"]
        replica.structured = outcome.get("structured", "")
        self.is_dirty = True
        if replica.stop_reason:
            state = self.stopping[0] if self.stopping else "CANCELLED"
            replica.state, replica.reason = state, replica.stop_reason
        elif outcome["error"]:
            replica.state, replica.reason = "FAILED", f"could not be started: {outcome['error']}"
            self.failed(replica, may_retry=False)
        elif outcome["code"]:
            replica.state, replica.reason = "FAILED", f"exit code {outcome['code']}"
            if outcome["signal"]:
                replica.reason = f"killed by {signal_name(outcome['signal'])}"
            self.failed(replica)
        else:
            replica.state, replica.reason = "SUCCEEDED", ""

    def lost(self, replica: ActorReplica, why: str) -> None:
        """Note that a replica's actor is gone: its node, most likely."""
        import ray

        try:
            ray.kill(replica.actor)
        except Exception:
            pass
        place = replica.host["name"] if replica.host else "a node"
        was_placed = replica.host is not None
        replica.actor = replica.question = replica.host = None
        if not was_placed and not self.stopping and time.monotonic() - replica.placing_since < PLACING:
            replica.place_at = time.monotonic() + LOOKING  # its room is on a node that is being given up
            return
        replica.ended_at = time.time()
        self.is_dirty = True
        if replica.stop_reason:
            replica.state = self.stopping[0] if self.stopping else "CANCELLED"
            replica.reason = replica.stop_reason
            return
        replica.state, replica.reason = "FAILED", f"lost on {place}: {why}"
        if replica.is_spare:
            replica.room = None
        self.failed(replica)

    # ---- retries

    def failed(self, replica: ActorReplica, may_retry: bool = True) -> None:
        """Apply the retry policy of a replica's role to its failure."""
        if self.stopping or replica.name in self.restarting:
            return
        limit = replica.role["max_retries"] if may_retry else 0
        policy, name = replica.role["policy"], replica.role["name"]
        if (policy == "REPLICA" or replica.role["min"] is not None) and replica.restarts < limit:
            self.restart([replica], replica)
        elif policy == "ROLE" and self.role_restarts[name] < limit:
            self.role_restarts[name] += 1
            self.restart([peer for peer in self.replicas if peer.role is replica.role], replica)
        elif policy == "APPLICATION" and self.app_restarts < limit:
            self.app_restarts += 1
            self.restart(self.replicas, replica)
        elif self.plan["fail_fast"]:
            self.stop(self.replicas, f"stopped because {replica.name} failed")

    def restart(self, members: Iterable[ActorReplica], culprit: ActorReplica) -> None:
        """Stop what still runs of a group, and start the group again when all of it has ended."""
        self.restarting |= {replica.name for replica in members}
        self.stop(members, f"stopped because {culprit.name} failed")

    def restart_if_ready(self) -> None:
        """Start a group again that has ended."""
        members = [replica for replica in self.replicas if replica.name in self.restarting]
        if self.stopping:
            self.restarting.clear()
        elif members and all(r.has_ended or r.state == "PENDING" for r in members):
            self.restarting.clear()
            for replica in members:
                if replica.is_spare and replica.actor is None and not replica.has_ended:
                    continue  # it never ran
                replica.restarts += 1
                replica.state, replica.stop_reason = "PENDING", ""
                if replica.actor is None and not replica.is_spare:
                    replica.placing_since = time.monotonic()
                    self.make_actor(replica)  # its room moves to another node
            self.is_dirty = True

    # ---- stopping

    def stop_all(self, state: str, reason: str) -> None:
        """Stop the job, once."""
        if self.stopping:
            return
        self.stopping = (state, reason)
        self.restarting.clear()
        self.stop(self.replicas, reason)
        self.kill_at = time.monotonic() + self.plan["grace"] + 5

    def stop(self, members: Iterable[ActorReplica], reason: str) -> None:
        """Ask the programs of replicas to end."""
        for replica in members:
            if replica.state == "RUNNING" and not replica.stop_reason:
                replica.stop_reason = reason
                replica.actor.stop.remote(self.plan["grace"])
            elif replica.state == "PENDING" and self.stopping:
                replica.state, replica.reason, replica.question = self.stopping[0], reason, None
        self.is_dirty = True

    # ---- state

    def document(self) -> dict[str, Any]:
        """Return the state of the job, as JSON values."""
        restarts = [self.app_restarts, *self.role_restarts.values(), *(r.restarts for r in self.replicas)]
        roles = [
            {"role": role["name"], "replicas": [r.to_json() for r in self.replicas if r.role is role]}
            for role in self.roles
        ]
        return {
            "app_id": self.plan["app_id"],
            "phase": self.phase,
            "state": self.final,
            "msg": self.msg or self.waits_for,
            "restarts": max(restarts),
            "roles": roles,
        }

    def write_state(self, force: bool = False) -> None:
        """Replace the state document if something has changed; a full disk stops nothing."""
        now = time.monotonic()
        if not force and (not self.is_dirty or now - self.written < STATE_INTERVAL):
            return
        self.is_dirty, self.written = False, now
        if not self.state_path:
            return
        try:
            with open(self.state_path + ".new", "w", encoding="utf-8") as file:
                json.dump(self.document(), file)
                file.write("\n")
            os.replace(self.state_path + ".new", self.state_path)
        except OSError:
            self.is_dirty = True


def reserve(replicas: list[ActorReplica], strategy: str) -> Any:
    """Ask for room for replicas: a placement group with a bundle for each."""
    import ray

    bundles = [replica.role["bundle"] for replica in replicas]
    labels = [replica.role["labels"] for replica in replicas]
    given = {"bundle_label_selector": labels} if any(labels) else {}
    return ray.util.placement_group(bundles, strategy=strategy, **given)


def room_wanted(replicas: list[ActorReplica]) -> str:
    """Say what room is waited for, and how much there is."""
    import ray

    counts = collections.Counter(shown(replica.role["bundle"]) for replica in replicas)
    wanted = ", ".join(f"{count} x {{{bundle}}}" for bundle, count in counts.items())
    names = sorted({name for replica in replicas for name in replica.role["bundle"]})
    everything, free = ray.cluster_resources(), ray.available_resources()
    there = ", ".join(
        f"{name} {amount(name, free.get(name, 0))} of {amount(name, everything.get(name, 0))}"
        for name in names
    )
    return f"waits for room for {wanted}; free in the cluster: {there}"


def shown(bundle: dict[str, float]) -> str:
    """Return the resources of a replica in words."""
    return ", ".join(f"{name} {amount(name, value)}" for name, value in bundle.items())


def amount(name: str, value: float) -> str:
    """Return an amount of a resource in words."""
    return f"{value / (1 << 30):.1f} GiB" if name == "memory" else f"{value:g}"


def first_line(error: Exception) -> str:
    """Return the telling line of an error of Ray."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no details'}"


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_plan() -> dict[str, Any]:
    """Return the plan, which is a module's directory beside Ray's others."""
    for place in sys.path:
        path = os.path.join(place, PLAN, "plan.json")
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                plan: dict[str, Any] = json.load(file)
            return plan
    raise SystemExit(f"trainyard: the job's plan is in none of {sys.path}")


def state_file(app_id: str) -> str:
    """Return where the state document goes: beside the log, which is stdout."""
    try:
        directory = os.path.dirname(os.readlink("/proc/self/fd/1"))
    except OSError:
        return ""
    return os.path.join(directory, f"trainyard-{app_id}.json") if os.path.isdir(directory) else ""


def main() -> None:
    """Run the job of the plan."""
    plan = read_plan()
    driver = Driver(plan, state_file(plan["app_id"]))
    driver.obey_signals()
    import ray

    ray.init(log_to_driver=False, logging_level="WARNING")
    driver.obey_signals()  # Ray has put its own handlers there
    code = driver.run()
    sys.stdout.flush()
    ray.shutdown()
    os._exit(code if 0 <= code <= 255 else 1)


if __name__ == "__main__":
    main()
