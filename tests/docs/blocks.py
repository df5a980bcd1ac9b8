"""What a document asks its reader to do: commands with their output, files to make, Python to run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

FENCE = re.compile(r"^(?P<fence>`{3,})(?P<language>\w*)[^`]*$")
FILE_NAME = re.compile(r"^# (?P<name>[\w./-]+\.\w+)$")

COMMAND, FILE, PYTHON = "command", "file", "python"


@dataclass
class Step:
    """One thing to do. ``text`` is the command or the content; ``shown`` the output lines, if any."""

    kind: str
    line: int
    text: str
    name: str = ""
    shown: list[str] = field(default_factory=list)


@dataclass
class Block:
    """A fenced block. ``line`` is that of its first line of content."""

    language: str
    line: int
    lines: list[str]


def read_blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a document."""
    blocks: list[Block] = []
    fence = ""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = FENCE.match(line)
        if fence and line.strip() == fence:
            fence = ""
        elif fence:
            blocks[-1].lines.append(line)
        elif match:
            fence = match["fence"]
            blocks.append(Block(match["language"], number + 1, []))
    assert not fence, f"{path}: a block is not closed"
    return blocks


def read_steps(path: Path) -> list[Step]:
    """Return what the document asks for, in order."""
    return [step for block in read_blocks(path) for step in steps_of(block)]


def steps_of(block: Block) -> list[Step]:
    """Return the steps of a block: commands of ``console``, files that begin with their name, Python."""
    if block.language == "console":
        return _commands(block)
    named = FILE_NAME.match(block.lines[0]) if block.lines else None
    if named is None and block.language != "python":
        return []
    text = "\n".join(block.lines) + "\n"
    steps = []
    if named is not None:
        steps.append(Step(FILE, block.line, text, named["name"]))
    if block.language == "python" and not (named and "torch.distributed" in text):  # a launcher runs those
        steps.append(Step(PYTHON, block.line, text, named["name"] if named else ""))
    return steps


def _commands(block: Block) -> list[Step]:
    steps: list[Step] = []
    for number, line in enumerate(block.lines, block.line):
        if line.startswith("$ "):
            steps.append(Step(COMMAND, number, line[2:]))
        elif line.startswith("> ") and steps and not steps[-1].shown:
            steps[-1].text += "\n" + line[2:]
        else:
            assert steps, f"line {number}: a console block begins with a command: $ ..."
            steps[-1].shown.append(line)
    return steps
