"""The help of a component, from its signature and docstring."""

from __future__ import annotations

import enum
import re
import shutil
import textwrap
from typing import TYPE_CHECKING, Any

from shunter.components.parameters import Parameter
from shunter.specs.conversion import bare_type, type_name

if TYPE_CHECKING:
    from shunter.components.component import Component

_COLUMN = 26


def help_text(component: Component, prog: str) -> str:
    """Return usage, description and parameters, as wide as the terminal."""
    width = max(60, min(100, shutil.get_terminal_size((100, 24)).columns))
    description, notes = read_docstring(component.fn.__doc__)
    parameters = [p for p in component.parameters if p.name not in component.preset]
    if component.preset:
        parameters = [p for p in parameters if p.is_varargs]
    lines = [_usage(prog, parameters, width), ""]
    if description:
        lines += [*_paragraphs(description, width), ""]
    if parameters:
        lines.append("arguments:")
        for parameter in sorted(parameters, key=lambda p: not p.required):
            lines += _entry(parameter, notes.get(parameter.name, ""), width)
        lines += ["", *textwrap.wrap(_footer(parameters, everything=bool(component.preset)), width)]
    return "\n".join(lines).rstrip() + "\n"


def read_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """Return the description of a docstring (Google, NumPy or reST style) and its notes on parameters."""
    if not doc:
        return "", {}
    from docstring_parser import ParseError, parse

    try:
        parsed = parse(doc)
    except ParseError:
        return textwrap.dedent(doc).strip(), {}
    parts = [part for part in (parsed.short_description, parsed.long_description) if part]
    notes = {
        param.arg_name.lstrip("*"): " ".join((param.description or "").split()) for param in parsed.params
    }
    return "\n\n".join(parts), notes


def _usage(prog: str, parameters: list[Parameter], width: int) -> str:
    words = []
    for parameter in sorted((p for p in parameters if not p.is_varargs), key=lambda p: not p.required):
        word = parameter.options[0]
        if not parameter.is_flag:
            word += f" {_metavar(parameter)}"
        words.append(word if parameter.required else f"[{word}]")
    words += [("[--] " if words else "") + f"[{p.name} ...]" for p in parameters if p.is_varargs]
    head = f"usage: {prog} "
    indent = " " * min(len(head), 20)
    protected = [word.replace(" ", "\0") for word in words]  # an option stays with its value
    text = textwrap.fill(
        head + " ".join(protected),
        width,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return text.replace("\0", " ")


def _paragraphs(text: str, width: int) -> list[str]:
    lines: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        verbatim = any(line.startswith((" ", "\t", "$ ", "- ")) for line in block.splitlines())
        lines += block.splitlines() if verbatim else textwrap.wrap(block, width)
        lines.append("")
    return lines[:-1]


def _entry(parameter: Parameter, note: str, width: int) -> list[str]:
    if parameter.is_varargs:
        left = f"{parameter.name} ..."
    elif parameter.is_flag:
        left = f"{parameter.options[0]}, --no-{parameter.options[0].lstrip('-')}"
    else:
        aliases = "".join(f", {alias}" for alias in parameter.aliases)
        left = f"{parameter.options[0]}{aliases} {_metavar(parameter)}"
    text = " ".join(part for part in (note or parameter.note, _facts(parameter)) if part)
    body = textwrap.wrap(text, width - _COLUMN) or [""]
    first = f"  {left}"
    if len(first) > _COLUMN - 2:
        return [first, *(" " * _COLUMN + line for line in body if line)]
    return [first.ljust(_COLUMN) + body[0], *(" " * _COLUMN + line for line in body[1:])]


def _facts(parameter: Parameter) -> str:
    facts = []
    if parameter.choices and not parameter.is_flag:
        facts.append("one of " + ", ".join(parameter.choices))
    if parameter.is_repeatable:
        facts.append("can be repeated")
    if parameter.required:
        facts.append("required")
    elif not parameter.is_varargs and not _is_empty(parameter.default):
        facts.append(f"default: {_shown(parameter.default)}")
    return f"({'; '.join(facts)})" if facts else ""


def _is_empty(value: Any) -> bool:
    return value is None or value in ("", "<NONE>", (), [], {})


def _shown(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ",".join(_shown(item) for item in value)
    if isinstance(value, dict):
        return ",".join(f"{key}={_shown(item)}" for key, item in value.items())
    return str(value)


def _metavar(parameter: Parameter) -> str:
    if parameter.choices:
        return parameter.name.upper()
    name = type_name(bare_type(parameter.type)).upper()
    return {"STR": "TEXT", "LIST[STR]": "A,B,...", "DICT[STR, STR]": "K=V,..."}.get(
        name, name.replace(" ", "")
    )


def _footer(parameters: list[Parameter], *, everything: bool) -> str:
    if everything:
        return "Every word after the name is passed unchanged."
    text = "Options can be written with hyphens or underscores."
    name = next((p.name for p in parameters if p.is_varargs), "")
    if name:
        text += (
            f" Everything from the first word that is not an option, or after '--', is {name} "
            "and is passed unchanged."
        )
    return text
