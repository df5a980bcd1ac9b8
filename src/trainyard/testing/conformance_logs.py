"""The part of the conformance suite that reads logs: what `Scheduler.log_iter` promises, point by point."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest

from trainyard.schedulers.base import LogQuery, Scheduler, Stream


class LogConformance:
    """Tests of `log_iter` and `log_blocks`. Mixed into `SchedulerConformance`."""

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

    # provided by SchedulerConformance
    role: Any
    submit: Any
    run: Any
    end_of: Any
    patience: ClassVar[float]
    has_replicas: ClassVar[bool]

    def lines(
        self, scheduler: Scheduler[Any], app_id: str, role: str = "worker", k: int = 0, **query: Any
    ) -> list[str]:
        """Return the log lines of a replica."""
        return list(scheduler.log_iter(app_id, role, k, **query))

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
        app_id = self.submit(scheduler, self.role("echo first; sleep 600"))
        try:
            followed = iter(scheduler.log_iter(app_id, "worker", should_tail=True))
            assert next(followed) == "first\n"
        finally:
            scheduler.cancel(app_id)
        assert list(followed) == []

    def test_following_a_silent_job_ends_with_it(self, scheduler: Scheduler[Any]) -> None:
        if not self.can_follow:
            pytest.skip("logs cannot be followed")
        app_id = self.submit(scheduler, self.role("sleep 600"))
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
        pause = 2 * self.time_resolution
        app_id, response = self.run(scheduler, self.role(f"echo early; sleep {pause}; echo late"))
        ended = next(r.ended_at for r in response.to_status().replicas())
        assert ended is not None
        middle = datetime.fromtimestamp(ended - self.time_resolution, UTC)
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
