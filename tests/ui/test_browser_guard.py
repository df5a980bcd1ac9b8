"""Who is let in, and what a page of another origin can do: nothing."""

from __future__ import annotations

import re

import pytest

from shunter.runner.history import History
from tests.ui.conftest import ORIGIN, PORT, Page, record

EVERYTHING = (
    "/",
    "/jobs",
    "/job?handle=local_cwd://shunter/x",
    "/job/status?handle=local_cwd://shunter/x",
    "/job/log?handle=local_cwd://shunter/x",
    "/job/log/earlier?handle=local_cwd://shunter/x",
    "/job/log/later?handle=local_cwd://shunter/x",
    "/job/log/tail?handle=local_cwd://shunter/x",
    "/compare",
    "/charts",
    "/metrics.json",
    "/static/page.js",
    "/nothing",
)


@pytest.mark.parametrize("path", EVERYTHING)
def test_nothing_without_the_cookie(stranger: Page, path: str) -> None:
    answer = stranger.get(path)
    assert answer.status_code == 401
    assert "shunter ui" in answer.text


@pytest.mark.parametrize("path", EVERYTHING)
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": f"evil.example:{PORT}"}, 421),
        ({"host": f"127.0.0.1.evil.example:{PORT}"}, 421),
        ({"host": "127.0.0.1:80"}, 421),
        ({"host": ""}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
    ],
)
def test_nothing_for_another_origin_even_with_the_cookie(
    page: Page, path: str, headers: dict[str, str], code: int
) -> None:
    answer = page.client.get(path, headers=headers)
    assert answer.status_code == code
    assert "access-control-allow-origin" not in answer.headers


def test_the_token_is_exchanged_for_a_strict_cookie(stranger: Page) -> None:
    answer = stranger.get("/", token=stranger.kept.token)
    cookie = answer.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=strict", "path=/", f"shunter_ui_{PORT}="))
    assert stranger.kept.token not in answer.text + cookie
    assert 'content="0;url=/"' in answer.text
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert stranger.get("/").status_code == 200


@pytest.mark.parametrize(
    "cookies",
    [
        'prefs={"theme": "dark"}; OURS',
        'OURS; prefs={"theme": "dark"}',
        "a=b=c;OURS",
        "novalue; ; =x; a b=c; OURS ",
        'quoted="a; b\\"; OURS',
        "latin=caf\xe9; OURS",
        "$Version=1; expires=now; path=/; OURS",
        "NAME=of an earlier server; OURS; NAME=",
        "shunter_ui_80=of another server; OURS",
        f"large={'x' * 30000}; OURS",
    ],
)
def test_cookies_of_other_programs_lock_nobody_out(stranger: Page, cookies: str) -> None:
    name = f"shunter_ui_{PORT}"
    sent = cookies.replace("OURS", f"{name}={stranger.kept.cookie}").replace("NAME", name)
    assert stranger.client.get("/", headers={"cookie": sent.encode("latin-1")}).status_code == 200
    separate = [("cookie", part.encode("latin-1")) for part in sent.split(";")]
    assert stranger.client.get("/", headers=separate).status_code == 200


@pytest.mark.parametrize(
    "cookies",
    [
        "NAME",
        "NAME=",
        "NAME=x",
        "NAME=VALUEx",
        "XNAME=VALUE",
        "shunter_ui_80=VALUE",
        'x="NAME=VALUE"',
        "VALUE",
    ],
)
def test_only_the_right_cookie_lets_in(stranger: Page, cookies: str) -> None:
    sent = cookies.replace("NAME", f"shunter_ui_{PORT}").replace("VALUE", stranger.kept.cookie)
    assert stranger.client.get("/", headers={"cookie": sent}).status_code == 401


@pytest.mark.parametrize("given", ["", "x", "é", "a" * 100])
def test_a_wrong_token_gives_nothing(stranger: Page, given: str) -> None:
    answer = stranger.get("/", token=given)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_a_link_of_another_program_with_the_token_is_let_in(stranger: Page) -> None:
    # as a browser opens it from a file, or from a terminal in a page
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    answer = stranger.client.get("/", params={"token": stranger.kept.token}, headers=headers)
    assert answer.status_code == 200
    assert "set-cookie" in answer.headers


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_other_methods_are_refused(page: Page, method: str) -> None:
    assert page.client.request(method, "/jobs/act", headers={"origin": ORIGIN}).status_code == 405


@pytest.mark.parametrize(
    ("csrf", "headers"),
    [
        ("", {"origin": ORIGIN}),
        ("wrong", {"origin": ORIGIN}),
        (None, {"origin": "https://evil.example"}),
        (None, {"origin": "null"}),
        (None, {"sec-fetch-site": "cross-site"}),
        (None, {}),
    ],
)
def test_nothing_is_changed_without_the_second_secret(
    page: Page, csrf: str | None, headers: dict[str, str]
) -> None:
    history = History()
    handle = record(history, "mine")
    form = {"csrf": page.kept.csrf if csrf is None else csrf, "action": "delete", "handle": handle}
    assert page.client.post("/jobs/act", data=form, headers=headers).status_code == 403
    assert history.find(handle).phase == "submitted"  # type: ignore[union-attr]
    assert page.act("delete", handle).status_code == 200
    assert history.find(handle).phase == "deleted"  # type: ignore[union-attr]


def test_nothing_is_changed_by_following_a_link(page: Page) -> None:
    assert page.get("/jobs/act", csrf=page.kept.csrf, action="cancel").status_code == 405


def test_a_long_form_is_refused(page: Page) -> None:
    answer = page.client.post("/jobs/act", content=b"x" * (1 << 21), headers={"origin": ORIGIN})
    assert answer.status_code == 413
    chunked = {"origin": ORIGIN, "transfer-encoding": "chunked", "content-length": "3"}
    assert page.client.post("/jobs/act", content=b"x=1", headers=chunked).status_code == 413


@pytest.mark.parametrize("path", EVERYTHING)
def test_every_answer_forbids_foreign_scripts(page: Page, path: str) -> None:
    answer = page.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "same-origin"
    if "text/html" in answer.headers.get("content-type", ""):
        assert not re.search(r"<script(?![^>]* src=)|<style|\sstyle=|\son\w+=|javascript:", answer.text)


def test_each_answer_has_its_own_nonce(page: Page) -> None:
    nonces = {re.search(r"nonce-([\w-]+)", page.get("/").headers["content-security-policy"])[1] for _ in "12"}  # type: ignore[index]
    assert len(nonces) == 2


@pytest.mark.parametrize(
    "name",
    ["../web_app.py", "..%2fweb_app.py", "%2e%2e%2fweb_app.py", "VENDORED.md", "page.js%00", "/etc/passwd"],
)
def test_only_files_of_the_table_are_served(page: Page, name: str) -> None:
    assert page.get(f"/static/{name}").status_code in (404, 405)


def test_static_files_are_asked_for_again_only_if_they_changed(page: Page) -> None:
    answer = page.get("/static/page.js")
    assert answer.headers["content-type"].startswith("text/javascript")
    again = page.client.get("/static/page.js", headers={"if-none-match": answer.headers["etag"]})
    assert again.status_code == 304


HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x1b]0;owned\x07\u202e'


@pytest.mark.parametrize("path", ["/", "/jobs", "job", "status", "definition"])
def test_what_jobs_say_of_themselves_is_text(page: Page, path: str) -> None:
    handle = record(History(), HOSTILE, "FAILED", msg=HOSTILE, cwd=f"/{HOSTILE}", argv=[HOSTILE])
    query = {"handle": handle}
    if path == "definition":
        answer = page.get("/job", tab="Definition", **query)
    elif path in ("job", "status"):
        answer = page.get("/job" if path == "job" else "/job/status", **query)
    else:
        answer = page.get(path, q='"><script>')
        assert "<script>" not in answer.text
        answer = page.get(path)
    assert answer.status_code == 200
    assert "script&gt;alert(1)" in answer.text
    assert "<script>alert" not in answer.text
    assert "<img" not in answer.text
    assert "\x1b" not in answer.text
    assert "\u202e" not in answer.text


@pytest.mark.parametrize("handle", ["", "x", "nowhere://a/b", "//evil.example", "local_cwd://x", "--help"])
@pytest.mark.parametrize("path", ["/job", "/job/status", "/job/log", "/job/log/tail"])
def test_what_names_no_job_is_refused(page: Page, handle: str, path: str) -> None:
    assert page.get(path, handle=handle).status_code in (400, 404)


def test_an_action_leads_to_no_other_server(page: Page) -> None:
    handle = record(History(), "mine", app_id="x")
    answer = page.act("cancel", handle, back="https://evil.example")
    assert answer.headers.get("location", "/").startswith("/")
    answer = page.act("cancel", handle, back="job")
    assert answer.headers["location"].startswith("/job?handle=local_cwd")
