"""The tests that every scheduler must pass, built in or not.

Subclass `SchedulerConformance` in a test module, give it a ``scheduler`` fixture, and set the class
attributes to what the backend can do::

    class TestMyScheduler(SchedulerConformance):
        image = "busybox"
        cfg = {"queue": "test"}

        @pytest.fixture
        def scheduler(self):
            with closing(create_scheduler("test")) as scheduler:
                yield scheduler

Jobs run ``sh`` with small scripts, so an image needs no more than a POSIX shell.
"""

from __future__ import annotations

import copy
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from shunter.errors import ConfigError, InvalidRunConfigException, ShunterError
from shunter.schedulers.api import DescribeAppResponse, LogQuery, Scheduler, Stream
from shunter.specs import AppDef, AppState, Resource, RetryPolicy, Role, is_terminal, macros

UNKNOWN_ID = "no-such-job-zz9zz9zz9z"


class SchedulerConformance:
    """Submitting, observing, ending, and what `Scheduler.log_iter` and `log_blocks` promise."""

    #: Image of the jobs.
    image: ClassVar[str] = ""
    #: Scheduler options that every job needs.
    cfg: ClassVar[dict[str, Any]] = {}
    #: Resources of every job; some schedulers require them.
    resource: ClassVar[Resource] = Resource(cpu=1, gpu=0, memMB=256)
    #: Seconds that a trivial job may take.
    patience: ClassVar[float] = 60
    #: The policies that the scheduler supports.
    retry_policies: ClassVar[tuple[RetryPolicy, ...]] = (RetryPolicy.APPLICATION,)
    #: Whether jobs may have several roles, and roles several replicas.
    has_roles: ClassVar[bool] = True
    has_replicas: ClassVar[bool] = True
    #: Whether exit codes of replicas are reported.
    has_exit_codes: ClassVar[bool] = True
    #: Whether the scheduler tells when a job began to run and when it ended. Otherwise both are None.
    tells_times: ClassVar[bool] = True
    #: Whether a job that has ended can be deleted.
    can_delete: ClassVar[bool] = True

    #: The output streams that can be asked for.
    streams: ClassVar[tuple[Stream, ...]] = (Stream.STDOUT, Stream.STDERR, Stream.COMBINED)
    #: Whether COMBINED has both streams in the order of writing. Otherwise each keeps its own.
    combined_is_exact: ClassVar[bool] = True
    #: Whether a log can be followed while the job runs.
    can_follow: ClassVar[bool] = True
    #: Whether ``since`` and ``until`` are honoured, and how exactly, in seconds.
    keeps_times: ClassVar[bool] = True
    time_resolution: ClassVar[float] = 1.0
    #: Whether bytes that are not UTF-8, and very long lines, come back whole.
    keeps_bytes: ClassVar[bool] = True

    @pytest.fixture
    def scheduler(self) -> Any:
        """Return the scheduler to test."""
        raise NotImplementedError("give the test class a `scheduler` fixture")

    # ---- helpers

    def role(self, script: str, name: str = "worker", **fields: Any) -> Role:
        """Return a role that runs a shell script."""
        defaults = {
            "image": self.image,
            "entrypoint": "sh",
            "args": ["-c", script],
            "resource": self.resource,
        }
        return Role(name=name, **{**defaults, **fields})

    def submit(self, scheduler: Scheduler[Any], *roles: Role, **cfg: Any) -> str:
        """Submit a job of these roles."""
        return scheduler.submit(AppDef("conformance", list(roles)), {**self.cfg, **cfg})

    def end_of(self, scheduler: Scheduler[Any], app_id: str) -> DescribeAppResponse:
        """Wait for a job to end and describe it."""
        response = scheduler.wait(app_id, timeout=self.patience)
        assert response is not None
        assert is_terminal(response.state), f"{app_id} is still {response.state} after {self.patience} s"
        return response

    def run(self, scheduler: Scheduler[Any], *roles: Role, **cfg: Any) -> tuple[str, DescribeAppResponse]:
        """Submit a job and wait for its end."""
        app_id = self.submit(scheduler, *roles, **cfg)
        return app_id, self.end_of(scheduler, app_id)

    def wait_for_state(self, scheduler: Scheduler[Any], app_id: str, state: AppState) -> None:
        """Wait until a job has reached a state."""
        deadline = time.monotonic() + self.patience
        while True:
            response = scheduler.describe(app_id)
            assert response is not None
            if response.state == state:
                return
            assert time.monotonic() < deadline, f"{app_id} is {response.state}, not {state}"
            time.sleep(0.02)

    def lines(
        self, scheduler: Scheduler[Any], app_id: str, role: str = "worker", k: int = 0, **query: Any
    ) -> list[str]:
        """Return the log lines of a replica."""
        return list(scheduler.log_iter(app_id, role, k, **query))

    # ---- requests

    def test_dryrun_shows_the_request_and_starts_nothing(self, scheduler: Scheduler[Any]) -> None:
        before = {row.app_id for row in scheduler.list()}
        info = scheduler.submit_dryrun(AppDef("conformance", [self.role("exit 0")]), self.cfg)
        assert info.request is not None
        assert "exit 0" in repr(info)
        after = {row.app_id for row in scheduler.list()}  # others may submit to the same backend meanwhile
        assert info.app_id not in after if info.app_id else after == before

    def test_dryrun_leaves_the_app_alone(self, scheduler: Scheduler[Any]) -> None:
        role = self.role(f"echo {macros.app_id}", env={"A": macros.replica_id}, metadata={"k": ["${app_id}"]})
        app = AppDef("conformance", [role])
        before = copy.deepcopy(app)
        scheduler.submit_dryrun(app, self.cfg)
        scheduler.submit_dryrun(app, self.cfg)
        assert app == before

    def test_unknown_option_is_refused(self, scheduler: Scheduler[Any]) -> None:
        app = AppDef("conformance", [self.role("exit 0")])
        with pytest.raises(InvalidRunConfigException, match="no_such_option"):
            scheduler.submit_dryrun(app, {**self.cfg, "no_such_option": 1})

    def test_every_option_has_help(self, scheduler: Scheduler[Any]) -> None:
        for name, opt in scheduler.run_opts():
            assert opt.help, name

    @pytest.mark.parametrize(
        "broken", [{"num_replicas": 0}, {"entrypoint": "<MISSING>"}, {"max_retries": -1}, {"name": ""}]
    )
    def test_incomplete_job_is_refused(self, scheduler: Scheduler[Any], broken: dict[str, Any]) -> None:
        role = self.role("exit 0")
        for field, value in broken.items():
            setattr(role, field, value)
        with pytest.raises(ConfigError):
            scheduler.submit_dryrun(AppDef("conformance", [role]), self.cfg)

    # ---- running

    def test_success(self, scheduler: Scheduler[Any]) -> None:
        app_id, response = self.run(scheduler, self.role("exit 0"))
        assert response.state == AppState.SUCCEEDED
        assert response.app_id == app_id

    def test_failure_with_its_exit_code(self, scheduler: Scheduler[Any]) -> None:
        _, response = self.run(scheduler, self.role("exit 7"))
        assert response.state == AppState.FAILED
        if self.has_exit_codes:
            assert [replica.exit_code for replica in response.to_status().replicas()] == [7]
            assert "7" in response.msg

    def test_one_failure_among_replicas_fails_the_job(self, scheduler: Scheduler[Any]) -> None:
        if not self.has_replicas:
            pytest.skip("one replica only")
        script = f'test "{macros.replica_id}" != 1'
        _, response = self.run(scheduler, self.role(script, num_replicas=3))
        assert response.state == AppState.FAILED

    def test_arguments_arrive_as_given(self, scheduler: Scheduler[Any]) -> None:
        words = ["two words", "quote's", 'double"s', "semi;colon", "*", "a,b=c", "--flag", "-1", "ünï", ""]
        role = self.role("", args=["-c", 'for word in "$@"; do echo "[$word]"; done', "sh", *words])
        app_id, _ = self.run(scheduler, role)
        assert self.lines(scheduler, app_id) == [f"[{word}]\n" for word in words]

    def test_environment_arrives_as_given(self, scheduler: Scheduler[Any]) -> None:
        values = {"PLAIN": "x", "SPACED": " a  b ", "SPECIAL": "a=b,c;'d'\"e\"", "EMPTY": "", "UNICODE": "ü"}
        script = "; ".join(f'echo "{name}=[${name}]"' for name in values)
        app_id, _ = self.run(scheduler, self.role(script, env=values))
        assert self.lines(scheduler, app_id) == [f"{name}=[{value}]\n" for name, value in values.items()]

    def test_macros(self, scheduler: Scheduler[Any]) -> None:
        script = f'echo "{macros.app_id} {macros.replica_id} $MINE ${{rank0_env}} $$HOME_IS_LEFT"'
        role = self.role(script, env={"MINE": f"env-{macros.replica_id}"})
        app_id, _ = self.run(scheduler, role)
        first, second, third, fourth = self.lines(scheduler, app_id)[0].split(" ")[:4]
        assert app_id.endswith(first)
        assert (second, third) == ("0", "env-0")
        assert fourth
        assert not fourth.startswith("$")

    def test_roles_and_replicas(self, scheduler: Scheduler[Any]) -> None:
        if not (self.has_roles and self.has_replicas):
            pytest.skip("one replica of one role only")
        roles = [
            self.role(f"echo one {macros.replica_id}", name="one", num_replicas=2),
            self.role(f"echo two {macros.replica_id}", name="two"),
        ]
        app_id, response = self.run(scheduler, *roles)
        assert response.state == AppState.SUCCEEDED
        replicas = {(replica.role, replica.id) for replica in response.to_status().replicas()}
        assert replicas == {("one", 0), ("one", 1), ("two", 0)}
        for role, k in replicas:
            assert self.lines(scheduler, app_id, role, k) == [f"{role} {k}\n"]

    def test_retries_are_as_many_as_asked_for(self, scheduler: Scheduler[Any]) -> None:
        for policy in self.retry_policies:
            role = self.role("echo attempt; exit 1", max_retries=2, retry_policy=policy)
            app_id, response = self.run(scheduler, role)
            assert response.state == AppState.FAILED
            assert self.lines(scheduler, app_id) == ["attempt\n"] * 3, policy

    def test_success_is_not_retried(self, scheduler: Scheduler[Any]) -> None:
        app_id, response = self.run(scheduler, self.role("echo attempt", max_retries=2))
        assert response.state == AppState.SUCCEEDED
        assert self.lines(scheduler, app_id) == ["attempt\n"]

    # ---- observing

    def test_job_is_listed_and_described(self, scheduler: Scheduler[Any]) -> None:
        app_id = self.submit(scheduler, self.role("sleep 600"))
        try:
            assert scheduler.exists(app_id)
            rows = {row.app_id: row.state for row in scheduler.list()}
            assert not is_terminal(rows[app_id])
            self.wait_for_state(scheduler, app_id, AppState.RUNNING)
            many = scheduler.describe_many([app_id, UNKNOWN_ID])
            assert many[app_id] is not None
            assert many[UNKNOWN_ID] is None
        finally:
            scheduler.cancel(app_id)
        assert self.end_of(scheduler, app_id).state == AppState.CANCELLED
        assert {row.app_id: row.state for row in scheduler.list()}[app_id] == AppState.CANCELLED

    def test_times_are_those_of_the_job_and_not_of_the_look(self, scheduler: Scheduler[Any]) -> None:
        began = time.time()
        app_id, response = self.run(scheduler, self.role("sleep 1"))
        seen = response.to_status()
        if not self.tells_times:
            assert (seen.started_at, seen.ended_at) == (None, None)
            return
        assert seen.started_at is not None
        assert seen.ended_at is not None
        # a backend may tell whole seconds only
        assert began - 1 <= seen.started_at <= seen.ended_at <= time.time() + 1
        others = scheduler.describe_many([app_id, UNKNOWN_ID])  # some backends then leave out the replicas
        for later in (scheduler.describe(app_id), others[app_id]):
            assert later is not None
            assert not isinstance(later, ShunterError)
            ended_at = later.to_status().ended_at
            assert ended_at is not None
            assert abs(ended_at - seen.ended_at) < 1
        row = next(row for row in scheduler.list() if row.app_id == app_id)
        assert row.started_at is None or abs(row.started_at - seen.started_at) < 1
        assert row.ended_at is None or abs(row.ended_at - seen.ended_at) < 1

    def test_a_cancelled_job_tells_when_it_ended(self, scheduler: Scheduler[Any]) -> None:
        if not self.tells_times:
            pytest.skip("it tells no times")
        app_id = self.submit(scheduler, self.role("exec sleep 600"))
        self.wait_for_state(scheduler, app_id, AppState.RUNNING)
        scheduler.cancel(app_id)
        response: DescribeAppResponse | None = self.end_of(scheduler, app_id)
        deadline = time.monotonic() + self.patience
        while response is None or response.to_status().ended_at is None:  # accounting may be late
            assert time.monotonic() < deadline, f"{app_id} does not tell when it ended"
            time.sleep(0.1)
            response = scheduler.describe(app_id)
        ended_at = response.to_status().ended_at or 0.0
        again = scheduler.describe(app_id)
        assert again is not None
        assert abs((again.to_status().ended_at or 0.0) - ended_at) < 1

    def test_wait_gives_up_at_its_timeout(self, scheduler: Scheduler[Any]) -> None:
        app_id = self.submit(scheduler, self.role("sleep 600"))
        try:
            response = scheduler.wait(app_id, timeout=0.1)
            assert response is not None
            assert not is_terminal(response.state)
        finally:
            scheduler.cancel(app_id)
        self.end_of(scheduler, app_id)

    def test_unknown_job(self, scheduler: Scheduler[Any]) -> None:
        assert scheduler.describe(UNKNOWN_ID) is None
        assert scheduler.wait(UNKNOWN_ID) is None
        assert not scheduler.exists(UNKNOWN_ID)
        scheduler.cancel(UNKNOWN_ID)
        scheduler.delete(UNKNOWN_ID)

    # ---- ending

    def test_cancel_is_idempotent(self, scheduler: Scheduler[Any]) -> None:
        app_id = self.submit(scheduler, self.role("sleep 600"))
        scheduler.cancel(app_id)
        scheduler.cancel(app_id)
        assert self.end_of(scheduler, app_id).state == AppState.CANCELLED
        scheduler.cancel(app_id)
        assert self.end_of(scheduler, app_id).state == AppState.CANCELLED

    def test_cancel_leaves_an_ended_job_alone(self, scheduler: Scheduler[Any]) -> None:
        app_id, _ = self.run(scheduler, self.role("exit 0"))
        scheduler.cancel(app_id)
        response = scheduler.describe(app_id)
        assert response is not None
        assert response.state == AppState.SUCCEEDED

    def test_delete(self, scheduler: Scheduler[Any]) -> None:
        if not self.can_delete:
            pytest.skip("jobs cannot be deleted")
        app_id, _ = self.run(scheduler, self.role("exit 0"))
        scheduler.delete(app_id)
        assert not scheduler.exists(app_id)
        assert app_id not in {row.app_id for row in scheduler.list()}

    def test_running_job_is_not_deleted(self, scheduler: Scheduler[Any]) -> None:
        if not self.can_delete:
            pytest.skip("jobs cannot be deleted")
        app_id = self.submit(scheduler, self.role("sleep 600"))
        try:
            with pytest.raises(ConfigError):
                scheduler.delete(app_id)
            assert scheduler.exists(app_id)
        finally:
            scheduler.cancel(app_id)
        self.end_of(scheduler, app_id)

    def test_close_may_be_called_twice(self, scheduler: Scheduler[Any]) -> None:
        scheduler.close()
        scheduler.close()

    # ---- logs

    def test_lines_keep_their_white_space(self, scheduler: Scheduler[Any]) -> None:
        app_id, _ = self.run(scheduler, self.role(r"printf '  two\n\n\tthree \nlast'"))
        lines = self.lines(scheduler, app_id)
        assert lines[:3] == ["  two\n", "\n", "\tthree \n"]
        assert [line.rstrip("\n") for line in lines[3:]] == ["last"]

    def test_iterators_are_independent(self, scheduler: Scheduler[Any]) -> None:
        app_id, _ = self.run(scheduler, self.role("seq 5"))
        first = iter(scheduler.log_iter(app_id, "worker"))
        assert next(first) == "1\n"
        assert self.lines(scheduler, app_id) == [f"{i}\n" for i in range(1, 6)]
        assert list(first) == [f"{i}\n" for i in range(2, 6)]

    def test_empty_log(self, scheduler: Scheduler[Any]) -> None:
        app_id, _ = self.run(scheduler, self.role("exit 0"))
        assert self.lines(scheduler, app_id) == []
        assert self.lines(scheduler, app_id, should_tail=True) == []

    def test_regex(self, scheduler: Scheduler[Any]) -> None:
        app_id, _ = self.run(scheduler, self.role("seq 20"))
        assert self.lines(scheduler, app_id, regex="^1.$") == [f"{i}\n" for i in range(10, 20)]

    def test_streams(self, scheduler: Scheduler[Any]) -> None:
        script = "for i in 1 2 3; do echo out $i; echo err $i >&2; done"
        app_id, _ = self.run(scheduler, self.role(script))
        both = [f"{name} {i}\n" for i in (1, 2, 3) for name in ("out", "err")]
        wanted = {
            Stream.STDOUT: both[0::2],
            Stream.STDERR: both[1::2],
            Stream.COMBINED: both,
        }
        for stream in Stream:
            if stream in self.streams:
                lines = self.lines(scheduler, app_id, streams=stream)
                if stream == Stream.COMBINED and not self.combined_is_exact:
                    lines = [line for pair in zip(*_by_first_word(lines), strict=True) for line in pair]
                assert lines == wanted[stream]
            else:
                with pytest.raises(ValueError, match=str(stream)):
                    self.lines(scheduler, app_id, streams=stream)

    def test_unknown_replica(self, scheduler: Scheduler[Any]) -> None:
        app_id, _ = self.run(scheduler, self.role("echo hi"))
        for role, k in (("nobody", 0), ("worker", 7)):
            with pytest.raises(ValueError, match=role):
                self.lines(scheduler, app_id, role, k)

    def test_following_an_ended_job_ends(self, scheduler: Scheduler[Any]) -> None:
        app_id, _ = self.run(scheduler, self.role("seq 3"))
        assert self.lines(scheduler, app_id, should_tail=True) == ["1\n", "2\n", "3\n"]

    def test_lines_are_followed_while_the_job_runs(self, scheduler: Scheduler[Any]) -> None:
        if not self.can_follow:
            pytest.skip("logs cannot be followed")
        app_id = self.submit(scheduler, self.role("echo first; exec sleep 600"))
        try:
            followed = iter(scheduler.log_iter(app_id, "worker", should_tail=True))
            assert next(followed) == "first\n"
        finally:
            scheduler.cancel(app_id)
        assert list(followed) == []

    def test_following_a_silent_job_ends_with_it(self, scheduler: Scheduler[Any]) -> None:
        if not self.can_follow:
            pytest.skip("logs cannot be followed")
        app_id = self.submit(
            scheduler, self.role("exec sleep 600")
        )  # a shell may report what ended its child
        result: list[list[str]] = []
        reader = threading.Thread(
            target=lambda: result.append(self.lines(scheduler, app_id, should_tail=True)), daemon=True
        )
        reader.start()
        scheduler.cancel(app_id)
        self.end_of(scheduler, app_id)
        reader.join(self.patience)
        assert result == [[]]

    def test_not_following_ends_at_once(self, scheduler: Scheduler[Any]) -> None:
        app_id = self.submit(scheduler, self.role("sleep 600"))
        try:
            assert self.lines(scheduler, app_id) == []
        finally:
            scheduler.cancel(app_id)
        self.end_of(scheduler, app_id)

    def test_many_lines_are_complete_and_in_order(self, scheduler: Scheduler[Any]) -> None:
        count = 20_000
        app_id = self.submit(scheduler, self.role(f"seq {count}"))
        followed = self.lines(scheduler, app_id, should_tail=True)
        self.end_of(scheduler, app_id)
        expected = [f"{i}\n" for i in range(1, count + 1)]
        assert followed == expected
        assert self.lines(scheduler, app_id) == expected

    def test_odd_bytes(self, scheduler: Scheduler[Any]) -> None:
        if not self.keeps_bytes:
            pytest.skip("the backend keeps text only")
        script = r"printf 'caf\351\n'; head -c 200000 /dev/zero | tr '\0' x; echo; printf 'a\rb\rc\n'"
        app_id, _ = self.run(scheduler, self.role(script))
        blocks = scheduler.log_blocks(app_id, [("worker", 0)], LogQuery())
        assert b"".join(block.data for block in blocks) == b"caf\xe9\n" + b"x" * 200_000 + b"\na\rb\rc\n"

    def test_since_and_until(self, scheduler: Scheduler[Any]) -> None:
        if not self.keeps_times:
            pytest.skip("the backend keeps no times")
        pause = 4 * self.time_resolution
        app_id, response = self.run(scheduler, self.role(f"echo early; sleep {pause}; echo late"))
        ended = next(r.ended_at for r in response.to_status().replicas())
        assert ended is not None
        middle = datetime.fromtimestamp(ended - pause / 2, UTC)  # the end of a job may be noticed late
        assert self.lines(scheduler, app_id, since=middle) == ["late\n"]
        assert self.lines(scheduler, app_id, until=middle) == ["early\n"]
        assert self.lines(scheduler, app_id, since=middle, until=middle) == []
        after = datetime.fromtimestamp(ended, UTC) + timedelta(minutes=1)
        assert self.lines(scheduler, app_id, since=after) == []

    def test_blocks_of_all_replicas_hold_all_lines(self, scheduler: Scheduler[Any]) -> None:
        if not self.has_replicas:
            pytest.skip("one replica only")
        app_id, _ = self.run(scheduler, self.role("seq 100", num_replicas=3))
        replicas = [("worker", k) for k in range(3)]
        for query in (LogQuery(), LogQuery(should_tail=True)):
            texts = dict.fromkeys(replicas, b"")
            for block in scheduler.log_blocks(app_id, replicas, query):
                texts[block.role, block.replica] += block.data
            expected = b"".join(b"%d\n" % i for i in range(1, 101))
            assert set(texts.values()) == {expected}

    def test_last_lines(self, scheduler: Scheduler[Any]) -> None:
        app_id, _ = self.run(scheduler, self.role("seq 100"))
        for last, expected in ((3, b"98\n99\n100\n"), (0, b"")):
            blocks = scheduler.log_blocks(app_id, [("worker", 0)], LogQuery(last=last))
            assert b"".join(block.data for block in blocks) == expected


def _by_first_word(lines: list[str]) -> list[list[str]]:
    """Return the lines that begin with "out", and the others."""
    groups: list[list[str]] = [[], []]
    for line in lines:
        groups[not line.startswith("out")].append(line)
    return groups
