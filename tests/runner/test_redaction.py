from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.redaction import (
    REDACTED,
    Redactor,
    is_secret_name,
    missing_secrets_error,
    restore,
    secrets_among,
)


@pytest.mark.parametrize(
    "name",
    [
        "token",
        "HF_TOKEN",
        "hf-token",
        "--api-key",
        "OPENAI_API_KEY",
        "apiKey",
        "AWS_SECRET_ACCESS_KEY",
        "aws_session_token",
        "password",
        "DB_PASSWORD",
        "PGPASSWORD_1",
        "mysql_pwd",
        "passphrase",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "client_secret",
        "clientSecret",
        "WANDB_API_KEY",
        "AccountKey",
        "SENTRY_DSN",
        "Authorization",
        "secret.value",
        "ssh_private_key",
        "NGC_API_KEY_2",
        "PGPASSWORD",
        "authToken",
        "hftoken",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens",
        "max-tokens",
        "num_tokens",
        "tokenizer",
        "TOKENIZERS_PARALLELISM",
        "token_count",
        "pad_token",
        "eos_token_id",
        "next_token",
        "secretary",
        "keyboard",
        "key",
        "keys",
        "monkey",
        "author",
        "PWD",
        "OLDPWD",
        "AWS_ACCESS_KEY_ID",
        "lr",
        "",
        "passes",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain words", "plain words"),
        ("--password=hunter2 --lr=0.1", "--password=<redacted> --lr=0.1"),
        ("password: hunter2", "password: <redacted>"),
        ("export API_KEY='a b' && go", "export API_KEY='<redacted:API_KEY>' && go"),
        ('{"token": "abc", "n": 1}', '{"token": "<redacted>", "n": 1}'),
        ("https://me:pw@host/x?y=1", "https://me:<redacted>@host/x?y=1"),
        ("postgres://u:p@ss@db:5432/x", "postgres://u:<redacted>@db:5432/x"),
        ("git+https://ghp_0123456789abcdef@github.com/a/b", "git+https://<redacted>@github.com/a/b"),
        ("ssh://git@github.com/a/b", "ssh://git@github.com/a/b"),
        ("s3://bucket/a@b", "s3://bucket/a@b"),
        ("token=$HF_TOKEN", "token=$HF_TOKEN"),
        ("password=", "password="),
        ("max_tokens=100", "max_tokens=100"),
        ("Server=a;Pwd=b;Uid=c", "Server=a;Pwd=<redacted>;Uid=c"),
        ("token=a,password=b c=d", "token=<redacted>,password=<redacted> c=d"),
        ("{'password': 'x', 'b': 1}", "{'password': '<redacted>', 'b': 1}"),
        ("http://host/?token=abc&x=1", "http://host/?token=<redacted>&x=1"),
        ("local_cwd://s/app-x", "local_cwd://s/app-x"),
    ],
)
def test_texts(text: str, shown: str) -> None:
    assert Redactor({}).text(text) == shown
    assert Redactor({}).text(shown) == shown


def test_secrets_of_the_environment_are_found_by_value() -> None:
    redactor = Redactor(
        {"HF_TOKEN": "hf_abcdefgh", "LONG_TOKEN": "hf_abcdefgh_and_more", "PIN_TOKEN": "1", "A": "hello"}
    )
    assert redactor.text("x hf_abcdefgh y") == "x <redacted:HF_TOKEN> y"
    assert redactor.text("hf_abcdefgh_and_more") == "<redacted:LONG_TOKEN>"
    assert redactor.text("hello 1") == "hello 1"


def test_nested_values() -> None:
    redactor = Redactor({"MY_VAR": "s3cr3t"})
    value = {
        "env": {"HF_TOKEN": "abc", "LR": "0.1", "DB_PASSWORD": "s3cr3t", "EMPTY_TOKEN": ""},
        "args": ["--token", "abc", "--flag-token", "--next", "x", "--lr", "1"],
        "manifest": [{"name": "DB_PASSWORD", "value": "x"}, {"name": "LR", "value": "1"}],
        "secrets": {"deep": ["a", {"b": "c"}]},
        "max_tokens": 5,
        "password": None,
        "use_token": True,
        "api_key": 12,
    }
    assert redactor.json(value) == {
        "env": {
            "HF_TOKEN": "<redacted:HF_TOKEN>",
            "LR": "0.1",
            "DB_PASSWORD": "<redacted:MY_VAR>",
            "EMPTY_TOKEN": "",
        },
        "args": ["--token", REDACTED, "--flag-token", "--next", "x", "--lr", "1"],
        "manifest": [
            {"name": "DB_PASSWORD", "value": "<redacted:DB_PASSWORD>"},
            {"name": "LR", "value": "1"},
        ],
        "secrets": {"deep": [REDACTED, {"b": REDACTED}]},
        "max_tokens": 5,
        "password": None,
        "use_token": True,
        "api_key": 12,
    }
    assert value["env"]["HF_TOKEN"] == "abc"  # type: ignore[index]


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


@pytest.mark.parametrize("kind", ["Bearer ", "Basic ", "token ", ""])
def test_credentials_after_their_kind_are_replaced_too(kind: str) -> None:
    text = Redactor({}).text(f"curl -H 'Authorization: {kind}abcdef123' http://h")
    assert "abcdef123" not in text
    assert text.endswith("' http://h")


def test_secrets_of_a_command_line() -> None:
    words = ["--api-key", "first1", "--token=second2", "--env", "A=b,HF_TOKEN='third 3'", "--lr", "0.1"]
    assert secrets_among(words) == {"first1", "second2", "third 3"}
    assert secrets_among(["--token", "first1,second2"]) == {"first1,second2", "first1", "second2"}
    assert secrets_among(["--token", "--other", "--max-tokens", "5000", "--password=ab"]) == set()


@pytest.mark.slow
@pytest.mark.parametrize("char", ["y", "_", "-", "9", ".", "a.", "A_", " "])
def test_long_words_are_read_once(char: str) -> None:
    """Searching again from every position of a word would take minutes for these."""
    word = char * 500_000
    assert Redactor({}).text(f"x: {word}") == f"x: {word}"
    assert Redactor({}).text(f"http://x {word}") == f"http://x {word}"
    assert secrets_among([word]) == set()


@pytest.mark.parametrize(
    "text",
    [
        "-password=hunter22",
        "--db.password=hunter22",
        "9password=hunter22",
        "..password: hunter22",
        "{password=hunter22}",
    ],
)
def test_what_stands_before_a_name_does_not_hide_it(text: str) -> None:
    assert "hunter22" not in Redactor({}).text(text)
