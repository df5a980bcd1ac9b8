"""The help of a component, from its signature and docstring."""

from __future__ import annotations

import enum
import re
import textwrap
from argparse import ArgumentParser, BooleanOptionalAction, HelpFormatter
from collections.abc import Sequence
from typing import Any

from shunter.components.parameters import Parameter
from shunter.specs.conversion import bare_type, type_name

_METAVARS = {"STR": "TEXT", "LIST[STR]": "A,B,...", "DICT[STR, STR]": "K=V,..."}


class _Formatter(HelpFormatter):
    """Wraps each paragraph by itself, and leaves lists, commands and indented text as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(
            block
            if any(line.startswith((" ", "\t", "$ ", "- ")) for line in block.splitlines())
            else textwrap.fill(block, width, initial_indent=indent, subsequent_indent=indent)
            for block in re.split(r"\n\s*\n", text)
        )


def help_text(doc: str | None, parameters: Sequence[Parameter], prog: str, footer: str = "") -> str:
    """Return usage, description and parameters, as wide as the terminal.

    Args:
        doc: the docstring of the component.
        parameters: those to show.
        prog: what precedes the arguments in the usage.
        footer: the last paragraph; by default how options are written.
    """
    description, notes = read_docstring(doc)
    parser = ArgumentParser(
        prog=prog,
        description=description,
        epilog=(footer or _footer(parameters)) if parameters else "",
        add_help=False,
        formatter_class=_Formatter,
        conflict_handler="resolve",
    )
    group = parser.add_argument_group("arguments")
    for parameter in sorted(parameters, key=lambda parameter: not parameter.required):
        note = notes.get(parameter.name) or parameter.note
        text = " ".join(filter(None, [note, _facts(parameter)])).replace("%", "%%")
        if parameter.is_varargs:
            group.add_argument(parameter.name, nargs="*", help=text)
            continue
        more: dict[str, Any] = {"metavar": _metavar(parameter)}
        if parameter.is_flag:
            more = {"action": BooleanOptionalAction}
        names = (parameter.options[0], *parameter.aliases)
        group.add_argument(*names, required=parameter.required, help=text, **more)
    return parser.format_help()


def read_docstring(doc: str | None) -> tuple[str, dict[str, str]]:
    """Return the description of a docstring (Google, NumPy or reST style) and its notes on parameters."""
    if not doc:
        return "", {}
    from docstring_parser import ParseError, parse  # takes 100 ms to import

    try:
        parsed = parse(doc)
    except ParseError:
        return textwrap.dedent(doc).strip(), {}
    parts = [part for part in (parsed.short_description, parsed.long_description) if part]
    notes = {
        param.arg_name.lstrip("*"): " ".join((param.description or "").split()) for param in parsed.params
    }
    return "\n\n".join(parts), notes


def _facts(parameter: Parameter) -> str:
    facts = []
    if parameter.choices and not parameter.is_flag:
        facts.append("one of " + ", ".join(parameter.choices))
    if parameter.is_repeatable:
        facts.append("can be repeated")
    if parameter.required:
        facts.append("required")
    elif not parameter.is_varargs and parameter.default not in (None, "", "<NONE>", (), [], {}):
        facts.append(f"default: {_shown(parameter.default)}")
    return f"({'; '.join(facts)})" if facts else ""


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_shown, value))
    if isinstance(value, dict):
        return ",".join(f"{key}={_shown(item)}" for key, item in value.items())
    if isinstance(value, enum.Enum):
        return value.name
    return str(value).lower() if isinstance(value, bool) else str(value)


def _metavar(parameter: Parameter) -> str:
    if parameter.choices:
        return parameter.name.upper()
    name = type_name(bare_type(parameter.type)).upper()
    return _METAVARS.get(name, name.replace(" ", ""))


def _footer(parameters: Sequence[Parameter]) -> str:
    text = "Options can be written with hyphens or underscores."
    for parameter in parameters:
        if parameter.is_varargs:
            text += " Everything from the first word that is not an option, or after '--', is "
            text += f"{parameter.name} and is passed unchanged."
    return text
