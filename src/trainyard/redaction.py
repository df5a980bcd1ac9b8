"""Keeping secrets out of what is stored and shown. The one place that knows what looks like a secret.

A secret is replaced by ``<redacted>``, or by ``<redacted:NAME>`` where the environment variable NAME is
known to hold it: then `restore` can put it back later, from the environment of that time.
"""

from __future__ import annotations

import os
import re

from trainyard.errors import ConfigError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

REDACTED = "<redacted>"
SHORTEST_KNOWN_SECRET = 8
SHORTEST_URL_TOKEN = 16
#: A shorter one on the command line is as likely part of another word of a message.
SHORTEST_GIVEN_SECRET = 4

# A name is secret when one of its words is; "tokenizer" and "max_tokens" are about text, not access.
_WORDS = (
    r"(?:auth|access|session|refresh|hf)?tokens?|[a-z]*secrets?|[a-z]*(?:passwords?|passwd|passphrases?)|"
    r"pwd|credentials?|creds?|[a-z]*apikeys?|api[_-]keys?|access[_-]?keys?|secret[_-]?keys?|private[_-]?keys?|auth[_-]?keys?|"
    r"account[_-]?keys?|sas|bearer|authorization|client[_-]?secret|connection[_-]?string|dsn"
)
_SECRET_NAME = re.compile(rf"(?:^|[_.\-])(?:{_WORDS})(?:$|[_.\-]\d*$|[_.\-](?:id|value|str|text)$)", re.I)
_HARMLESS_NAME = re.compile(
    r"(?:^|[_.\-])(?:max|min|num|n|pad|eos|bos|unk|mask|sep|cls|special|next|new|per|count|total)[_.\-]?tokens?"
    r"(?:$|[_.\-])|tokens?[_.\-](?:id|count|len|length)$|(?:^|[_.\-])num[_.\-]|access[_.\-]?key[_.\-]id$",
    re.I,
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
# Neither may look at the same characters from every place anew: arguments can be long.
_USERINFO = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.\-]{0,40}://)(?P<user>[^\s/?#'\"<>]+)@")
_ASSIGNMENT = re.compile(r"(?<![A-Za-z0-9_.\-])[0-9.\-]*(?P<name>[A-Za-z_][\w.\-]*)(?P<sep>[\"']?\s*[=:]\s*)")
# after "Authorization:" the kind of the credentials comes before them
_VALUE = re.compile(r"'[^']*'|\"[^\"]*\"|(?:(?:bearer|basic|digest|token)\s+)?[^\s,;&'\"]+", re.I)
# The name of a secret that AWS keeps, which is none itself.
_REFERENCE = re.compile(r"(?:arn:aws[\w-]*:(?:secretsmanager|ssm):|ssm:)\S+")
_MARKER = re.compile(r"<redacted(?::(?P<name>[^<>]+))?>")


def is_secret_name(name: str) -> bool:
    """Tell whether a variable, option or field of this name holds a secret."""
    if name == "PWD":
        return False  # the shell's working directory
    words = _CAMEL.sub("_", name.lstrip("-"))
    return bool(_SECRET_NAME.search(words)) and not _HARMLESS_NAME.search(words)


class Redactor:
    """Replaces secrets in texts and in nested JSON values.

    Args:
        environ: the environment whose secret variables are looked for, by value, in every text; the
            process's own by default.
    """

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        self._environ = os.environ if environ is None else environ
        known = {
            value: name
            for name, value in self._environ.items()
            if len(value) >= SHORTEST_KNOWN_SECRET and is_secret_name(name)
        }
        # the longest first, so that a secret that contains another one is replaced whole
        self._known = sorted(known.items(), key=lambda item: -len(item[0]))

    def text(self, text: str) -> str:
        """Return a text without the secrets in it: known values, URLs' user parts, ``password=...``."""
        for value, name in self._known:
            if value in text:
                text = text.replace(value, f"<redacted:{name}>")
        if "://" in text:
            text = _USERINFO.sub(self._userinfo, text)
        if "=" in text or ":" in text:
            text = self._assignments(text)
        return text

    def value(self, name: str, value: Any) -> Any:
        """Return a named value: replaced if the name is that of a secret, otherwise redacted within.

        Numbers are left alone: ``max_tokens`` is one, a password is a text.
        """
        if is_secret_name(name) and not isinstance(value, (int, float)):
            return self.secret(name, value)
        return self.json(value)

    def secret(self, name: str, value: Any) -> Any:
        """Return what stands for a value that is a secret whatever it looks like."""
        if isinstance(value, dict):
            return {key: self.secret(str(key), item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.secret(name, item) for item in value]
        if value is None or value == "" or isinstance(value, bool):
            return value
        if isinstance(value, str) and (_MARKER.fullmatch(value) or _REFERENCE.fullmatch(value)):
            return value
        return self._marker(name, str(value))

    def json(self, value: Any) -> Any:
        """Return nested JSON values without the secrets in them."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            # {"name": "HF_TOKEN", "value": "..."} is how manifests write variables
            named = value.get("name") if "value" in value else None
            own = named if isinstance(named, str) else "value"
            return {key: self.value(own if key == "value" else str(key), item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return self.args(value)
        return value

    def args(self, args: Iterable[Any]) -> list[Any]:
        """Return a list of arguments; what follows ``--some-token`` is a secret."""
        result: list[Any] = []
        flag = ""
        for arg in args:
            if flag and isinstance(arg, str) and not arg.startswith("--"):
                result.append(self.secret(flag, arg))
            else:
                result.append(self.json(arg))
            is_flag = isinstance(arg, str) and arg.startswith("-") and "=" not in arg
            flag = arg.lstrip("-") if is_flag and is_secret_name(arg) else ""
        return result

    def _marker(self, name: str, value: str) -> str:
        if self._environ.get(name) == value:
            return f"<redacted:{name}>"
        for variable, held in self._environ.items():
            if held == value:
                return f"<redacted:{variable}>"
        # a role's variable is most often given by one of the same name
        return f"<redacted:{name}>" if name.isidentifier() and name.isupper() else REDACTED

    def _userinfo(self, match: re.Match[str]) -> str:
        user, colon, password = match["user"].partition(":")
        if not colon and len(user) < SHORTEST_URL_TOKEN:
            return match[0]  # ssh://git@host
        kept = f"{user}:" if colon else ""
        hidden = password if colon else user
        return f"{match['scheme']}{kept}{self._marker('', hidden)}@"

    def _assignments(self, text: str) -> str:
        parts, done = [], 0
        for match in _ASSIGNMENT.finditer(text):
            value = _VALUE.match(text, match.end())
            if value is None or match.start("name") < done or not is_secret_name(match["name"]):
                continue
            quote = value[0][0] if value[0][0] in "'\"" else ""
            bare = value[0][1:-1] if quote else value[0]
            if bare and not _MARKER.search(bare) and not bare.startswith(("$", "//")):
                parts += [text[done : match.end()], quote, self._marker(match["name"], bare), quote]
                done = value.end()
        return "".join(parts) + text[done:]


def secrets_among(words: Iterable[str]) -> set[str]:
    """Return the secrets that a command line holds: what follows ``--token``, and ``TOKEN=``."""
    found: set[str] = set()
    follows = False
    for word in words:
        if follows and not word.startswith("--"):
            found.add(word)
        follows = word.startswith("-") and "=" not in word and is_secret_name(word)
        for match in _ASSIGNMENT.finditer(word):
            value = _VALUE.match(word, match.end())
            if value is not None and is_secret_name(match["name"]):
                found.add(value[0].strip("'\""))
            elif value is None and is_secret_name(match["name"]):  # a quote that is never closed
                found.add(word[match.end() :].lstrip("'\""))
    return {secret for secret in found if len(secret) >= SHORTEST_GIVEN_SECRET}


def redact_text(text: str) -> str:
    """Return a text without secrets, for messages and logs."""
    return Redactor().text(text)


def restore(value: Any, environ: Mapping[str, str], missing: set[str]) -> Any:
    """Put secrets back into nested JSON values.

    Args:
        value: what `Redactor` made.
        environ: where the secrets are looked up.
        missing: receives what cannot be put back: names of variables, or "" for a secret without a name.
    """
    if isinstance(value, str):
        return _MARKER.sub(lambda match: _lookup(match, environ, missing), value)
    if isinstance(value, dict):
        return {key: restore(item, environ, missing) for key, item in value.items()}
    if isinstance(value, list):
        return [restore(item, environ, missing) for item in value]
    return value


def _lookup(match: re.Match[str], environ: Mapping[str, str], missing: set[str]) -> str:
    name = match["name"] or ""
    if name in environ:
        return environ[name]
    missing.add(name)
    return match[0]


def missing_secrets_error(what: str, missing: set[str]) -> ConfigError:
    """Describe that something cannot be repeated because of these secrets."""
    names = sorted(name for name in missing if name)
    lost = [f"the environment variable {name} is not set" for name in names]
    if "" in missing:
        lost.append("one was given directly and is known by no name")
    exports = " ".join(f"{name}=..." for name in names)
    hint = f"Set them and try again: export {exports}" if names else ""
    if "" in missing:
        hint = f"{hint} Submit the job anew with the secret, best through an environment variable.".strip()
    return ConfigError(
        f"{what} held secrets, which are never stored, and they cannot be recovered: {'; '.join(lost)}",
        hint=hint,
    )
