"""What a container's command runs, read from the shell script that `command` has made of it.

A training job that is described holds the script, not the program: this finds the program again, for people.
Scripts of others are not understood, and left as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from trainyard.schedulers.aws.sagemaker.start_script import BOOTSTRAP, REPLICA_INDEX, TOOLKIT_FILE
from trainyard.specs.substitution import macros

_ARMS = 'case "$g" in '
_WORDS = "set -- "
_TRAIN = f'{TOOLKIT_FILE}" train'
_OCTAL = re.compile(r"\$\(printf '((?:\\[0-7]{3})+)'\)")


@dataclass
class Recovered:
    """What the replicas of a role run.

    Attributes:
        words: the program and its arguments; of the toolkit those of the script.
        env: variables of this role alone.
        toolkit: whether the toolkit runs it.
    """

    words: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    toolkit: bool = False


def read_command(items: Sequence[str]) -> dict[str, Recovered]:
    """Return what is run, by role; the name is "" where the script serves one role alone.

    Args:
        items: ``ContainerEntrypoint`` and ``ContainerArguments``, together.

    Returns:
        Nothing if the command is none of ours.
    """
    if list(items[: len(BOOTSTRAP)]) != BOOTSTRAP:
        return {}
    found: dict[str, Recovered] = {}
    role, current = "", Recovered()
    for given in _after_prologue("".join(items[len(BOOTSTRAP) :])):
        name, statement = _arm(given)
        if name is not None:
            role, current = name, Recovered()
        if statement.startswith("export "):
            key, _, value = statement.removeprefix("export ").partition("=")
            current.env[key] = _text(value)
        elif statement.startswith(_WORDS):
            current.words = _words(statement.removeprefix(_WORDS))
            found[role] = current
        elif statement.startswith("exec ") and _TRAIN in statement:
            current.words = _words(statement.partition(_TRAIN)[2])[1:]  # after the "--"
            current.env.pop("SAGEMAKER_SUBMIT_DIRECTORY", None)
            current.toolkit = True
            found[role] = current
    return found


def _after_prologue(script: str) -> Iterator[str]:
    """Return the statements after those that find out which replica this is."""
    statements = _split(script, ";")
    for statement in statements:
        if statement.startswith("export ") and f" {REPLICA_INDEX}=" in statement:
            break
    yield from statements


def _arm(statement: str) -> tuple[str | None, str]:
    """Return the role whose part of the script begins here, if one does, and the statement."""
    is_first = statement.startswith(_ARMS)
    pattern, *rest = _split(statement.removeprefix(_ARMS), ")")
    is_plain = " " not in pattern and "=" not in pattern and pattern != "*"
    if not rest or not (is_first or is_plain):
        return None, statement
    return _text(pattern), ")".join(rest)


def _words(text: str) -> list[str]:
    return [_text(part) for part in _split(text, " ") if part]


def _split(text: str, separator: str) -> Iterator[str]:
    quote, start = "", 0
    for position, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == separator:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _text(word: str) -> str:
    """Return what `command.word` was given."""
    parts = re.findall(r"'[^']*'|\"[^\"]*\"|[^'\"]+", word)
    return "".join(_part(part) for part in parts)


def _part(part: str) -> str:
    if part[0] not in "'\"":
        return part
    inner = part[1:-1]
    if part[0] == "'":
        return inner
    octal = _OCTAL.fullmatch(inner)
    if octal is not None:
        return bytes(int(digits, 8) for digits in octal[1].split("\\")[1:]).decode()
    return {"$r": macros.replica_id, "$n": "\n"}.get(inner, inner)
