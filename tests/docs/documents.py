"""The documents, and what a reader of each has before it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
LAUNCHER = ROOT / "src" / "shunter"
TOOLKIT = ROOT / "toolkit" / "src" / "shunter_toolkit"

#: Commands that cannot be run here: they install, or run all there is, this test included.
#: The last one serves until Ctrl-C, and is run by tests/sagemaker/local.
EXEMPT = ("make demo", "make test", "pip install", "git clone", "shunter sagemaker-local serve")

#: Files that a document takes for granted.
GIVEN = {
    "docs/components.md": {"train.py": "import sys\nprint(sys.argv[1:])\n"},
    "docs/schedulers/aws_sagemaker.md": {"train.py": "print('hello')\n"},
    "docs/schedulers/sagemaker_local.md": {"train.py": "print('hello')\n"},
}

#: Checked by other tests, against the code that they are made from.
GENERATED = ROOT / "docs" / "reference"


def documents() -> list[Path]:
    """Return all documents for users and developers."""
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def rooms() -> list[Path]:
    """Return the folders of code that have a README: first level, schedulers, and a few more."""
    folders = [LAUNCHER / "workspace" / "images", TOOLKIT]
    for parent in (LAUNCHER, LAUNCHER / "schedulers", TOOLKIT):
        folders += [path.parent for path in parent.glob("*/__init__.py") if not path.parent.is_symlink()]
    return sorted(path for path in folders if path != TOOLKIT / "apps")


def readmes() -> list[Path]:
    """Return the README of each room, for developers."""
    return [room / "README.md" for room in rooms()]


def name_of(path: Path) -> str:
    """Return a document's path within the project."""
    return path.relative_to(ROOT).as_posix()


def with_commands() -> list[Path]:
    """Return the documents whose commands are run: README.md, SKILL.md and docs/."""
    return [
        path
        for path in documents()
        if path.name in ("README.md", "SKILL.md")
        or (ROOT / "docs" in path.parents and GENERATED not in path.parents)
    ]
