"""`.dockerignore` means to us what it means to Docker: the same patterns, given to a real daemon."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.errors import WorkspaceError
from shunter.workspace.ignore import DockerRules
from shunter.workspace.selection import select
from tests.backends import need
from tests.workspace.conftest import chosen, write

FILES = [
    "a.py",
    "b.md",
    "README.md",
    "README-secret.md",
    "x+y.txt",
    "src/a.py",
    "src/b.md",
    "src/deep/c.py",
    "src/deep/er/d.py",
    "build/out.o",
    "build/keep/k.txt",
    "docs/README.md",
    "docs/old/z.md",
    "t1/f",
    "t2/f",
    "t12/f",
    ".hidden",
]

CASES = [
    "",
    "# only a comment\n\n",
    "*.md",
    "**/*.md",
    "*.md\n!README.md",
    "*.md\n!README*.md\nREADME-secret.md",
    "*.md\nREADME-secret.md\n!README*.md",
    "build",
    "build/",
    "/build",
    "./build",
    "build/*",
    "build\n!build/keep",
    "build/\n!build/keep/k.txt",
    "build/**\n!build/keep",
    "*\n!src",
    "*\n!src/deep",
    "**\n!src/a.py",
    "*\n!src\nsrc/deep",
    "src/deep/../a.py",
    "src/**/d.py",
    "**/deep",
    "**/er/**",
    "src/*/*",
    "*/*",
    "*/*/*.py",
    "t?",
    "t[12]",
    "t[^1]",
    "t[0-1]",
    "x\\+y.txt",
    " build  ",
    "! build\nbuild",
    "build\n! build",
    ".*",
    "README.md\n!README.md\nREADME.md",
    "nothing/../docs/old",
    "docs/**/z.md",
    "**/README.md\n!docs/README.md",
    "src*",
    "s?c/*.py",
    "../outside",
    ".",
    "src**",
    "**c/a.py",
]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("context")
    write(root, {path: path for path in FILES})
    return root


def listed_by_docker(context: Path, recipe: Path) -> set[str]:
    """Return what a daemon copies from a build context. Builds no image."""
    recipe.write_text("FROM scratch\nCOPY . /\n")
    done = subprocess.run(
        ["docker", "build", "-q", "-f", str(recipe), "-o", "type=tar,dest=-", str(context)],
        env={**os.environ, "DOCKER_BUILDKIT": "1", "PATH": f"/usr/bin:{os.environ['PATH']}"},
        capture_output=True,
        check=False,
        timeout=50,
    )
    assert done.returncode == 0, done.stderr.decode()
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        return {member.name for member in archive if member.isfile()} - {".dockerignore"}


def listed_by_us(context: Path) -> set[str]:
    return chosen(context) - {".dockerignore"}


@pytest.mark.slow
@pytest.mark.xdist_group("docker")
@pytest.mark.parametrize("text", CASES)
def test_the_daemon_takes_the_same(context: Path, tmp_path: Path, text: str) -> None:
    need("docker")
    (context / ".dockerignore").write_text(text)
    assert listed_by_us(context) == listed_by_docker(context, tmp_path / "Dockerfile")


PARTS = st.sampled_from(
    ["a.py", "b.md", "src", "deep", "docs", "old", "build", "*", "*.md", "*.py", "?1", "t[1-2]", "**", "s*"]
)


@st.composite
def pattern(draw: st.DrawFn) -> str:
    # where an exception begins with a wildcard this daemon, of 2020, does not look into what is excluded
    first = draw(st.sampled_from(["src", "docs", "build", "a.py"]))
    exception = draw(st.booleans())
    parts = draw(st.lists(PARTS, min_size=1, max_size=3))
    if exception:
        return "!" + "/".join([first, *[part for part in parts if "*" not in part]])
    return "/".join(parts)


@pytest.mark.slow
@pytest.mark.xdist_group("docker")
@settings(max_examples=8)
@given(lines=st.lists(pattern(), min_size=1, max_size=4))
def test_the_daemon_takes_the_same_by_chance(
    context: Path, tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    need("docker")
    (context / ".dockerignore").write_text("\n".join(lines))
    recipe = tmp_path_factory.getbasetemp() / "Dockerfile.ignore"
    assert listed_by_us(context) == listed_by_docker(context, recipe)


def test_exceptions_anywhere_below_what_is_excluded(project: Path) -> None:
    """As Docker documents it, and today's daemons do it."""
    write(project, {"a.py": "", "a.md": "", "src/b.py": "", "src/b.md": "", ".dockerignore": "*\n!**/*.py"})
    selection = select(str(project))
    assert {path for path, _ in selection.files} == {"a.py", "src/b.py"}
    assert set(selection.directories) == {"src"}


def test_a_plus_is_a_plus(context: Path) -> None:
    """Daemons of 2020 took it for a part of a regular expression."""
    (context / ".dockerignore").write_text("x+y.txt")
    assert listed_by_us(context) == set(FILES) - {"x+y.txt"}


def test_a_directory_that_is_emptied_stays(project: Path) -> None:
    write(project, {"logs/a.log": "", "b": "", ".dockerignore": "**/*.log"})
    assert set(select(str(project)).directories) == {"logs"}


@pytest.mark.parametrize("text", ["a[", "!", "[]", "a\\"])
def test_patterns_that_do_not_parse(text: str) -> None:
    with pytest.raises(WorkspaceError, match=r"\.dockerignore:2: "):
        DockerRules(["ok", text], ".dockerignore")
