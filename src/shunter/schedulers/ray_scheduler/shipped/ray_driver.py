"""The driver of one job: it finds room for the replicas, starts an actor for each, and keeps the job's state.

Its stdout is the job's log, in lines that the actors make (`replica_actor.py`). The state is a JSON document
beside the log, replaced when something changes, and at the end a line of the log. What is retried, what
caused a failure, and how others are notified is decided by the toolkit, whose archive lies beside this file.
"""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

TOOLKIT = "toolkit.pyz"
if __name__ == "__main__":
    sys.path.insert(0, os.path.abspath(TOOLKIT))

from shunter_toolkit import failure_class, race_lease, retry_rule  # noqa: E402

STATE_MARK = "shunter-state "
#: Seconds between two looks at other jobs, and at the room in the cluster.
LOOKING = 2.0
#: For how many seconds a replica's room may be on a node that is gone, until Ray moves it.
PLACING = 120.0
#: Seconds between two writings of the state, and beyond the grace period until a replica is given up.
STATE_INTERVAL, KILLING = 0.25, 5.0
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
#: What the state document has of a replica, besides where it is.
SHOWN = ["state", "reason", "exit_code", "restarts", "started_at", "ended_at", "pid", "structured", "notes"]
#: How many of the last lines are kept to find the cause of a failure.
TAIL = 500
SIGNALS = {number.value: number.name for number in signal.Signals}
MOST_NOTES = 20
#: Seconds that notifications may take before the driver ends; they go on without it.
TELLING = 10.0
#: The status of a job that Ray has forgotten.
UNKNOWN = "no longer known"


@dataclass(eq=False)
class ActorReplica:
    """What the driver knows of a replica."""

    role: dict[str, Any]
    index: int
    state: str = "PENDING"
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0
    started_at: float | None = None
    ended_at: float | None = None
    pid: int = 0
    structured: str = ""
    notes: list[str] = field(default_factory=list)
    #: Ray's placement group, the number of this replica's bundle there, and its answer once a spare has room.
    group: Any = None
    bundle: int = 0
    room: Any = None
    #: The actor, the call that it has not answered yet, and where it is.
    actor: Any = None
    call: Any = None
    host: dict[str, Any] | None = None
    placing_since: float = 0.0
    place_at: float | None = None
    stop_reason: str = ""
    #: The last lines of its log, as it wrote them.
    tail: collections.deque[str] = field(default_factory=lambda: collections.deque(maxlen=TAIL))

    @property
    def name(self) -> str:
        """Its role and index."""
        return f"{self.role['name']}/{self.index}"

    @property
    def is_spare(self) -> bool:
        """Whether its elastic role can do without it."""
        return self.role["min"] is not None and self.index >= self.role["min"]

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and must not be restarted."""
        return self.state in ENDED

    def end(self, state: str, reason: str = "") -> None:
        """Note how it ended."""
        self.state, self.reason = state, reason

    def note(self, text: str) -> None:
        """Add a note, unless it is the last one already."""
        if text and self.notes[-1:] != [text]:
            self.notes = [*self.notes, text][-MOST_NOTES:]

    def to_json(self) -> dict[str, Any]:
        """Return its part of the state document."""
        return {"id": self.index, **(self.host or {}), **{name: getattr(self, name) for name in SHOWN}}


class Driver:
    """Runs one job to its end.

    Args:
        plan: what `shunter.schedulers.ray_scheduler.request` made.
        state_path: where the state document goes; "" for nowhere.
        ray: the module.
    """

    def __init__(self, plan: dict[str, Any], state_path: str, ray: Any = None) -> None:
        self.plan, self.state_path, self.ray = plan, state_path, ray
        self.replicas = [
            ActorReplica(role, index) for role in plan["roles"] for index in range(role["replicas"])
        ]
        self.phase, self.waits_for = "placing", ""
        self.final, self.msg = "", ""
        #: The replicas whose failures failed the job, in the order in which they ended.
        self.fatal: list[ActorReplica] = []
        self.restarting: set[str] = set()
        #: The state and the reason with which all of the job is being stopped.
        self.stopping: tuple[str, str] | None = None
        self.asked_to_stop = False
        self.deadline = self.kill_at = float("inf")
        self.written, self.written_at = "", 0.0
        #: Number of restarts, by what was restarted together and by class of failure.
        self.used: collections.Counter[tuple[str, str]] = collections.Counter()

    # ---- life

    def obey_signals(self) -> None:
        """Stop the job when Ray asks for it, which it does by a signal."""

        def note(*_: object) -> None:
            self.asked_to_stop = True

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, note)

    def run(self) -> int:
        """Run the job; returns the exit code."""
        self.write_state()
        self.wait_for_others()
        if not self.stopping:
            self.find_room()
        if not self.stopping:
            self.phase, self.waits_for = "running", ""
            for replica in self.replicas:
                if not replica.is_spare:
                    self.make_actor(replica)
            while not self.is_over():
                self.step()
        return self.finish()

    def is_over(self) -> bool:
        """Whether every replica has ended, spare ones that found no room aside."""
        return not self.restarting and all(
            replica.has_ended or (replica.is_spare and replica.actor is None) for replica in self.replicas
        )

    def step(self) -> None:
        """Handle what comes next."""
        self.check_orders()
        self.place_again()
        self.start_those_ready()
        self.write_state()
        calls = {replica.call: replica for replica in self.replicas if replica.call is not None}
        if calls:
            for call in self.ray.wait(list(calls), num_returns=1, timeout=0.5)[0]:
                self.answered(calls[call])
        elif not self.is_over():
            time.sleep(0.05)
        self.restart_if_ready()
        self.use_spare_room()

    def check_orders(self) -> None:
        """Stop the job if that was requested or its time is up; give up what does not stop."""
        if self.asked_to_stop:
            self.stop_all("CANCELLED", "cancelled")
        elif time.monotonic() >= self.deadline:
            self.stop_all("FAILED", f"stopped at its time limit of {self.plan['timeout']:g} s")
        if time.monotonic() >= self.kill_at:
            self.kill_at = float("inf")
            for replica in self.replicas:
                if not replica.has_ended:
                    self.lost(replica, "it did not stop")

    def finish(self) -> int:
        """Say how the job ended; returns the exit code."""
        no_room = "not started: there was no room for it, and the job did not need it"
        for replica in self.replicas:
            if not replica.has_ended:
                replica.end("CANCELLED", self.stopping[1] if self.stopping else no_room)
        failed = [each for each in self.replicas if each.state == "FAILED" and not self.can_do_without(each)]
        code = 0
        if self.stopping:
            self.final, self.msg = self.stopping
            code = 143 if self.final == "CANCELLED" else 1
        elif failed:
            self.fatal = sorted(failed, key=lambda replica: replica.ended_at or 0.0)
            others = f" (and {len(failed) - 1} more failed)" if failed[1:] else ""
            self.final, self.msg = "FAILED", f"{self.fatal[0].name}: {self.fatal[0].reason}{others}"
            code = self.fatal[0].exit_code or 1
        else:
            self.final = "SUCCEEDED"
        self.phase, self.waits_for = "ended", ""
        closing = [replica.actor.close.remote() for replica in self.replicas if replica.actor is not None]
        if closing:
            self.ray.wait(closing, num_returns=len(closing), timeout=10)
        self.write_state(now=True)
        sys.stdout.write(STATE_MARK + json.dumps(self.document()) + "\n")
        sys.stdout.flush()
        self.notify()
        return code

    def can_do_without(self, failed: ActorReplica) -> bool:
        """Whether enough replicas of an elastic role succeeded without this one."""
        least = failed.role["min"]
        peers = [replica for replica in self.replicas if replica.role is failed.role]
        return least is not None and sum(replica.state == "SUCCEEDED" for replica in peers) >= least

    # ---- notifications

    def notify(self) -> None:
        """Send notifications of the end, from a process that outlives this one."""
        if not self.plan.get("notify"):
            return
        path = os.path.join(tempfile.mkdtemp(prefix="shunter-"), "outbox")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({**self.plan["notify"], "more": self.end_details()}, file)
        words = [sys.executable, "-S", TOOLKIT, "notify", path, self.final, self.msg]
        try:
            subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            ).wait(TELLING)
        except (OSError, subprocess.TimeoutExpired):
            pass

    def end_details(self) -> dict[str, Any]:
        """Return what notifications say besides state and reason: cause, restarts and times."""
        starts = [replica.started_at for replica in self.replicas if replica.started_at]
        ends = [replica.ended_at for replica in self.replicas if replica.ended_at]
        details: dict[str, Any] = {
            "restarts": self.restarts(),
            "started_at": min(starts, default=None),
            "ended_at": max(ends, default=None),
        }
        causes = [(self.cause_of(replica), replica) for replica in self.fatal]
        # one that does not follow from the failure of another replica comes first
        for cause, replica in sorted(causes, key=lambda pair: pair[0].is_consequence)[:1]:
            details["cause"] = {
                "name": cause.name,
                "text": cause.text,
                "evidence": cause.evidence,
                "replica": replica.name,
                "exit_code": replica.exit_code,
            }
        return details

    # ---- other jobs

    def wait_for_others(self) -> None:
        """Wait for the jobs that this one is to run after; stops the job if they did not end as it needs."""
        waiting = list(self.plan["after"])
        while waiting and not self.stopping:
            self.phase, self.waits_for = "waiting", "waits for " + ", ".join(each["job"] for each in waiting)
            self.write_state(now=True)
            until = time.monotonic() + LOOKING
            while time.monotonic() < until and not self.asked_to_stop:
                time.sleep(0.1)
            self.check_orders()
            for each in list(waiting):
                status = status_of(each["job"])
                if status not in ("", "PENDING", "RUNNING"):
                    waiting.remove(each)
                if status in ("FAILED", "STOPPED", UNKNOWN) and (status == UNKNOWN or not each["any"]):
                    self.stop_all("CANCELLED", f"not started: {each['job']} is {status}")
        self.phase, self.waits_for = "placing", ""

    # ---- room

    def reserve(self, replicas: Sequence[ActorReplica], strategy: str) -> Any:
        """Ask for room for replicas: a placement group with a bundle for each. Returns Ray's answer to be."""
        labels = [replica.role["labels"] for replica in replicas]
        given = {"bundle_label_selector": labels} if any(labels) else {}
        bundles = [replica.role["bundle"] for replica in replicas]
        group = self.ray.util.placement_group(bundles, strategy=strategy, **given)
        for bundle, replica in enumerate(replicas):
            replica.group, replica.bundle = group, bundle
        return group.ready()

    def find_room(self) -> None:
        """Reserve what the replicas need, all at once; stops the job if there is no room in time."""
        if self.plan.get("inside"):
            return
        needed = [replica for replica in self.replicas if not replica.is_spare]
        ready, limit = self.reserve(needed, self.plan["strategy"]), self.plan["placement_timeout"]
        started, looked_at = time.monotonic(), float("-inf")
        while not self.ray.wait([ready], timeout=0.5)[0] and not self.stopping:
            self.check_orders()
            if limit is not None and time.monotonic() - started >= limit:
                self.stop_all("FAILED", f"no room within {limit:g} s: {self.waits_for or 'no details'}")
            if time.monotonic() - looked_at >= LOOKING:
                looked_at = time.monotonic()
                self.waits_for = self.missing_room(needed)
                self.write_state(now=True)

    def missing_room(self, replicas: Sequence[ActorReplica]) -> str:
        """Return a sentence about the resources that the job waits for, and those that are free."""
        bundles = [replica.role["bundle"] for replica in replicas]
        counts = collections.Counter(
            ", ".join(f"{name} {amount(name, value)}" for name, value in bundle.items()) for bundle in bundles
        )
        wanted = ", ".join(f"{count} x {{{bundle}}}" for bundle, count in counts.items())
        names = sorted({name for bundle in bundles for name in bundle})
        everything, free = self.ray.cluster_resources(), self.ray.available_resources()
        there = ", ".join(
            f"{name} {amount(name, free.get(name, 0))} of {amount(name, everything.get(name, 0))}"
            for name in names
        )
        return f"waits for room for {wanted}; free in the cluster: {there}"

    def use_spare_room(self) -> None:
        """Start replicas of elastic roles beyond their minimum for which room was found."""
        if self.stopping or self.restarting:
            return
        for replica in self.replicas:
            if not replica.is_spare or replica.actor is not None or replica.has_ended:
                continue
            if replica.room is None:
                replica.room = self.reserve([replica], "PACK")
            elif self.ray.wait([replica.room], timeout=0)[0]:
                self.make_actor(replica)

    # ---- replicas

    def make_actor(self, replica: ActorReplica) -> None:
        """Create a replica's actor where its resources are reserved, and ask for its host."""
        from replica_actor import ReplicaActor  # lies beside this file

        strategies, inside = self.ray.util.scheduling_strategies, self.plan.get("inside")
        bundle = {} if inside else dict(replica.role["bundle"])
        options: dict[str, Any] = {
            "num_cpus": bundle.pop("CPU", 0),
            "num_gpus": bundle.pop("GPU", 0),
            "max_concurrency": 8,
            "max_restarts": 0,
        }
        if "memory" in bundle:
            options["memory"] = bundle.pop("memory")
        options["resources"] = bundle or None
        if inside:
            options["scheduling_strategy"] = strategies.NodeAffinitySchedulingStrategy(
                inside["node"], soft=False
            )
        else:
            options["scheduling_strategy"] = strategies.PlacementGroupSchedulingStrategy(
                placement_group=replica.group, placement_group_bundle_index=replica.bundle
            )
        plan = {key: value for key, value in self.plan.items() if key != "roles"}
        replica.actor = self.ray.remote(**options)(ReplicaActor).remote(plan, replica.role, replica.index)
        replica.host, replica.place_at = None, None
        replica.placing_since = replica.placing_since or time.monotonic()
        replica.call = replica.actor.host.remote()

    def place_again(self) -> None:
        """Make actors again whose room was on a lost node."""
        for replica in self.replicas:
            if replica.place_at is not None and time.monotonic() >= replica.place_at and not self.stopping:
                self.make_actor(replica)

    def start_those_ready(self) -> None:
        """Start replicas that have been placed; those that belong together start together."""
        from replica_actor import shared_variables  # lies beside this file

        first = self.replicas[0]
        is_complete = all(each.host or each.has_ended for each in self.replicas if not each.is_spare)
        if self.stopping or self.restarting or first.host is None or not is_complete:
            return
        for replica in self.replicas:
            if replica.host is None or replica.state != "PENDING" or replica.call is not None:
                continue
            if self.plan["timeout"] is not None:
                self.deadline = min(self.deadline, time.monotonic() + self.plan["timeout"])
            shared = shared_variables(first.host, None if replica is first else replica.host)
            replica.started_at, replica.ended_at = time.time(), None
            replica.exit_code, replica.structured, replica.stop_reason = None, "", ""
            replica.state, replica.reason = "RUNNING", ""
            replica.call = replica.actor.start.remote(replica.restarts, shared)

    def answered(self, replica: ActorReplica) -> None:
        """Handle an answer of a replica's actor."""
        try:
            answer = self.ray.get(replica.call)
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            self.lost(replica, f"{type(error).__name__}: {lines[0] if lines else 'no details'}")
            return
        replica.call = None
        if replica.host is None:
            replica.host, replica.placing_since = answer, 0.0
            return
        replica.pid = answer["pid"]
        replica.note(answer["note"])
        sys.stdout.write(answer["text"])
        sys.stdout.flush()
        if self.plan.get("table"):
            replica.tail.extend(line.split(" ", 3)[-1] for line in answer["text"].splitlines())
        if answer["end"] is None:
            replica.call = replica.actor.read.remote()
        else:
            self.ended(replica, answer["end"])

    def ended(self, replica: ActorReplica, end: dict[str, Any]) -> None:
        """Note how a replica's program ended, and apply the retry policy."""
        replica.exit_code, replica.ended_at = end["code"], end["time"]
        replica.structured = end["structured"]
        if replica.stop_reason:
            replica.end(self.stopping[0] if self.stopping else "CANCELLED", replica.stop_reason)
        elif end["hung"]:
            replica.end("FAILED", end["hung"])
            self.stop_all("FAILED", f"{replica.name} was {end['hung']}")
        elif end["error"]:
            replica.end("FAILED", f"could not be started: {end['error']}")
            self.failed(replica, may_retry=False)
        elif end["code"] == race_lease.LOST and race_lease.VARIABLE in replica.role["env"]:
            replica.end("CANCELLED", "race lost")
            self.plan.pop("notify", None)
            self.stop_all("CANCELLED", "race lost")
        elif end["code"]:
            killed = SIGNALS.get(end["signal"], f"signal {end['signal']}")
            replica.end("FAILED", f"killed by {killed}" if end["signal"] else f"exit code {end['code']}")
            self.failed(replica)
        else:
            replica.end("SUCCEEDED")

    def lost(self, replica: ActorReplica, why: str) -> None:
        """Note that a replica's actor is gone: its node, most likely."""
        try:
            self.ray.kill(replica.actor)
        except Exception:
            pass
        host, replica.actor, replica.call, replica.host = replica.host, None, None, None
        if host is None and not self.stopping and time.monotonic() - replica.placing_since < PLACING:
            replica.place_at = time.monotonic() + LOOKING  # its room is on a node that is being given up
            return
        replica.ended_at, replica.placing_since = time.time(), 0.0
        if replica.stop_reason:
            replica.end(self.stopping[0] if self.stopping else "CANCELLED", replica.stop_reason)
            return
        replica.end("FAILED", f"lost on {host['hostname'] if host else 'a node'}: {why}")
        if replica.is_spare:
            replica.room = None
        self.failed(replica)

    # ---- retries

    def failed(self, replica: ActorReplica, may_retry: bool = True) -> None:
        """Restart what a replica's failure restarts, if there are retries left for its class of failure."""
        if self.stopping or replica.name in self.restarting:
            return
        scope, members = self.restarted_with(replica)
        rule, name = retry_rule.RetryRule(replica.role["max_retries"] if may_retry else 0), ""
        if self.plan.get("retry"):
            cause = self.cause_of(replica)
            if cause.failure_class in self.plan["retry"]:
                name = cause.failure_class
                rule = retry_rule.RetryRule(self.plan["retry"][name])
        used = self.used[scope, name]
        against = rule.verdict(used)
        if name:
            replica.note(retry_rule.words(cause.text, cause.evidence, name, rule, used, against))
            replica.tail.clear()
        reason = f"stopped because {replica.name} failed"
        if not against:
            self.used[scope, name] += 1
            self.restarting |= {member.name for member in members}
            self.stop(members, reason)
        elif self.plan["fail_fast"]:
            self.stop(self.replicas, reason)

    def restarted_with(self, replica: ActorReplica) -> tuple[str, Sequence[ActorReplica]]:
        """Return what is restarted with a replica that failed, after the name under which that is counted."""
        policy = replica.role["policy"]
        if policy == "REPLICA" or replica.role["min"] is not None:
            return replica.name, [replica]
        if policy == "ROLE":
            return replica.role["name"], [peer for peer in self.replicas if peer.role is replica.role]
        return "", self.replicas

    def restarts(self) -> int:
        """Return how often the job, a role or a replica was restarted, whichever is most."""
        return max([*self.used.values(), *(replica.restarts for replica in self.replicas)])

    def cause_of(self, replica: ActorReplica) -> failure_class.Found:
        """Find the cause of a failure in the launcher's table."""
        # if an actor is gone and Ray gives no reason, it went down with its node
        said = [replica.reason, *(["a node died"] if replica.reason.startswith("lost on ") else [])]
        table = failure_class.Table(self.plan["table"])
        return table.cause_of(said, replica.exit_code, "\n".join(replica.tail), replica.structured)

    def restart_if_ready(self) -> None:
        """Restart a group that has ended."""
        members = [replica for replica in self.replicas if replica.name in self.restarting]
        if not members or not all(each.has_ended or each.state == "PENDING" for each in members):
            return
        self.restarting.clear()
        for replica in members:
            if replica.is_spare and replica.actor is None and not replica.has_ended:
                continue  # it never ran
            replica.restarts += 1
            replica.state, replica.stop_reason = "PENDING", ""
            if replica.actor is None and not replica.is_spare:
                self.make_actor(replica)  # its room moves to another node

    # ---- stopping

    def stop_all(self, state: str, reason: str) -> None:
        """Stop the job, once."""
        if not self.stopping:
            self.stopping = (state, reason)
            self.restarting.clear()
            self.stop(self.replicas, reason)
            self.kill_at = time.monotonic() + self.plan["grace"] + KILLING

    def stop(self, replicas: Iterable[ActorReplica], reason: str) -> None:
        """Ask the programs of replicas to end."""
        for replica in replicas:
            if replica.state == "RUNNING" and not replica.stop_reason:
                replica.stop_reason = reason
                replica.actor.stop.remote(replica.restarts)
            elif replica.state == "PENDING" and self.stopping:
                replica.end(self.stopping[0], reason)
                replica.call = None

    # ---- state

    def document(self) -> dict[str, Any]:
        """Return the state of the job, as JSON values."""
        roles = [
            {
                "role": role["name"],
                "replicas": [each.to_json() for each in self.replicas if each.role is role],
            }
            for role in self.plan["roles"]
        ]
        return {
            "app_id": self.plan["app_id"],
            "phase": self.phase,
            "state": self.final,
            "msg": self.msg or self.waits_for,
            "restarts": self.restarts(),
            "roles": roles,
        }

    def write_state(self, now: bool = False) -> None:
        """Replace the state document if it has changed, sometimes; a full disk stops nothing."""
        if not self.state_path or (not now and time.monotonic() - self.written_at < STATE_INTERVAL):
            return
        self.written_at, text = time.monotonic(), json.dumps(self.document()) + "\n"
        if text == self.written:
            return
        try:
            with open(self.state_path + ".new", "w", encoding="utf-8") as file:
                file.write(text)
            os.replace(self.state_path + ".new", self.state_path)
            self.written = text
        except OSError:
            pass  # the next step tries again


def status_of(job: str) -> str:
    """Return another job's status; "" if the dashboard is away, which says nothing of the job."""
    from ray.job_submission import JobSubmissionClient

    try:
        return str(JobSubmissionClient().get_job_status(job).value).upper()
    except Exception as error:
        return UNKNOWN if "does not exist" in str(error) else ""


def amount(name: str, value: float) -> str:
    """Return an amount of a resource in words."""
    return f"{value / (1 << 30):.1f} GiB" if name == "memory" else f"{value:g}"


def read_plan() -> dict[str, Any]:
    """Return the plan, which is a module's directory beside Ray's others."""
    paths = [os.path.join(place, "shunter_plan", "plan.json") for place in sys.path]
    with open(next(filter(os.path.exists, paths)), encoding="utf-8") as file:
        plan: dict[str, Any] = json.load(file)
    return plan


def state_file(app_id: str) -> str:
    """Return where the state document goes: beside the log, which is stdout."""
    try:
        directory = os.path.dirname(os.readlink("/proc/self/fd/1"))
    except OSError:
        return ""
    return os.path.join(directory, f"shunter-{app_id}.json") if os.path.isdir(directory) else ""


def main() -> None:
    """Run the job of the plan."""
    plan = read_plan()
    driver = Driver(plan, state_file(plan["app_id"]))
    driver.obey_signals()
    import ray  # takes seconds, in which Ray may ask to stop
    import ray.util.scheduling_strategies

    driver.ray = ray
    ray.init(log_to_driver=False, logging_level="WARNING")
    driver.obey_signals()  # Ray has put its own handlers there
    code = driver.run()
    sys.stdout.flush()
    ray.shutdown()
    os._exit(code if 0 <= code <= 255 else 1)


if __name__ == "__main__":
    main()
