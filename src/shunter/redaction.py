"""Keeps secrets out of what is stored and shown. What counts as a secret: `secret_rules` of the toolkit.

A secret is replaced by ``<redacted:NAME>``: NAME is the environment variable that holds it, or else the name
under which it was given. `restore` puts it back later, from the environment of that time. A secret that only
its shape gave away has no name, and is ``<redacted>``.
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
        variables = (variable for variable in (name, *self._environ) if self._environ.get(variable) == value)
        name = next(variables, name)
        return f"<redacted:{name}>" if name else REDACTED


def secrets_in(value: Any) -> set[str]:
    """Return the secrets in JSON values or in a list of arguments, and the parts of those with commas."""
    secrets = secret_rules.secrets_in(value)
    parts = {part for secret in secrets for part in secret.split(",")}  # a sweep's points have the parts
    return {secret for secret in secrets | parts if len(secret) >= SHORTEST_GIVEN_SECRET}


def redact_text(text: str) -> str:
    """Return a text without secrets, for messages and logs."""
    return Redactor().text(text)


def is_masked(text: str) -> bool:
    """Tell whether a secret was replaced in a text."""
    return _MARKER.search(text) is not None


def restore(value: Any, environ: Mapping[str, str], missing: set[str]) -> Any:
    """Put secrets back into nested JSON values.

    Args:
        value: what `Redactor` made.
        environ: where the secrets are looked up. One that was given directly, such as ``--api-key x``, is
            ``SHUNTER_SECRET_API_KEY``.
        missing: receives what cannot be put back: names of variables, or "" for a secret without a name.
    """
    if isinstance(value, dict):
        return {key: restore(item, environ, missing) for key, item in value.items()}
    if isinstance(value, list):
        return [restore(item, environ, missing) for item in value]
    if not isinstance(value, str):
        return value
    if value.startswith(("{", "[")) and _MARKER.search(value):
        with contextlib.suppress(ValueError):  # in JSON, what is put back may need escapes
            return json.dumps(restore(json.loads(value), environ, missing))

    def secret(marker: re.Match[str]) -> str:
        name = marker["name"] or ""
        if name and not name.isupper():
            name = PROVIDED + re.sub(r"\W", "_", name).upper()
        if name not in environ:
            missing.add(name)
        return environ.get(name, marker[0])

    return _MARKER.sub(secret, value)


def missing_secrets_error(what: str, missing: set[str]) -> ConfigError:
    """Describe that something cannot be repeated because of these secrets."""
    names = sorted(name for name in missing if name)
    hint = f"Set them and try again: export {' '.join(f'{name}=...' for name in names)}" if names else ""
    lost = [f"the environment variable {name} is not set" for name in names]
    if "" in missing:
        lost.append("one was given directly, without a name")
        hint = f"{hint} Submit the job again with the secret, best through an environment variable.".strip()
    return ConfigError(
        f"{what} held secrets, which are never stored, and they cannot be recovered: {'; '.join(lost)}",
        hint=hint,
    )
