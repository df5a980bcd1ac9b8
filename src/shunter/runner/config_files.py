"""Reading configuration files: TOML and TorchX's INI, with the line of every value."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shunter import system
from shunter.errors import ConfigError
from shunter.paths import read_regular_file

TOML = "toml"
INI = "ini"
ENVIRONMENT = "environment"
COMMAND_LINE = "command line"
DEFAULT = "default"
#: Allowed levels of nested tables and lists.
DEEPEST = 32


class Setting:
    """A value and where it came from.

    Attributes:
        value: the value: of TOML's type, a text from other sources.
        kind: "toml", "ini", "environment", "command line" or "default".
        project: the directory of the project whose file sets it; "" if the user set it.
    """

    __slots__ = ("_origin", "kind", "project", "value")

    def __init__(
        self, value: Any, origin: str | Callable[[], str], kind: str = COMMAND_LINE, project: str = ""
    ) -> None:
        self.value = value
        self._origin = origin
        self.kind = kind
        self.project = project

    @property
    def origin(self) -> str:
        """``file:line``, the name of an environment variable, "command line" or "default"."""
        if not isinstance(self._origin, str):
            # computed on demand: finding the line means parsing again
            self._origin = self._origin()
        return self._origin

    def __repr__(self) -> str:
        return f"Setting({self.value!r}, {self.origin!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Setting):
            return NotImplemented
        return (self.value, self.origin) == (other.value, other.origin)

    __hash__ = None  # type: ignore[assignment]  # a value may be a list


class Source:
    """One configuration file, read.

    Attributes:
        path: the file.
        kind: "toml" or "ini".
        tables: its content: tables within tables, values at the ends.
        project: the directory it was found in; "" for the user's own file.
    """

    def __init__(
        self,
        path: str,
        kind: str,
        tables: Mapping[str, Any],
        line_of: Callable[[tuple[str, ...]], int],
        project: str = "",
    ) -> None:
        self.project = project
        self.path = path
        self.kind = kind
        self.tables = tables
        self._line_of = line_of

    @property
    def real_path(self) -> str:
        """The file's path, with no symbolic link on the way to it."""
        directory, name = os.path.split(os.path.abspath(self.path))
        return os.path.join(os.path.realpath(directory), name)

    @property
    def digest(self) -> str:
        """A digest of all that the file sets; not of comments, nor of tables of other programs."""
        return hashlib.sha256(repr(self.tables).encode("utf-8", "surrogatepass")).hexdigest()

    def origin(self, *keys: str) -> str:
        """Return ``file:line`` of a table or value."""
        return f"{self.path}:{self._line_of(keys)}"

    def setting(self, *keys: str) -> Setting:
        """Return a value."""
        value: Any = self.tables
        for key in keys:
            value = value[key]
        return Setting(value, lambda: self.origin(*keys), self.kind, self.project)


def read_toml(path: str, below: tuple[str, ...] = (), *, found: bool = False) -> Source | None:
    """Read a TOML file; returns None if the file, or the table in it, does not exist.

    Args:
        below: the table to read, such as ``("tool", "shunter")``.
        found: whether the file was found in a project rather than named; it must be a regular file then.

    Raises:
        ConfigError: it cannot be read, or is malformed; the message holds file and line.
    """
    text = _read(path, special=not found)
    # most pyproject.toml files have no table of ours
    if text is None or (below and below[-1] not in text):
        return None
    try:
        tables: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _malformed(path, text, error) from None
    except (RecursionError, ValueError) as error:  # a number of thousands of digits, say
        problem = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ConfigError(f"{path}: this TOML cannot be read: {problem}", hint="Correct the file.") from None
    for key in below:
        tables = tables.get(key)
        if not isinstance(tables, dict):
            return None
    if _is_deep(tables):
        raise ConfigError(f"{path}: this TOML is nested too deeply", hint="Correct the file.")
    return Source(path, TOML, tables, _TomlLines(text, below), os.path.dirname(path) if found else "")


def _is_deep(tables: dict[str, Any]) -> bool:
    """Tell whether tables are nested too deeply for the recursive functions that read them."""
    level: list[Any] = [tables]
    for _ in range(DEEPEST):
        level = [
            inner
            for item in level
            for inner in (item.values() if isinstance(item, dict) else item)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return False
    return True


def _malformed(path: str, text: str, error: Exception) -> ConfigError:
    message = str(error)
    match = re.search(r" \(at line (\d+), column \d+\)$", message)
    line = int(match[1]) if match else len(text.rstrip("\n").split("\n"))
    problem = message[: match.start()] if match else message.replace(" (at end of document)", "")
    return ConfigError(
        f"{path}:{line}: this is not valid TOML: {problem}", hint="Fix the line and try again."
    )


class _TomlLines:
    """The line of every table and key of a TOML text; read when the first one is asked for."""

    def __init__(self, text: str, below: tuple[str, ...]) -> None:
        self._text = text
        self._below = below
        self._places: dict[tuple[str, ...], int] = {}

    def __call__(self, keys: tuple[str, ...]) -> int:
        if not self._places:
            self._read()
        return self._places.get((*self._below, *keys), 1)

    def _read(self) -> None:
        table: tuple[str, ...] = ()
        for line, is_header, statement in _statements(self._text):
            paths = list(_paths(statement))
            if is_header:
                table = max(paths, key=len)
                paths = [table[:length] for length in range(1, len(table) + 1)]
            else:
                paths = [(*table, *path) for path in paths]
            for path in paths:
                self._places.setdefault(path, line)


def _statements(text: str) -> Iterator[tuple[int, bool, dict[str, Any]]]:
    """Split a valid TOML text into its statements: first line, whether it is a ``[table]``, and content.

    A statement ends where the lines since its beginning parse on their own.
    """
    pending, begun = "", 0
    for number, line in enumerate(text.split("\n"), 1):
        if not pending:
            begun = number
        pending += line + "\n"
        try:
            statement = tomllib.loads(pending)
        except ValueError:
            continue
        if statement:
            yield begun, pending.lstrip().startswith("["), statement
        pending = ""


def _paths(tables: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, value in tables.items():
        yield (key,)
        if isinstance(value, dict):
            yield from ((key, *path) for path in _paths(value))


def read_ini(path: str, *, found: bool = False) -> Source | None:
    """Read a ``.torchxconfig``; returns None if it does not exist. See `read_toml`.

    Keys keep their case; ``#`` and ``;`` begin comments at the start of a line only; an indented line
    continues the value above it.

    Raises:
        ConfigError: it cannot be read, or is malformed; the message holds file and line.
    """
    text = _read(path, special=not found)
    if text is None:
        return None
    tables: dict[str, dict[str, str]] = {}
    places: dict[tuple[str, ...], int] = {}
    section, key = "", ""
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line[0] == "[" and line[-1] == "]":
            section, key = line[1:-1].strip(), ""
            tables.setdefault(section, {})
            places.setdefault((section,), number)
        elif raw[0].isspace() and key:
            tables[section][key] += "\n" + line
        else:
            key, value = _ini_pair(path, number, line, section)
            tables[section][key] = value
            places[section, key] = number
    project = os.path.dirname(path) if found else ""
    return Source(path, INI, tables, lambda keys: places.get(keys, 1), project)


def _ini_pair(path: str, number: int, line: str, section: str) -> tuple[str, str]:
    positions = [position for position in (line.find("="), line.find(":")) if position > 0]
    problem = "" if positions else "this is neither a [section] nor key = value"
    if not section:
        problem = "this is before the first [section]"
    if problem:
        raise ConfigError(
            f"{path}:{number}: {problem}: {line!r}",
            hint="Example: [local_cwd], and below it log_dir = /tmp/x",
        )
    cut = min(positions)
    return line[:cut].strip(), line[cut + 1 :].strip()


def _read(path: str, *, special: bool) -> str | None:
    # a shell's <(...) is a pipe below /dev or /proc, and meant so
    if special:
        special = os.path.exists(path) and not os.path.isfile(path) and system.is_pipe_path(path)
    try:
        return read_regular_file(path, special=special).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path}: this is not UTF-8 text (byte {error.start})", hint="Save it as UTF-8."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration file {path}: {error.strerror}",
            hint="Make it a regular file that you can read, or remove it.",
        ) from None
