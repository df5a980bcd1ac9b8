"""A workspace's own Dockerfile: what it is made from, and what it needs to be built.

Read here is only what has to be known before a build. Building, and finding errors, is Docker's.
https://docs.docker.com/reference/dockerfile/
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

#: Names at the workspace's root, the first that is there is taken.
DOCKERFILES = ("Dockerfile.trainyard", "Dockerfile.torchx")
#: What the build is told: the role's image, and the workspace.
IMAGE_ARG, WORKSPACE_ARG = "IMAGE", "WORKSPACE"

_DIRECTIVE = re.compile(r"^#\s*(?P<name>[a-z]+)\s*=\s*(?P<value>\S+)\s*$", re.I)
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::(?P<how>[-+])(?P<word>[^}]*))?\}|(?P<plain>\w+))")
_HEREDOC = re.compile(r"<<-?\s*[\"']?(?P<word>\w+)[\"']?")
_FLAG = re.compile(r"^--(?P<name>[a-z-]+)(?:=(?P<value>.*))?$")
#: Flags and forms that only BuildKit knows.
_NEW_FLAGS = {
    "RUN": {"mount", "network", "security"},
    "COPY": {"link", "chmod", "parents", "exclude"},
    "ADD": {"link", "chmod", "checksum", "keep-git-dir", "exclude"},
}


@dataclass
class Dockerfile:
    """What is to be known of a Dockerfile.

    Attributes:
        bases: images that it is built from, in order; stages of its own and ``scratch`` left out. One whose
            name depends on what is not known here is left out too.
        sources: paths and patterns that it copies from the context.
        buildkit: what in it only BuildKit can do, as the user wrote it; "" if nothing.
    """

    bases: list[str] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)
    buildkit: str = ""


def parse(text: str, build_args: Mapping[str, str]) -> Dockerfile:
    """Read a Dockerfile.

    Args:
        text: its content.
        build_args: values of its ``ARG`` instructions that are given.
    """
    result = Dockerfile()
    directives, escape = _directives(text)
    if "syntax" in directives:
        result.buildkit = f"# syntax={directives['syntax']}"
    variables: dict[str, str] = {}
    stages: set[str] = set()
    in_stage = False
    for word, rest in _instructions(text, escape, result):
        flags, words = _words(rest)
        if word == "ARG" and not in_stage:
            for name, given, default in (part.partition("=") for part in words):
                if name in build_args or given:
                    variables[name] = build_args.get(name, _substitute(default, variables) or "")
        elif word == "FROM" and words:
            in_stage = True
            base = _substitute(words[0], variables)
            if base and base != "scratch" and base.lower() not in stages and base not in result.bases:
                result.bases.append(base)
            if len(words) == 3 and words[1].upper() == "AS":
                stages.add(words[2].lower())
        elif word in ("COPY", "ADD"):
            source = flags.get("from", "")
            if not source:
                result.sources += [item for item in words[:-1] if "://" not in item and "<<" not in item]
            elif word == "COPY" and not source.isdigit() and source.lower() not in stages:
                result.bases += [source] if source not in result.bases else []
        if not result.buildkit and flags.keys() & _NEW_FLAGS.get(word, set()):
            result.buildkit = f"{word} " + " ".join(f"--{name}" for name in flags)
    return result


def _directives(text: str) -> tuple[dict[str, str], str]:
    found = {}
    for line in text.lstrip("\ufeff").splitlines():
        match = _DIRECTIVE.match(line)
        if match is None:
            break
        found[match["name"].lower()] = match["value"]
    return found, found.get("escape", "\\")


def _instructions(text: str, escape: str, result: Dockerfile) -> Iterator[tuple[str, str]]:
    """Yield instructions with what follows, lines joined, comments and here-documents left out."""
    lines = iter(text.lstrip("\ufeff").splitlines())
    pending = ""
    for line in lines:
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        if bare.endswith(escape):
            pending += bare[:-1] + " "
            continue
        word, _, rest = (pending + bare).partition(" ")
        pending = ""
        word = word.upper()
        if word in ("RUN", "COPY", "ADD"):
            for match in _HEREDOC.finditer(rest):
                result.buildkit = result.buildkit or f"{word} <<{match['word']}"
                _skip_until(lines, match["word"])
        yield word, rest.strip()
    if pending:
        word, _, rest = pending.partition(" ")
        yield word.upper(), rest.strip()


def _skip_until(lines: Iterator[str], word: str) -> None:
    for line in lines:
        if line.lstrip("\t") == word:
            return


def _words(rest: str) -> tuple[dict[str, str], list[str]]:
    """Split what follows an instruction into flags and words; reads the JSON form too."""
    flags: dict[str, str] = {}
    while match := _FLAG.match(rest.partition(" ")[0]):
        flags[match["name"]] = match["value"] or ""
        rest = rest.partition(" ")[2].strip()
    if rest.startswith("["):
        return flags, re.findall(r'"((?:[^"\\]|\\.)*)"', rest)
    try:
        return flags, shlex.split(rest)
    except ValueError:  # an apostrophe in a RUN line
        return flags, rest.split()


def _substitute(text: str, variables: Mapping[str, str]) -> str | None:
    """Put variables in; None where one has no value."""
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        name = match["braced"] or match["plain"]
        known = variables.get(name, "")
        if match["how"] == "-":
            return known or match["word"]
        if match["how"] == "+":
            return match["word"] if known else ""
        missing = missing or name not in variables
        return known

    replaced = _VARIABLE.sub(value, text)
    return None if missing else replaced
