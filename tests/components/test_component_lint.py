"""Lint: every problem at once, with its place."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

import pytest

from shunter.components import file_linter
from shunter.components.file_linter import LinterMessage, component_functions, validate

Write = Callable[..., Path]


def problems(path: Path, fn: str = "job") -> list[tuple[str, int, str]]:
    return [(m.severity, m.line, m.description) for m in validate(str(path), fn)]


def test_every_problem_is_reported_with_its_line(write: Write) -> None:
    path = write(
        "jobs.py",
        '''
        async def job(
            a,
            b: set[int],
            d: "Callable[[int], int]",
            e: int = "x",
            *args,
            g: list[bytes] = [],
            h: 5 = 5,
            **kwargs: str,
        ) -> dict:
            """Job.

            Args:
                a: yes
                zz: no
            """
        ''',
    )
    found = problems(path)
    expected = [
        ("error", 4, "is async"),
        ("error", 5, "'a' has no type"),
        ("error", 12, "**kwargs"),
    ]
    assert [(severity, line) for severity, line, _ in found] == [(s, n) for s, n, _ in expected]
    for (_, _, text), (_, _, part) in zip(found, expected, strict=True):
        assert part in text


def test_all_good_types_pass(write: Write) -> None:
    path = write(
        "jobs.py",
        '''
        import dataclasses, enum, pathlib, typing
        from dataclasses import dataclass
        from typing import *
        import somewhere
        class Color(enum.Enum):
            RED = 1
        class Shade(Color): ...
        @dataclass
        class A:
            x: int
        @dataclasses.dataclass(frozen=True)
        class B(A): ...
        def job(
            a: int, b: Optional[str], c: "List[int]", d: Dict[str, float], e: tuple[int, ...], f: int | None,
            g: Literal["a", 1, Color.RED], h: Color, i: Shade, j: A, k: B, l: somewhere.Type,
            m: typing.Mapping[str, "A"],
            n: pathlib.Path, o: Union[int, str], p: Annotated[int, "-n"], q: Literal["a", "b"] = "a",
            r: float = 1, s: str = None, t: list = [], u: int = some_call(), v: bool = True, w: int = -1,
            *args: str, x: int = 3,
        ) -> "specs.AppDef":
            """Job."""
        ''',
    )
    assert problems(path) == []


@pytest.mark.parametrize(
    "returns", ["AppDef", "specs.AppDef", "'AppDef'", "'torchx.specs.AppDef'", "a.b.AppDef"]
)
def test_return_annotations(write: Write, returns: str) -> None:
    path = write("jobs.py", f"def job() -> {returns}:\n    'Job.'\n")
    assert problems(path) == []
    assert component_functions(str(path)) == {"job": "Job."}


def test_functions_that_are_not_there(write: Write) -> None:
    path = write(
        "jobs.py",
        "def job() -> AppDef:\n    'J.'\n",
    )
    assert problems(path) == []
    ((severity, _, text),) = problems(path, "jbo")
    assert severity == "error"
    assert "Did you mean job?" in text


@pytest.mark.parametrize("content", [b"def job(:\n", b"\xff\xfe", b"a\x00b"])
def test_files_that_do_not_parse(workplace: Path, content: bytes) -> None:
    (workplace / "jobs.py").write_bytes(content)
    ((severity, _, text),) = problems(workplace / "jobs.py")
    assert severity == "error"
    assert "does not parse" in text
    assert "cannot read" in problems(workplace / "nothing.py")[0][2]


def test_the_predecessors_interface(write: Write) -> None:
    path = write("jobs.py", "def job(a, *b) -> int:\n    '''J.\n\n    Args:\n        zz: no\n    '''\n")
    messages = validate(str(path), "job")
    assert [message.name for message in messages] == ["ArgTypeValidator", "ReturnTypeValidator"]
    assert messages[0] == LinterMessage(
        "ArgTypeValidator", "the parameter 'a' has no type annotation", 3, 8, "error"
    )
    only_return = validate(str(path), "job", [file_linter.ReturnTypeValidator("int")])
    assert only_return == []

    class NoArguments(file_linter.ComponentFunctionValidator):
        def validate(self, app_specs_func_def: ast.FunctionDef) -> list[LinterMessage]:
            return [self._message(arg, arg.arg) for arg in app_specs_func_def.args.args]

    assert [m.description for m in validate(str(path), "job", [NoArguments()])] == ["a"]


def test_docstrings_of_functions() -> None:
    def fn(a: int) -> None:
        """Do it.

        Args:
            a: what
        """

    assert file_linter.get_fn_docstring(fn) == ("Do it.", {"a": "what"})
    assert file_linter.get_fn_docstring(lambda: None) == ("", {})
