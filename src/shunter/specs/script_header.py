"""The header of a script: a block of comments that holds TOML, as PEP 723 defines it.

It names the packages that the script needs (``dependencies``, ``requires-python``), and in ``[tool.shunter]``
how it wants to run.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

from shunter.errors import ConfigError

# The expression of PEP 723's reference implementation, for blocks of type "script".
_BLOCK = re.compile(r"(?m)^# /// script[ \t]*\r?$\s(?P<content>(^#(| .*)\r?$\s)+)^# ///[ \t]*\r?$")
#: What counts in the first two lines only: the interpreter, the encoding.
_FIRST_LINES = re.compile(r"#!|[ \t\f]*#.*?coding[:=]")


def with_header(text: str, lines: Sequence[str]) -> str:
    """Return a script with a header, behind its first lines (``#!``, coding); nothing else is changed.

    Args:
        text: the script, which has no header yet.
        lines: the lines of TOML, without ``#``.
    """
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    script = text.removeprefix(mark).splitlines(keepends=True)
    newline = "\r\n" if script and script[0].endswith("\r\n") else "\n"
    first = max((k for k, line in enumerate(script[:2], 1) if _FIRST_LINES.match(line)), default=0)
    before = "".join(script[:first])
    if before and not before.endswith("\n"):
        before += newline
    header = ["# /// script", *(f"# {line}".rstrip() for line in lines), "# ///", ""]
    return mark + before + newline.join(header) + "".join(script[first:])


def without_header(text: str) -> str:
    """Return a script without its header."""
    return _BLOCK.sub("", text)


def read_header(text: str, name: str = "the script") -> dict[str, Any] | None:
    """Return the header of a script as TOML's values; None if it has none.

    Args:
        text: the whole script.
        name: what messages call it.

    Raises:
        ConfigError: it has two headers, or one that is not TOML.
    """
    matches = list(_BLOCK.finditer(text))
    if not matches:
        return None
    if len(matches) > 1:
        raise ConfigError(f"{name} has {len(matches)} headers `# /// script`", hint="Keep one of them.")
    lines = matches[0].group("content").splitlines()
    toml = "\n".join(line[2:] if line.startswith("# ") else line[1:] for line in lines)
    try:
        return tomllib.loads(toml)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"the header `# /// script` of {name} is not TOML: {error}",
            hint="Each of its lines is a comment: `# dependencies = ['numpy']`.",
        ) from None


def find_block(text: str) -> str:
    """Return a script's header as it is written, as comments; "" if it has none."""
    match = _BLOCK.search(text)
    return f"{match[0]}\n" if match else ""
