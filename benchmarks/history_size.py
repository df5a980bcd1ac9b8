"""What commands cost that read the history, and the page of jobs, by the number of jobs in it."""

from __future__ import annotations

import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.cookiejar import CookieJar

from harness import HERE, Tool, Usage, Workplace, alternate
from report import Goal, Row, usage_rows

FEW = 10
MANY = (1_000, 10_000)
NAMES = 5
#: As many jobs as a page of `shunter ui` shows, so that the same number of rows is rendered.
PAGE = 50
FILL = HERE / "programs" / "fill_history.py"
GOAL = Goal(2)
CONSTANT = Goal(1.15)
# name -> arguments, goal of the ratio to 10 jobs; {id} is the id of the job that was submitted last
COMMANDS: dict[str, tuple[tuple[str, ...], Goal]] = {
    "list": (("list",), GOAL),
    "list --limit 10": (("list", "--limit", "10"), CONSTANT),
    "list --state failed --limit 10": (("list", "--state", "failed", "--limit", "10"), GOAL),
    "list --name --limit 10": (("list", "--name", "echo1-", "--limit", "10"), GOAL),
    "diff --stat": (("diff", "--stat", "{id}"), CONSTANT),
    "describe, by a short id": (("describe", "{short}"), CONSTANT),
    "describe, by a name that many jobs have": (("describe", "echo"), GOAL),
}


def measure(place: Workplace, ours: Tool, other: Tool, *, quick: bool) -> Iterator[Row]:
    """TorchX has no row here: it keeps no history."""
    last = {number: _fill(place, ours, number) for number in (FEW, *MANY)}
    for name, (args, goal) in COMMANDS.items():
        sides = {str(number): partial(_run, place, ours, number, last[number], args) for number in last}
        used = alternate(sides, 5 if quick else 21)
        for number in MANY:
            subject = f"{name}, {number:,} jobs"
            yield from usage_rows(subject, used[str(number)], used[str(FEW)], f"{FEW} jobs", goal)
    _fill(place, ours, PAGE)
    with _page(place, ours, PAGE) as one_page, _page(place, ours, MANY[-1]) as many:
        took = alternate({"many": many, "one page": one_page}, 5 if quick else 51)
    seconds = [[each * 1000 for each in took[side]] for side in ("many", "one page")]
    subject = f"the page of jobs, {MANY[-1]:,} jobs"
    yield Row(subject, "wall ms", *seconds, f"{PAGE} jobs, all on it", goal=GOAL)


@contextmanager
def _page(place: Workplace, tool: Tool, number: int) -> Iterator[Callable[[], float]]:
    """Serve the pages; give what asks for the list of jobs and returns how many seconds that took."""
    command = _in(_home(place, number), tool.command("ui", "--port", "0", "--no-browser"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        browser.open(url).read()

        def ask() -> float:
            begin = time.perf_counter()
            text = browser.open(url.partition("?")[0]).read()
            took = time.perf_counter() - begin
            assert text.count(b"data-row") == min(number, PAGE)
            return took

        try:
            yield ask
        finally:
            server.send_signal(signal.SIGINT)


def _home(place: Workplace, number: int) -> str:
    return str(place.path / "home" / f"jobs-{number}")


def _in(home: str, command: list[str]) -> list[str]:
    return ["/usr/bin/env", f"SHUNTER_HOME={home}", *command]


def _fill(place: Workplace, tool: Tool, number: int) -> str:
    """Make a history; return the id of its last job."""
    command = [str(tool.python), str(FILL), str(number), str(NAMES)]
    usage = place.run(_in(_home(place, number), command), timeout=300)
    return usage.out.read_text().strip().rpartition("/")[2]


def _run(place: Workplace, tool: Tool, number: int, last: str, args: tuple[str, ...]) -> Usage:
    words = [word.format(id=last, short=last[:-4]) for word in args]
    return place.run(_in(_home(place, number), tool.command(*words)))
