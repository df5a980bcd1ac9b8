from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.errors import MalformedAppHandleException
from shunter.specs import make_app_handle, parse_app_handle


@pytest.mark.parametrize(
    ("handle", "parts"),
    [
        ("local_cwd://shunter/app-x", ("local_cwd", "shunter", "app-x")),
        ("k8s:///id", ("k8s", "", "id")),
        ("kubernetes://s/ns:name", ("kubernetes", "s", "ns:name")),
        ("aws_batch://a/b/c", ("aws_batch", "a/b", "c")),
        (
            "aws_batch://arn:aws:batch:eu-1:1:job-queue/q/job",
            ("aws_batch", "arn:aws:batch:eu-1:1:job-queue/q", "job"),
        ),
        ("x://s with space/i", ("x", "s with space", "i")),
    ],
)
def test_parts(handle: str, parts: tuple[str, str, str]) -> None:
    parsed = parse_app_handle(handle)
    assert (parsed.scheduler_backend, parsed.session_name, parsed.app_id) == parts
    scheduler, session, app_id = parsed
    assert (scheduler, session, app_id) == parts
    assert str(parsed) == make_app_handle(*parts) == handle


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no '://'"),
        ("app", "no '://'"),
        ("a:/b/c", "no '://'"),
        ("://s/a", "scheduler before '://' is missing"),
        ("x://a", "no '/' between session and app id"),
        ("x://s/", "app id after the last '/'"),
        ("x://s/a b", "app id after the last '/'"),
        ("x://s/a\n", "app id after the last '/'"),
    ],
)
def test_malformed(text: str, problem: str) -> None:
    with pytest.raises(MalformedAppHandleException) as caught:
        parse_app_handle(text)
    assert problem in caught.value.message
    assert "local_cwd://" in caught.value.hint
    assert caught.value.exit_code == 2


plain = st.text(st.characters(blacklist_characters="/:", blacklist_categories=("Z", "C")), min_size=1)


@given(plain, st.text(st.characters(blacklist_categories=("C",), blacklist_characters="\n")), plain)
def test_make_and_parse_agree(scheduler: str, session: str, app_id: str) -> None:
    parsed = parse_app_handle(make_app_handle(scheduler, session, app_id))
    assert (parsed.scheduler_backend, parsed.session_name, parsed.app_id) == (scheduler, session, app_id)


@given(st.text())
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        assert str(parse_app_handle(text)) == text
    except MalformedAppHandleException as error:
        assert error.hint  # noqa: PT017 - it need not be raised
