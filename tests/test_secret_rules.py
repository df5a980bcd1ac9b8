"""What counts as a secret, from both sides: what the launcher stores and what the toolkit prints."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from shunter.redaction import Redactor
from shunter_toolkit import masking
from tests.secret_tries import HARMLESS, PLACES, SHAPES, TEXTS

SECRET = "hunter2s3cr3t"


def launcher(value: Any) -> Any:
    return json.loads(re.sub(r"<redacted(?::[^<>]+)?>", "***", json.dumps(Redactor({}).json(value))))


def toolkit(value: Any) -> Any:
    os.environ.pop("PYTEST_CURRENT_TEST", None)  # it holds the case's own text
    return json.loads(json.dumps(masking.Masker().json(value)).replace(masking.MASK, "***"))


@pytest.fixture(params=[launcher, toolkit])
def shown(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Any]:
    for name in os.environ:
        monkeypatch.delenv(name)
    side: Callable[[Any], Any] = request.param
    return side


@pytest.mark.parametrize("place", PLACES)
def test_a_secret_is_found_in_places_of_every_kind(shown: Callable[[Any], Any], place: str) -> None:
    words = [word.replace("{}", SECRET) for word in PLACES[place]]
    for value in (words, {"env": {"COMMAND": words}}, ["sh", "-c", shlex.join(words)]):
        masked = shown(value)
        assert SECRET not in json.dumps(masked)
        assert shown(masked) == masked


@pytest.mark.parametrize("secret", SHAPES)
def test_a_secret_is_found_by_its_shape(shown: Callable[[Any], Any], secret: str) -> None:
    for value in ([secret], f"a {secret} b", {"lr": f"run '{secret}'"}, json.dumps({"lr": secret})):
        assert secret[-16:] not in json.dumps(shown(value))


@pytest.mark.parametrize("words", HARMLESS, ids=lambda words: words[0][:20])
def test_what_is_no_secret_stays(shown: Callable[[Any], Any], words: list[str]) -> None:
    assert shown(words) == words
    assert shown(shlex.join(words)) == shlex.join(words)


@pytest.mark.parametrize(("text", "wanted"), TEXTS)
def test_what_surrounds_a_secret_stays(shown: Callable[[Any], Any], text: str, wanted: str) -> None:
    assert shown(text) == wanted
    assert shown(wanted) == wanted


def test_values_with_names(shown: Callable[[Any], Any]) -> None:
    value = {
        "env": {"MY_PASS": "x1", "LR": "0.1", "EMPTY_TOKEN": ""},
        "tags": [{"Name": "DB_PASSWORD", "Value": "x"}, {"Name": "LR", "Value": "1"}],
        "secrets": {"deep": ["a", {"b": "c"}]},
        "secret": {"name": "A", "valueFrom": "arn:aws:secretsmanager:x"},
        "max_tokens": 5,
        "password": 12345678,
        "api_key": None,
        "use_token": True,
    }
    assert shown(value) == {
        **value,
        "env": {"MY_PASS": "***", "LR": "0.1", "EMPTY_TOKEN": ""},
        "tags": [{"Name": "DB_PASSWORD", "Value": "***"}, {"Name": "LR", "Value": "1"}],
        "secrets": {"deep": ["***", {"b": "***"}]},
        "password": "***",
    }


def _words(text: str) -> list[str]:
    return text.split()


SECRET_NAMES = _words(
    """
    MY_PASS GITHUB_PAT SSH_KEY WANDB_KEY password --pass --auth token secret credentials api_key db_pass
    hub_token push_to_hub_token use_auth_token OPENAI_API_KEY FOO_KEY AWS_SECRET_ACCESS_KEY
    AWS_SESSION_TOKEN apiKey APIKey x-api-key X-Auth-Token Proxy-Authorization Cookie SENTRY_DSN
    PGPASSWORD MYSQL_PWD clientSecret vault_secret_id token2 api_key_2 SM_HP_PASSWORD SM_HP_API-KEY
    private-key sshKey SLACK_WEBHOOK_URL connectionString STORAGE_KEY sas_token _authToken REDIS_AUTH
    JWT DOCKER_AUTH_CONFIG --passphrase sshpass
    """
)
OTHER_NAMES = _words(
    """
    max_tokens --num-tokens tokenizer monkey keyboard passes --pass-through author num_passes
    forward_pass bypass key keys sort_key text_key num_key_value_heads KEY_DIM kms_key VolumeKmsKeyId
    public_key AWS_ACCESS_KEY_ID pad_token bos_token_id additional_special_tokens max_new_tokens
    TOKENIZERS_PARALLELISM token_dropout image_token_index prompt_tokens tokens_per_second authority
    secretary PWD pattern password_file secret_name auth_type auth_url SSH_AUTH_SOCK XAUTHORITY SASL
    metric_key SM_HP_TEXT_KEY session_id pin_memory cookiecutter pass@1 --no-auth disable_token turnkey
    auth_loss secret_ratio password_dataset bearer_dim
    """
)


def test_names() -> None:
    assert [name for name in SECRET_NAMES if not masking.is_secret_name(name)] == []
    assert [name for name in OTHER_NAMES if masking.is_secret_name(name)] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "part",
    ["y", "_", "a.", "A_", " ", "://password:", "--password '", "password=${", '\\"?sig=', "curl -u ", "<a>"],
)
def test_long_texts_are_read_once(part: str) -> None:
    """Patterns that search again from every place would take minutes for these."""
    Redactor({}).words([part * (300_000 // len(part))])
