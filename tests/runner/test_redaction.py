from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shunter.redaction import (
    REDACTED,
    Redactor,
    missing_secrets_error,
    restore,
    secrets_in,
)


def test_secrets_of_the_environment_are_found_by_value() -> None:
    redactor = Redactor(
        {"HF_TOKEN": "hf_abcdefgh", "LONG_TOKEN": "hf_abcdefgh_and_more", "PIN_TOKEN": "1", "A": "hello"}
    )
    assert redactor.text("x hf_abcdefgh y") == "x <redacted:HF_TOKEN> y"
    assert redactor.text("hf_abcdefgh_and_more") == "<redacted:LONG_TOKEN>"
    assert redactor.text("hello 1") == "hello 1"


def test_restore_puts_back_what_the_environment_holds() -> None:
    stored = {"a": "x <redacted:T> y", "b": ["<redacted:T>", "<redacted:GONE>", REDACTED, 3]}
    missing: set[str] = set()
    assert restore(stored, {"T": "t"}, missing) == {"a": "x t y", "b": ["t", "<redacted:GONE>", REDACTED, 3]}
    assert missing == {"GONE", ""}
    text = str(missing_secrets_error("the job x", missing))
    assert "GONE is not set" in text
    assert "export GONE=..." in text
    assert "Submit the job again" in text


texts = st.text(alphabet=st.characters(blacklist_characters="<>", blacklist_categories=("Cs",)))
values: st.SearchStrategy[Any] = st.recursive(
    texts | st.integers() | st.none(), lambda i: st.lists(i) | st.dictionaries(texts, i), max_leaves=10
)


@given(values)
def test_redacting_twice_is_redacting_once(value: Any) -> None:
    once = Redactor({}).json(value)
    assert Redactor({}).json(once) == once


@given(st.text(alphabet="abcdefghijklmnop0123456789", min_size=12), values)
def test_a_known_secret_never_remains(secret: str, value: Any) -> None:
    redactor = Redactor({"MY_TOKEN": secret})
    holder = {
        "text": f"a{secret}b",
        "url": f"https://u:{secret}@h",
        "args": ["--x", secret, f"--y={secret}"],
        "v": value,
    }
    assert secret not in json.dumps(redactor.json(holder) | {"v": 0})


@given(st.dictionaries(st.from_regex(r"[A-Z]{3,8}_TOKEN", fullmatch=True), st.text("abcdef", min_size=8)))
def test_what_the_environment_holds_comes_back(environ: dict[str, str]) -> None:
    value = {"env": environ, "args": [f"x {secret}" for secret in environ.values()]}
    missing: set[str] = set()
    assert restore(Redactor(environ).json(value), environ, missing) == value
    assert not missing


def test_a_secret_in_json_comes_back_as_json() -> None:
    environ = {"DB_PASSWORD": 'line 1\nsaid "2"'}
    value = ["--config", json.dumps({"password": environ["DB_PASSWORD"], "lr": 1})]
    stored = Redactor(environ).json(value)
    assert stored == ["--config", '{"password": "<redacted:DB_PASSWORD>", "lr": 1}']
    assert restore(stored, environ, set()) == value


def test_secrets_of_a_command_line() -> None:
    words = ["--api-key", "first1", "--token=second2", "--env", "A=b,HF_TOKEN='third 3'", "--lr", "0.1"]
    assert secrets_in(words) == {"first1", "second2", "third 3"}
    assert secrets_in(["--token", "first1,second2"]) == {"first1,second2", "first1", "second2"}
    assert secrets_in(["--token", "--other", "--max-tokens", "5000", "--password=ab"]) == set()
