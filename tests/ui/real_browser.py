"""A real browser, and `shunter ui` in a process, for tests."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import backends

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"


class Server:
    """`shunter ui` as a process."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "shunter", "ui", "--port", "0", "--no-browser"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.origin = self.url.partition("/?")[0]
        self.token = self.url.partition("token=")[2]

    def end(self) -> tuple[int, str]:
        """Press Ctrl-C; returns the exit code and what was written to stderr."""
        self.process.send_signal(signal.SIGINT)
        out, errors = self.process.communicate(timeout=60)
        return self.process.returncode, out + errors


@pytest.fixture
def server(home: Path) -> Iterator[Server]:
    server = Server()
    yield server
    code, said = server.end()
    assert code == 0
    assert said.splitlines() == ["serving; Ctrl-C ends the page, not the jobs"]  # no token, no request


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for all tests; each has a context in it, without another's cookies."""
    backends.need("chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        rules = "MAP evil.example 127.0.0.1"
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", f"--host-resolver-rules={rules}"]
        )
        yield browser
        browser.close()


def opened(browser: Any, server: Server, **options: Any) -> tuple[Any, list[str]]:
    """Return a page that was let in, and the list of what the browser complains about."""
    page = browser.new_context(viewport={"width": 1280, "height": 900}, **options).new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.extend([message.text] * (message.type == "error")))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(server.url)
    page.wait_for_selector("#jobs")
    assert page.url == f"{server.origin}/"
    return page, complaints


def shown(page: Any, selector: str) -> None:
    """Wait until something is shown; say what is shown instead if it is not."""
    from playwright.sync_api import TimeoutError as NotShownError

    try:
        page.wait_for_selector(selector, timeout=60_000)
        page.wait_for_load_state("load", timeout=60_000)  # the script that handles keys is deferred
    except NotShownError:
        pytest.fail(f"{selector} is not on the page:\n{page.locator('main').inner_text()[-3000:]}")


def shoot(page: Any, name: str) -> None:
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SCREENSHOTS / f"{name}.png"), full_page=True)
