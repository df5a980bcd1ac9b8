"""Runs a command on every host of a distribution as one job: it succeeds everywhere or fails everywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from . import child_process, failure, rendezvous
from .child_process import Outcome, Supervisor

if TYPE_CHECKING:
    from .script_launch import Launch


def run(launch: Launch, make_command: Callable[[], child_process.Command]) -> Outcome:
    """Run this host's part of the job; it ends as the whole job ends.

    Args:
        launch: the script.
        make_command: prepares this host and returns the command of its part. It is called when all hosts are
            connected, so that an error in a host's preparation fails the job on every host at once.

    Raises:
        ClusterError: another host failed or was lost, so this host's part was stopped.
    """
    environment = launch.environment
    hosts = environment.distribution_hosts
    if environment.is_master:
        with contextlib.closing(rendezvous.Chief(hosts)) as chief:
            chief.gather({"welcome": environment.current_host})
            with telling(lambda end: chief.send({"verdict": end, "host": environment.current_host})):
                command = make_command()
            return lead(launch, _supervisor(launch, command), chief)
    line, _ = rendezvous.join(environment.current_host, rendezvous.address_of(hosts[0], hosts), {})
    with contextlib.closing(line):
        with telling(line.send):
            command = make_command()
        return _follow(launch, command, line)


@contextlib.contextmanager
def telling(tell: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    """Tell the other hosts about an error in this host's preparations."""
    try:
        yield
    except Exception as error:
        fields = failure.from_error(error).fields
        tell({"exit": fields["exit_code"], "class": fields["class"], "reason": fields["reason"]})
        raise


def ending(launch: Launch, outcome: Outcome) -> dict[str, Any]:
    """The message in which a host reports how its part ended."""
    stopped = outcome.stop_signal is not None
    if outcome.status == 0 and not stopped and not outcome.timed_out:
        return {"exit": 0}
    report = failure.from_outcome(outcome, launch.name, launch.memory_kills())
    code = report.exit_code or (143 if stopped else 1)
    return {"exit": code, "class": report.fields["class"], "reason": report.fields["reason"]}


def lead(launch: Launch, part: Supervisor, chief: rendezvous.Chief, wait_for_others: bool = True) -> Outcome:
    """The first host: stop when another fails, and tell all how the job ended.

    Args:
        launch: the script.
        part: what this host does.
        chief: connected to all other hosts.
        wait_for_others: whether the others run parts of their own, which have to end too.

    Raises:
        ClusterError: another host failed or was lost.
    """

    def heard(host: str) -> None:
        end = chief.receive(host)
        if end is not None:
            part.unwatch(chief.lines[host].fileno())
            if end["exit"] != 0:
                part.stop()
        part.heard()

    for host in chief.lines:
        chief.receive(host)
    _raise_if_failed(chief)
    part.told_to_stop = lambda number: chief.send({"stop": number})
    for host, line in chief.lines.items():
        part.watch(line.fileno(), lambda host=host: heard(host))  # type: ignore[misc]
    outcome = part.run()
    end = ending(launch, outcome)
    if end["exit"] == 0 and wait_for_others:
        chief.await_ends()
    if end["exit"] == 0 or _stopped_by_us(outcome):
        _raise_if_failed(chief)
    chief.send({"verdict": end, "host": launch.environment.current_host})
    return outcome


def _raise_if_failed(chief: rendezvous.Chief) -> None:
    """If a host has failed, tell the others and raise."""
    other = chief.failed()
    if other is not None:
        host, message = other
        chief.send({"verdict": message, "host": host})
        raise rendezvous.other_host_failed(host, message)


def _follow(launch: Launch, command: child_process.Command, line: rendezvous.Line) -> Outcome:
    """Any other host: stop when the first says so or is lost, and learn from it how the job ended."""
    verdict: list[dict[str, Any]] = []

    def heard() -> None:
        messages = line.receive()
        verdict.extend(message for message in messages if "verdict" in message)
        if line.lost or verdict:
            part.unwatch(line.fileno())
        if line.lost or messages:
            part.stop()

    accept_early(launch, line)
    part = _supervisor(launch, command)
    part.watch(line.fileno(), heard)
    outcome = part.run()
    end = ending(launch, outcome)
    line.send(end)
    if end["exit"] != 0 and not _stopped_by_us(outcome):
        return outcome
    while not verdict and not line.lost:
        verdict.extend(message for message in line.wait(3600.0) if "verdict" in message)
    return accept(launch, outcome, verdict)


def accept_early(launch: Launch, line: rendezvous.Line) -> None:
    """End before this host's part begins if the first host has failed already.

    Raises:
        ClusterError: it has.
    """
    verdicts = [message for message in [*line.early, *line.receive()] if "verdict" in message]
    if verdicts or line.lost:
        accept(launch, child_process.Outcome(0), verdicts)


def accept(launch: Launch, outcome: Outcome, verdict: list[dict[str, Any]]) -> Outcome:
    """Return this host's outcome if the first host says that the job succeeded.

    Raises:
        ClusterError: it failed, or the first host was lost.
    """
    hosts = launch.environment.distribution_hosts
    lost: dict[str, Any] = {
        "host": hosts[0],
        "verdict": {"exit": 1, "reason": f"the connection to host {hosts[0]} was lost"},
    }
    told = verdict[0] if verdict else lost
    if told["verdict"]["exit"] != 0:
        raise rendezvous.other_host_failed(told["host"], told["verdict"])
    return outcome


def _supervisor(launch: Launch, command: child_process.Command) -> Supervisor:
    return Supervisor(command, launch.policy, launch.relays(), launch.owns_process)


def _stopped_by_us(outcome: Outcome) -> bool:
    """Whether a part was ended for another host's sake, not by a signal from outside or its time limit."""
    return outcome.stopped_by_us and outcome.stop_signal is None and not outcome.timed_out
