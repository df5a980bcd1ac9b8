"""Runs one child process: signals are passed down to it, its output is passed up, no process is left behind.

``supervise`` is what ``train`` does, as PID 1 or not: one poll loop over the signal pipe and the relays, so
that it passes on a SIGTERM and notices the end of the child without delay.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from . import forked_call, orphans
from .errors import StartError
from .output_relay import Relay, is_regular_file, read_back

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
PASSED_SIGNALS = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
DEFAULT_GRACE = 100.0
LEFTOVER_GRACE = 2.0


@dataclass
class Command:
    """What to run, as data.

    Args:
        argv: the program and its arguments; no shell reads them.
        env: the complete environment.
        cwd: the working directory.
        whole_group: pass signals to every process of the child's group. Right for a shell, which does not
            pass them on itself; wrong for Python, whose data-loader workers should survive the signal.
        own_words: for a command of this package, what follows ``python -m shunter_toolkit`` in ``argv``.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    whole_group: bool = False
    own_words: Sequence[str] | None = None


@dataclass
class Policy:
    """Time limits, and what is called when a stop begins.

    Args:
        grace: seconds between passing on a stop and SIGKILL.
        timeout: seconds that the child may run; None for no limit.
        on_stop: called once when a stop begins, with the child's pid; it may return the pid of a helper
            process, which then has the rest of the grace period to end.
        on_start: called once with the child's pid when it is running. Start threads here, not earlier: no
            thread may exist when the child is forked.
    """

    grace: float = DEFAULT_GRACE
    timeout: float | None = None
    on_stop: Callable[[int], int | None] | None = None
    on_start: Callable[[int], None] | None = None


@dataclass
class Outcome:
    """How a child ended.

    Attributes:
        status: the exit status; negative for a signal (-9 is SIGKILL).
        stop_signal: the signal that asked us to stop, or None.
        timed_out: whether the child was stopped because its time was up.
        stopped_by_us: whether the toolkit itself stopped the child: another host failed, or time was up.
        stderr: the last bytes that it wrote to stderr, at most 64 KiB.
        seconds: how long it ran.
    """

    status: int
    stderr: bytes = b""
    seconds: float = 0.0
    stop_signal: int | None = None
    timed_out: bool = False
    stopped_by_us: bool = False

    @property
    def exit_code(self) -> int:
        """The status as a shell shows it: 128 + the number of the signal."""
        return 128 - self.status if self.status < 0 else self.status


def spawn(command: Command, stdout: int | None = None, stderr: int | None = None) -> int:
    """Start a child, in a new session, that dies with this process; return its pid.

    Raises:
        StartError: the system refuses to run it; the message says why.
    """
    orphans.prepare()
    parent = os.getpid()

    def become_child() -> None:
        orphans.die_with_parent(parent)
        for received in (*STOP_SIGNALS, *PASSED_SIGNALS, signal.SIGCHLD):
            signal.signal(received, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])

    if command.own_words and forked_call.is_possible(command.argv[0], command.env):
        streams = {number: end for number, end in ((1, stdout), (2, stderr)) if end is not None}
        return forked_call.start(command.own_words, command.env, command.cwd or ".", streams, become_child)
    try:
        child = subprocess.Popen(
            command.argv,
            env=command.env,
            cwd=command.cwd,
            stdout=stdout,
            stderr=stderr,
            close_fds=False,
            start_new_session=True,
            preexec_fn=become_child,
        )
    except OSError as error:
        raise StartError(command.argv[0], error) from None
    child.returncode = 0  # the supervisor collects it
    return child.pid


def end_by(number: int) -> None:
    """End this process by a signal, without a core dump. Returns if that is impossible: as PID 1."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


class SignalPipe:
    """Signals as bytes in a pipe, so that the poll loop waits for them together with everything else.

    Only the main thread receives signals; on another thread, the pipe stays empty.
    """

    def __init__(self) -> None:
        self.active = True
        self.read_end, self._write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        os.set_blocking(self._write_end, False)
        self._saved: dict[int, object] = {}

    def __enter__(self) -> SignalPipe:
        try:
            self._old_fd = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        except ValueError:  # not the main thread
            self.active = False
        else:
            for number in (*STOP_SIGNALS, *PASSED_SIGNALS, signal.SIGCHLD):
                self._saved[number] = signal.signal(number, _noted)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.active:
            for number, handler in self._saved.items():
                signal.signal(number, handler)  # type: ignore[arg-type]
            signal.set_wakeup_fd(self._old_fd)
        os.close(self.read_end)
        os.close(self._write_end)

    def drain(self) -> list[int]:
        """The signals received since the last call."""
        try:
            return list(os.read(self.read_end, 4096))
        except BlockingIOError:
            return []


def _noted(number: int, frame: object) -> None:
    """A handler that does nothing: the signal is read from the wakeup pipe."""


class Supervisor:
    """Runs one command to its end. See :func:`supervise`."""

    def __init__(
        self, command: Command, policy: Policy, relays: Mapping[int, Relay], owns_process: bool
    ) -> None:
        self.command = command
        self.policy = policy
        self.relays = dict(relays)
        self.owns_process = owns_process
        self.watched: dict[int, Callable[[], None]] = {}
        self.told_to_stop: Callable[[int], object] = lambda number: None
        self.heard: Callable[[], object] = lambda: None
        self.pid = 0
        self._status: int | None = None
        self._kill_at: float | None = None
        self._stop_signal: int | None = None
        self._helper: int | None = None
        self._timed_out = False

    def watch(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Call back whenever a descriptor can be read, for as long as the child runs."""
        self.watched[descriptor] = callback

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor."""
        self.watched.pop(descriptor, None)

    @property
    def is_stopping(self) -> bool:
        """Whether the child has been asked to end."""
        return self._kill_at is not None

    def run(self) -> Outcome:
        """Run the command to its end, and close what is left of the relays.

        Raises:
            StartError: the program cannot be started.
        """
        try:
            with SignalPipe() as signals:
                return self._run(signals)
        finally:
            self.close()

    def _run(self, signals: SignalPipe) -> Outcome:
        started = time.monotonic()
        stderr_start = os.fstat(2).st_size if is_regular_file(2) else 0
        self.pid = spawn(self.command, *(r.child_end if r else None for r in map(self.relays.get, (1, 2))))
        for relay in self.relays.values():
            relay.close_child_end()
        if self.policy.on_start is not None:
            self.policy.on_start(self.pid)
        deadline = None if self.policy.timeout is None else started + self.policy.timeout
        self._loop(signals, deadline)
        self._await_helper(signals)
        self._clear_up(signals)
        stderr = self.relays[2].tail if 2 in self.relays else b""
        if 2 not in self.relays and is_regular_file(2):
            stderr = read_back(2, stderr_start)
        outcome = Outcome(self._status or 0, stderr, time.monotonic() - started)
        outcome.stop_signal = self._stop_signal
        outcome.timed_out = self._timed_out
        outcome.stopped_by_us = self._kill_at is not None and self._stop_signal is None
        return outcome

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Ask the child to end: pass the signal on, and kill the group after the grace period.

        The child gets the signal once, however often a stop is requested: a second SIGTERM would interrupt it
        while it saves its state, or kill a Python that is exiting and has restored the default handler.
        Ctrl-C may be repeated.
        """
        if self._kill_at is not None:
            if number == signal.SIGINT:
                self._signal(number)
            return
        self._kill_at = time.monotonic() + self.policy.grace
        self._signal(number)
        if self.policy.on_stop is not None:
            self._helper = self.policy.on_stop(self.pid)
            orphans.keep(self._helper or 0)

    def close(self) -> None:
        """Close what is left of the relays."""
        for relay in self.relays.values():
            relay.close()

    def _loop(self, signals: SignalPipe, deadline: float | None) -> None:
        open_relays = list(self.relays.values())
        while not self._reaped(blocking=not signals.active and not open_relays):
            for descriptor in self._poll(signals, open_relays, deadline):
                if descriptor == signals.read_end:
                    self._take(signals)
                elif descriptor in self.watched:
                    self.watched[descriptor]()
            open_relays = [relay for relay in open_relays if relay.pump()]
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                deadline, self._timed_out = None, True
                self.stop()
            if self._kill_at is not None and now >= self._kill_at:
                self._signal(signal.SIGKILL, whole_group=True)
                self._kill_at = now + 60.0

    def _poll(self, signals: SignalPipe, relays: list[Relay], deadline: float | None) -> list[int]:
        poll = select.poll()
        poll.register(signals.read_end, select.POLLIN)
        for descriptor in self.watched:
            poll.register(descriptor, select.POLLIN)
        for relay in relays:
            if relay.waiting_for_target:
                poll.register(relay.target, select.POLLOUT)
            else:
                poll.register(relay.source, select.POLLIN)
        moments = [m for m in (deadline, self._kill_at) if m is not None]
        timeout = max(0.0, min(moments) - time.monotonic()) * 1000 + 1 if moments else None
        return [descriptor for descriptor, _ in poll.poll(timeout)]

    def _take(self, signals: SignalPipe) -> None:
        for number in signals.drain():
            if number in STOP_SIGNALS:
                if self._stop_signal is None:
                    self.told_to_stop(number)
                self._stop_signal = self._stop_signal or number
                self.stop(number)
            elif number in PASSED_SIGNALS:
                self._signal(number)

    def _signal(self, number: int, whole_group: bool = False) -> None:
        try:
            if whole_group or self.command.whole_group:
                os.killpg(self.pid, number)
            else:
                os.kill(self.pid, number)
        except ProcessLookupError:
            pass

    def _reaped(self, blocking: bool) -> bool:
        """Collect children that ended; True once ours is among them."""
        if self._status is not None:
            return True
        options = 0 if blocking else os.WNOHANG
        while True:
            try:
                pid, status = os.waitpid(-1 if self.owns_process else self.pid, options)
            except ChildProcessError:
                self._status = 0
                return True
            if pid == 0:
                return False
            if pid == self.pid:
                self._status = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                return True
            orphans.note_exit(pid)

    def _await_helper(self, signals: SignalPipe) -> None:
        """Let the helper of a stop end within the grace period; then kill it."""
        poll = select.poll()
        poll.register(signals.read_end, select.POLLIN)
        while self._helper:
            try:
                ended, _ = os.waitpid(self._helper, os.WNOHANG)
            except ChildProcessError:
                return  # already collected with the other children
            remaining = (self._kill_at or 0.0) - time.monotonic()
            if ended:
                return
            if remaining <= 0:
                os.kill(self._helper, signal.SIGKILL)
            poll.poll(max(1.0, remaining * 1000))
            signals.drain()

    def _clear_up(self, signals: SignalPipe) -> None:
        """End the processes that the child left behind, then pass on the rest of its output."""
        grace = LEFTOVER_GRACE if self._kill_at is None else max(0.0, self._kill_at - time.monotonic())
        told = self._kill_at is not None and self.command.whole_group
        relays = self.relays.values()
        orphans.end_group(self.pid, grace, signals.read_end, relays, everything=self.owns_process, told=told)
        for relay in relays:
            relay.drain()


def supervise(
    command: Command,
    policy: Policy | None = None,
    relays: Mapping[int, Relay] | None = None,
    owns_process: bool = False,
) -> Outcome:
    """Run a command to its end and leave nothing of it behind.

    Args:
        command: what to run.
        policy: time limits; default: a grace period of 100 s, no timeout.
        relays: pass on its output, by descriptor (1, 2); a stream without one goes straight through.
        owns_process: this process exists for that child alone (``train``): collect every orphan.

    Raises:
        StartError: the program cannot be started.
    """
    return Supervisor(command, policy or Policy(), relays or {}, owns_process).run()
