"""The driver of one job: it finds room for the replicas, starts an actor for each, and keeps the job's state.

Its stdout is the job's log, in lines that the actors make (`replica_actor.py`). The state is a JSON document
beside the log, replaced when something changes, and at the end a line of the log.
"""

from __future__ import annotations

import collections
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from typing import Any

PLAN = "shunter_plan"
STATE_MARK = "shunter-state "
#: Seconds between two looks at other jobs, and at the room in the cluster.
LOOKING = 2.0
#: For how many seconds a replica's room may be on a node that is gone, until Ray moves it.
PLACING = 120.0
STATE_INTERVAL = 0.1
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
#: How many of the last lines are kept to find the cause of a failure.
TAIL = 500
MOST_NOTES = 20
TOOLKIT = "toolkit.pyz"
#: Seconds that notifications may take before the driver ends; they go on without it.
TELLING = 10.0


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
        self.notes: list[str] = []
        #: The last lines of its log, as it wrote them.
        self.tail: collections.deque[str] = collections.deque(maxlen=TAIL)

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and must not be restarted."""
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
            "notes": self.notes,
        }


class Driver:
    """Runs one job to its end.

    Args:
        plan: what `shunter.schedulers.ray_scheduler.request` made.
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
        #: The replicas whose failures failed the job, in the order in which they ended.
        self.fatal: list[ActorReplica] = []
        self.restarting: set[str] = set()
        self.stopping: tuple[str, str] | None = None
        self.asked_to_stop = False
        self.deadline: float | None = None
        self.kill_at: float | None = None
        self.is_dirty, self.written = True, 0.0
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
        """Make actors again whose room was on a lost node."""
        now = time.monotonic()
        for replica in self.replicas:
            if replica.place_at is not None and now >= replica.place_at and not self.stopping:
                replica.place_at = None
                self.make_actor(replica)

    def check_orders(self) -> None:
        """Stop the job if that was requested or its time is up; kill what does not stop."""
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
                replica.reason = "not started: there was no room for it, and the job did not need it"
                if self.stopping:
                    replica.reason = self.stopping[1]
        failed = [replica for replica in self.replicas if replica.state == "FAILED"]
        fatal = [replica for replica in failed if not self.can_do_without(replica)]
        fatal.sort(key=lambda replica: replica.ended_at or 0.0)
        code = 0
        if self.stopping:
            self.final, self.msg = self.stopping
            code = 143 if self.final == "CANCELLED" else 1
        elif fatal:
            first, self.fatal = fatal[0], fatal
            others = f" (and {len(fatal) - 1} more failed)" if fatal[1:] else ""
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
        self.tell()
        return code

    def tell(self) -> None:
        """Send notifications of the end, from a process that outlives this one."""
        told = self.plan.get("notify")
        if not told:
            return
        path = os.path.join(tempfile.mkdtemp(prefix="shunter-"), "outbox")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump({**told, "more": self.end_details()}, file)
        words = [sys.executable, "-S", TOOLKIT, "notify", path, self.final, self.msg]
        try:
            subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
            ).wait(TELLING)
        except (OSError, subprocess.TimeoutExpired):
            pass

    def end_details(self) -> dict[str, Any]:
        """What notifications say besides state and reason: cause, restarts and times."""
        found: dict[str, Any] = {
            "restarts": self.restarts(),
            "started_at": min((each.started_at for each in self.replicas if each.started_at), default=None),
            "ended_at": max((each.ended_at for each in self.replicas if each.ended_at), default=None),
        }
        causes = [(replica, self.cause_of(replica)) for replica in self.fatal]
        by_themselves = [(replica, cause) for replica, cause in causes if not cause.is_consequence]
        for replica, cause in (by_themselves or causes)[:1]:
            found["cause"] = {
                "name": cause.name,
                "text": cause.text,
                "evidence": cause.evidence,
                "replica": replica.name,
                "exit_code": replica.code,
            }
        return found

    def restarts(self) -> int:
        """How often the job, a role or a replica was restarted, whichever is most."""
        return max([*self.used.values(), *(replica.restarts for replica in self.replicas)])

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
            self.phase, self.waits_for = "waiting", "waits for " + ", ".join(each["job"] for each in waiting)
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
        """Start replicas of elastic roles beyond their minimum for which room was found."""
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
        """Create a replica's actor where its resources are reserved, and ask for its host."""
        import ray
        from ray.util.scheduling_strategies import (
            NodeAffinitySchedulingStrategy,
            PlacementGroupSchedulingStrategy,
        )
        from replica_actor import ReplicaActor

        inside = self.plan.get("inside")
        bundle = {} if inside else replica.role["bundle"]
        custom = {name: value for name, value in bundle.items() if name not in ("CPU", "GPU", "memory")}
        if inside:
            strategy: Any = NodeAffinitySchedulingStrategy(inside["node"], soft=False)
        else:
            strategy = PlacementGroupSchedulingStrategy(
                placement_group=replica.group, placement_group_bundle_index=replica.bundle
            )
        options = {
            "num_cpus": bundle.get("CPU", 0),
            "num_gpus": bundle.get("GPU", 0),
            "resources": custom or None,
            "max_concurrency": 8,
            "max_restarts": 0,
            "scheduling_strategy": strategy,
        }
        if "memory" in bundle:
            options["memory"] = bundle["memory"]
        plan = {key: value for key, value in self.plan.items() if key != "roles"}
        replica.actor = ray.remote(**options)(ReplicaActor).remote(plan, replica.role, replica.index)
        replica.host = None
        self.ask(replica, "host", replica.actor.host.remote())

    def ask(self, replica: ActorReplica, what: str, question: Any) -> None:
        """Record a pending call to a replica's actor, one at a time."""
        replica.asked, replica.question = what, question

    def start_those_ready(self) -> None:
        """Start replicas that have been placed; those that belong together start together."""
        from replica_actor import shared_variables

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
            shared = shared_variables(first.host, None if replica is first else replica.host or first.host)
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
            text, outcome, pid, found = answer
            self.is_dirty = self.is_dirty or pid != replica.pid
            if found and replica.notes[-1:] != [found]:
                replica.notes = [*replica.notes, found][-MOST_NOTES:]
                self.is_dirty = True
            replica.pid = pid
            if text:
                sys.stdout.write(text)
                sys.stdout.flush()
                if self.plan.get("table"):
                    replica.tail.extend(line.split(" ", 3)[-1] for line in text.splitlines())
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
        elif outcome.get("hung"):
            replica.state, replica.reason = "FAILED", outcome["hung"]
            self.stop_all("FAILED", f"{replica.name} was {outcome['hung']}")
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
        if self.plan.get("retry") and self.retried_by_class(replica):
            return
        scope, members = self.restarted_with(replica)
        if may_retry and self.used[scope, ""] < replica.role["max_retries"]:
            self.used[scope, ""] += 1
            self.restart(members, replica)
        elif self.plan["fail_fast"]:
            self.stop(self.replicas, f"stopped because {replica.name} failed")

    def restarted_with(self, replica: ActorReplica) -> tuple[str, Sequence[ActorReplica]]:
        """Return what is restarted with a replica that failed, and the name under which that is counted."""
        policy = replica.role["policy"]
        if policy == "REPLICA" or replica.role["min"] is not None:
            return replica.name, [replica]
        if policy == "ROLE":
            return replica.role["name"], [peer for peer in self.replicas if peer.role is replica.role]
        return "", self.replicas

    def cause_of(self, replica: ActorReplica) -> Any:
        """Find the cause of a failure in the launcher's table."""
        failure_class = toolkit_module("failure_class")
        # if an actor is gone and Ray gives no reason, it went down with its node
        said = [replica.reason, *(["a node died"] if replica.reason.startswith("lost on ") else [])]
        return failure_class.Table(self.plan["table"]).cause_of(
            said, replica.code, "\n".join(replica.tail), replica.structured
        )

    def retried_by_class(self, replica: ActorReplica) -> bool:
        """Restart by the rule for the class of a failure; False if there is none for it."""
        retry_rule = toolkit_module("retry_rule")
        found = self.cause_of(replica)
        rules: dict[str, int] = self.plan["retry"]
        if found.failure_class not in rules:
            return False
        scope, members = self.restarted_with(replica)
        key = (scope, found.failure_class)
        rule = retry_rule.RetryRule(rules[found.failure_class])
        against = rule.verdict(self.used[key])
        note = retry_rule.words(
            found.text, found.evidence, found.failure_class, rule, self.used[key], against
        )
        replica.notes = [*replica.notes, note][-MOST_NOTES:]
        replica.tail.clear()
        self.is_dirty = True
        if against:
            if self.plan["fail_fast"]:
                self.stop(self.replicas, f"stopped because {replica.name} failed")
            return True
        self.used[key] += 1
        self.restart(members, replica)
        return True

    def restart(self, members: Iterable[ActorReplica], culprit: ActorReplica) -> None:
        """Stop what still runs of a group, and start the group again when all of it has ended."""
        self.restarting |= {replica.name for replica in members}
        self.stop(members, f"stopped because {culprit.name} failed")

    def restart_if_ready(self) -> None:
        """Restart a group that has ended."""
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
        roles = [
            {"role": role["name"], "replicas": [r.to_json() for r in self.replicas if r.role is role]}
            for role in self.roles
        ]
        return {
            "app_id": self.plan["app_id"],
            "phase": self.phase,
            "state": self.final,
            "msg": self.msg or self.waits_for,
            "restarts": self.restarts(),
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


def toolkit_module(name: str) -> Any:
    """Import a module of the toolkit's archive, which lies beside this file on the cluster."""
    archive = os.path.abspath(TOOLKIT)
    if archive not in sys.path:
        sys.path.insert(0, archive)
    return importlib.import_module(f"shunter_toolkit.{name}")


def reserve(replicas: list[ActorReplica], strategy: str) -> Any:
    """Ask for room for replicas: a placement group with a bundle for each."""
    import ray

    bundles = [replica.role["bundle"] for replica in replicas]
    labels = [replica.role["labels"] for replica in replicas]
    given = {"bundle_label_selector": labels} if any(labels) else {}
    return ray.util.placement_group(bundles, strategy=strategy, **given)


def room_wanted(replicas: list[ActorReplica]) -> str:
    """Return a sentence about the resources that the job waits for, and those that are free."""
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
    raise SystemExit(f"shunter: the job's plan is in none of {sys.path}")


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
    import ray

    ray.init(log_to_driver=False, logging_level="WARNING")
    driver.obey_signals()  # Ray has put its own handlers there
    code = driver.run()
    sys.stdout.flush()
    ray.shutdown()
    os._exit(code if 0 <= code <= 255 else 1)


if __name__ == "__main__":
    main()
