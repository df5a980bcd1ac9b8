"""Where the dashboard is, who we are, and what its refusals and absence mean: by a stub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shunter.errors import AccessError, BackendError, ConfigError, UnreachableError
from shunter.schedulers.ray_scheduler.dashboard import (
    Dashboard,
    address_of,
    find_token,
)
from tests.schedulers.ray.stub import StubDashboard, stub_dashboard


@pytest.fixture
def stub() -> Iterator[StubDashboard]:
    with stub_dashboard() as stub:
        yield stub


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("head", "http://head:8265"),
        ("head:9000", "http://head:9000"),
        ("https://ray.example.com/cluster/a", "https://ray.example.com/cluster/a"),
        ("auto", "http://127.0.0.1:8265"),
        ("[::1]:8265", "http://[::1]:8265"),
    ],
)
def test_an_address_is_completed(given: str, address: str) -> None:
    assert address_of(given) == address


@pytest.mark.parametrize("given", ["ray://head:10001", "head:6379", "http://head:10001", "a b", "ftp://x"])
def test_addresses_of_something_else_are_refused(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        address_of(given)
    assert "8265" in caught.value.hint


def test_the_token_comes_from_where_ray_takes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_token() == ""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("of-home\n")
    assert find_token() == "of-home"
    (tmp_path / "own").write_text("of-path")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "own"))
    assert find_token() == "of-path"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-variable")
    assert find_token() == "of-variable"
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert find_token() == ""


def test_a_token_file_that_was_named_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="No such file"):
        find_token()
    (tmp_path / "none").write_text("")
    with pytest.raises(ConfigError, match="empty"):
        find_token()


def test_headers_and_token_are_sent(stub: StubDashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "abc")
    monkeypatch.setenv("RAY_JOB_HEADERS", '{"X-Team": "r"}')
    Dashboard.of({"dashboard_address": stub.address}).ask("GET", "/api/version")
    assert stub.headers[-1]["authorization"] == "Bearer abc"
    assert stub.headers[-1]["x-team"] == "r"
    cfg = {"dashboard_address": stub.address, "headers": {"Authorization": "Basic own"}}
    Dashboard.of(cfg).ask("GET", "/api/version")
    assert stub.headers[-1]["authorization"] == "Basic own"
    assert "x-team" not in stub.headers[-1]


@pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}'])
def test_headers_of_the_environment_are_checked(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_HEADERS", text)
    with pytest.raises(ConfigError, match="RAY_JOB_HEADERS"):
        Dashboard.of({})


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_token_is_a_matter_of_access(stub: StubDashboard, status: int) -> None:
    stub.answer("GET", "/api/jobs/", (status, "Unauthorized: Missing authentication token"))
    with pytest.raises(AccessError, match="Missing authentication token") as caught:
        Dashboard(stub.address).ask("GET", "/api/jobs/")
    assert "RAY_AUTH_TOKEN" in caught.value.hint


@pytest.mark.parametrize("answer", [(0, ""), (503, "no upstream"), (502, "")])
def test_a_dashboard_that_goes_away_is_unreachable(stub: StubDashboard, answer: tuple[int, str]) -> None:
    stub.answer("POST", "/api/jobs/", answer)
    with pytest.raises(UnreachableError):
        Dashboard(stub.address).ask("POST", "/api/jobs/", {})


def test_a_refusal_has_rays_own_words(stub: StubDashboard) -> None:
    text = "Traceback (most recent call last):\n  File x\nValueError: runtime_env is wrong\n"
    stub.answer("POST", "/api/jobs/", (400, text))
    with pytest.raises(BackendError, match=r"\(400\): ValueError: runtime_env is wrong"):
        Dashboard(stub.address).ask("POST", "/api/jobs/", {})


def test_something_else_at_the_address_is_reported(stub: StubDashboard) -> None:
    stub.answer("GET", "/api/jobs/", (200, "<html>hello</html>"))
    with pytest.raises(BackendError, match="something other than JSON"):
        Dashboard(stub.address).ask("GET", "/api/jobs/")


def test_certificates_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="verify="):
        Dashboard.of({"verify": str(tmp_path / "none.pem")})
