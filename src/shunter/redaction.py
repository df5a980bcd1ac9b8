"""Keeps secrets out of what is stored and shown. What counts as a secret: `secret_rules` of the toolkit.

A secret is replaced by ``<redacted>``, or by ``<redacted:NAME>`` where the environment variable NAME is
known to hold it: then `restore` can put it back later, from the environment of that time.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from shunter._toolkit import secret_rules
from shunter.errors import ConfigError

SHORTEST_URL_TOKEN = secret_rules.SHORTEST_URL_TOKEN
is_secret_name = secret_rules.is_secret_name

REDACTED = "<redacted>"
SHORTEST_KNOWN_SECRET = 8
#: A shorter one on the command line is as likely part of another word of a message.
SHORTEST_GIVEN_SECRET = 4
#: The variables in which `restore` looks for secrets that were given directly: with the option's name.
PROVIDED = "SHUNTER_SECRET_"
_MARKER = re.compile(r"<redacted(?::(?P<name>[^<>]+))?>")
#: What stands before a secret in a text: ``--password ``, ``"password": "``, ``-H "X-Api-Key: ``.
_NAME_BEFORE = re.compile(
    r"(?P<name>[A-Za-z_][\w.\-]*)\\*[\"']?\]?(?:[ \t]*(?:=>?|:)|,)?[\s\-|>]*(?:bearer |basic |token )?"
    r"\\*[\"']?$",
    re.I,
)


class Redactor(secret_rules.SecretFilter):
    """Replaces secrets in texts and in nested JSON values.

    Args:
        environ: the environment whose secret variables are looked for, by value, in every text; the
            process's own by default.
        secrets: more of them, from `secrets_in`.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, secrets: Iterable[str] = ()) -> None:
        self._environ = os.environ if environ is None else environ
        known = dict.fromkeys(secrets, "") | {
            value: name
            for name, value in self._environ.items()
            if len(value) >= SHORTEST_KNOWN_SECRET and is_secret_name(name)
        }
        super().__init__(self._marker, known)

    def options(self, values: Mapping[str, Any], opts: Iterable[tuple[str, Any]] = ()) -> dict[str, Any]:
        """Return a scheduler's option values: those declared or named as secrets are replaced."""
        secret = {name for name, opt in opts if opt.secret}
        return {name: self.named(name, value, is_secret=name in secret) for name, value in values.items()}

    def _marker(self, name: str, value: str) -> str:
        for variable in (name, *self._environ):
            if self._environ.get(variable) == value:
                return f"<redacted:{variable}>"
        # a role's variable is most often given by one of the same name
        return f"<redacted:{name}>" if name.isidentifier() and name.isupper() else REDACTED


def secrets_in(value: Any) -> set[str]:
    """Return the secrets in JSON values or in a list of arguments, and the parts of those with commas."""
    secrets: set[str] = set()

    def collect(name: str, secret: str) -> str:
        secrets.update((secret, *secret.split(",")))  # a sweep's points have the parts
        return ""

    secret_rules.SecretFilter(collect).json(value)
    return {secret for secret in secrets if len(secret) >= SHORTEST_GIVEN_SECRET}


def redact_text(text: str) -> str:
    """Return a text without secrets, for messages and logs."""
    return Redactor().text(text)


def restore(value: Any, environ: Mapping[str, str], missing: set[str], label: str = "") -> Any:
    """Put secrets back into nested JSON values.

    Args:
        value: what `Redactor` made.
        environ: where the secrets are looked up. One that was given directly, such as ``--api-key x``, is
            ``SHUNTER_SECRET_API_KEY``.
        missing: receives what cannot be put back: names of variables, or "" for a secret without a name.
        label: the name of the value, if it is that of a secret.
    """
    if isinstance(value, str):
        if value.startswith(("{", "[")) and _MARKER.search(value):
            with contextlib.suppress(ValueError):  # in JSON, what is put back may need escapes
                return json.dumps(restore(json.loads(value), environ, missing, label))
        return _MARKER.sub(lambda match: _lookup(match, environ, missing, label), value)
    if isinstance(value, dict):
        return {key: restore(item, environ, missing, _label(key)) for key, item in value.items()}
    if isinstance(value, list):
        flags = ["", *(item if isinstance(item, str) and item.startswith("-") else "" for item in value)]
        return [
            restore(item, environ, missing, label or _label(flag))
            for item, flag in zip(value, flags, strict=False)
        ]
    return value


def _label(name: str) -> str:
    return name.lstrip("-") if is_secret_name(name) else ""


def _lookup(match: re.Match[str], environ: Mapping[str, str], missing: set[str], label: str) -> str:
    name = match["name"] or ""
    if not name:
        before = _NAME_BEFORE.search(match.string[max(match.start() - 160, 0) : match.start()])
        label = (_label(before["name"]) if before else "") or label
        name = PROVIDED + re.sub(r"\W", "_", label).upper() if label else ""
    if name in environ:
        return environ[name]
    missing.add(name)
    return match[0]


def missing_secrets_error(what: str, missing: set[str]) -> ConfigError:
    """Describe that something cannot be repeated because of these secrets."""
    names = sorted(name for name in missing if name)
    lost = [f"the environment variable {name} is not set" for name in names if not name.startswith(PROVIDED)]
    given = [name.removeprefix(PROVIDED).lower() for name in names if name.startswith(PROVIDED)]
    if given:
        lost.append(f"{', '.join(given)} {'was' if len(given) == 1 else 'were'} given directly")
    if "" in missing:
        lost.append("one was given directly, without a name")
    exports = " ".join(f"{name}=..." for name in names)
    hint = f"Set them and try again: export {exports}" if names else ""
    if "" in missing:
        hint = f"{hint} Submit the job again with the secret, best through an environment variable.".strip()
    return ConfigError(
        f"{what} held secrets, which are never stored, and they cannot be recovered: {'; '.join(lost)}",
        hint=hint,
    )
