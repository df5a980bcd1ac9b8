"""Names of components: builtins, files, modules, scripts, entry points."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from shunter.components import finder
from shunter.components.file_linter import component_functions
from shunter.components.finder import get_component
from shunter.errors import (
    ComponentFileNotFoundError,
    ComponentNotFoundException,
    ComponentValidationException,
    ConfigError,
)

Write = Callable[..., Path]

JOBS = """
def train(n: int, *args: str) -> AppDef:
    '''Train.'''
    return AppDef("train", [Role("train", "", entrypoint="true", args=[str(n), *args])])
"""


SHADOW = """
def echo(x: int) -> AppDef: ...
def extra() -> AppDef:
    return AppDef("extra")
"""


def test_the_table_of_builtins_is_what_the_modules_define() -> None:
    from importlib import import_module

    for module, functions in finder.BUILTINS.items():
        loaded = import_module(f"shunter.components.{module}")
        assert set(component_functions(loaded.__file__)) <= set(functions), module
        assert all(callable(getattr(loaded, name)) for name in functions)


@pytest.mark.parametrize("name", [f"{m}.{fn}" for m, fns in finder.BUILTINS.items() for fn in fns])
def test_every_builtin_lints_and_has_help_for_each_parameter(name: str) -> None:
    from shunter.components.component_help import read_docstring
    from shunter.components.file_linter import validate

    component = get_component(name)
    assert component.origin == "builtin"
    assert component.summary
    assert validate(component.fn.__code__.co_filename, component.fn_name) == []
    _, notes = read_docstring(component.fn.__doc__)
    assert list(notes) == [parameter.name for parameter in component.parameters]


def test_a_file(write: Write) -> None:
    write("jobs.py", JOBS)
    app = get_component("jobs.py:train").parse(["-n", "2", "x"])
    assert app.roles[0].args == ["2", "x"]
    assert get_component("./jobs.py:train").origin == str(Path("jobs.py").absolute())


def test_each_file_is_a_separate_module(write: Write) -> None:
    write("data.txt", "7", header="")
    write("neighbour.py", "VALUE = 35", header="")
    write(
        "deep/jobs.py",
        """
        import dataclasses, os, pathlib, pickle
        import beside
        DATA = pathlib.Path(__file__).parent.parent.joinpath("data.txt").read_text()
        @dataclasses.dataclass
        class Options:
            lr: float = 0.1
        def train(opt: Options = Options(), extra: int = 0) -> AppDef:
            from beside import VALUE
            copied = pickle.loads(pickle.dumps(opt))
            return AppDef(f"{__name__} {DATA} {VALUE} {copied}")
        """,
    )
    write("deep/beside.py", "VALUE = 1", header="")
    component = get_component("deep/jobs.py:train")
    assert component.parse(["--opt", "lr=2"]).name == "jobs 7 1 Options(lr=2.0)"
    module = sys.modules["jobs"]
    assert pickle.loads(pickle.dumps(module.Options(3.0))) == module.Options(3.0)
    assert dataclasses.is_dataclass(module.Options)
    assert not list(Path().rglob("__pycache__"))  # nothing is written beside the user's files


def test_a_file_in_a_package_can_import_relatively(write: Write) -> None:
    write("pkg/__init__.py", "", header="")
    write("pkg/inner/__init__.py", "", header="")
    write("pkg/names.py", "NAME = 'relative'", header="")
    write(
        "pkg/inner/jobs.py",
        "from ..names import NAME\ndef train() -> AppDef:\n    return AppDef(f'{NAME} {__name__}')\n",
    )
    assert get_component("pkg/inner/jobs.py:train").parse([]).name == "relative pkg.inner.jobs"


def test_a_file_in_a_package_is_an_attribute_of_it(write: Write) -> None:
    write("packed/__init__.py", "")
    path = write("packed/job.py", JOBS)
    found = get_component(f"{path}:train")
    assert found.fn.__module__ == "packed.job"
    assert sys.modules["packed"].job is sys.modules["packed.job"]


def test_a_file_in_a_package_whose_name_is_no_identifier_imports_its_neighbours(write: Write) -> None:
    write("my-jobs/__init__.py", "")
    write("my-jobs/neighbour_of_job.py", "NAME = 'n'\n")
    path = write("my-jobs/dashed_job.py", f"from neighbour_of_job import NAME\n{JOBS}")
    assert get_component(f"{path}:train").fn.__module__ == "dashed_job"


def test_a_file_that_does_not_exist_is_a_missing_file(tmp_path: Path) -> None:
    for name in (f"{tmp_path}/none.py:train", f"{tmp_path}/no/where.py:train", f"{tmp_path}/none.py"):
        with pytest.raises(ComponentFileNotFoundError) as caught:
            get_component(name)
        assert isinstance(caught.value, FileNotFoundError)
    with pytest.raises(ComponentNotFoundException) as other:
        get_component(f"{tmp_path}:train")
    assert not isinstance(other.value, FileNotFoundError)


def test_a_file_below_a_directory_of_modules_does_not_hide_them(
    write: Write, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("jobs.py", "OTHER = True\n")
    write("deeper/jobs.py", JOBS)
    monkeypatch.syspath_prepend(str(workplace))
    assert get_component("deeper/jobs.py:train").parse(["-n", "1"]).name == "train"
    import jobs  # type: ignore[import-not-found]

    assert jobs.OTHER


def test_a_package_that_is_loaded_already(write: Write) -> None:
    write("pkg/__init__.py", "def own() -> AppDef:\n    return AppDef(__name__)\n")
    for name in ("one", "two"):
        write(f"pkg/{name}.py", "def train() -> AppDef:\n    return AppDef(__name__)\n")
    write("elsewhere/pkg/__init__.py", "", header="")
    write("elsewhere/pkg/one.py", "def train() -> AppDef:\n    return AppDef('elsewhere')\n")
    names = ["pkg/one.py:train", "pkg/two.py:train", "pkg/__init__.py:own", "elsewhere/pkg/one.py:train"]
    made = [get_component(name).parse([]).name for name in names]
    assert made == ["pkg.one", "pkg.two", "pkg", "elsewhere"]
    assert sys.modules["pkg.one"].__file__ == str(Path("pkg/one.py").resolve())


@pytest.mark.parametrize("name", ["json.py", "pytest.py", "my-jobs 2.py", "shunter.py", "types.py"])
def test_a_file_never_takes_the_place_of_another_module(write: Write, name: str) -> None:
    before = sys.modules.get(name.removesuffix(".py"))
    write(name, JOBS)
    assert get_component(f"{name}:train").parse(["-n", "1"]).roles[0].args == ["1"]
    assert sys.modules.get(name.removesuffix(".py")) is before


def test_two_files_of_one_name(write: Write) -> None:
    for place in ("a", "b"):
        write(f"{place}/jobs.py", f"def train() -> AppDef:\n    return AppDef('{place}')\n")
    assert [get_component(f"{p}/jobs.py:train").parse([]).name for p in "ab"] == ["a", "b"]


def test_a_file_that_changed_is_read_again_and_one_that_did_not_is_not(write: Write) -> None:
    path = write("jobs.py", "def train() -> AppDef:\n    return AppDef('one')\n")
    first = get_component("jobs.py:train").fn
    assert get_component("jobs.py:train").fn is first
    path.write_text(path.read_text().replace("one", "three"))
    assert get_component("jobs.py:train").parse([]).name == "three"


def test_output_of_a_file_goes_to_stderr(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    write("jobs.py", "print('noise')\n" + JOBS)
    get_component("jobs.py:train")
    assert capsys.readouterr() == ("", "noise\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import nothing_of_this_name\n",
            r"ModuleNotFoundError: No module named 'nothing_of_this_name' \(.*:3\)",
        ),
        ("1 / 0\n", r"ZeroDivisionError: division by zero \(.*jobs.py:3\)"),
        ("raise SystemExit(3)\n", r"SystemExit: 3 \(.*jobs.py:3\)"),
    ],
)
def test_a_file_that_raises(write: Write, text: str, message: str) -> None:
    write("jobs.py", text + JOBS)
    with pytest.raises(ConfigError, match=message):
        get_component("jobs.py:train")
    assert "jobs" not in sys.modules


def test_a_file_that_does_not_parse(write: Write) -> None:
    write("jobs.py", "def train( -> AppDef:\n")
    with pytest.raises(ComponentValidationException, match=r"jobs\.py:3: it does not parse"):
        get_component("jobs.py:train")


def test_a_file_with_wrong_components_is_not_even_imported(write: Write) -> None:
    write("jobs.py", "print(1 / 0)\ndef train(a, **b: int) -> int: ...\n")
    with pytest.raises(ComponentValidationException, match="3 problems") as caught:
        get_component("jobs.py:train")
    assert caught.value.message.count("jobs.py:4: ") == 3


def test_imported_types_are_checked_when_the_file_is_loaded(write: Write) -> None:
    write("jobs.py", "from collections import Counter\ndef train(a: Counter, b: Counter) -> AppDef: ...\n")
    with pytest.raises(ComponentValidationException, match=r"(?s)'a': .*'b': values of type Counter"):
        get_component("jobs.py:train")


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("utils.ecoh", "no component 'utils.ecoh'", "utils.echo"),
        ("nothing", "no component", "shunter components"),
        ("jbos.py:train", "jbos.py does not exist", "jobs.py"),
        ("./jbos.py", "does not exist", "./jobs.py"),
        ("jobs.py:trian", "no function 'trian'", "train"),
        ("jobs.py:_hidden", "no function '_hidden'", "train"),
        ("jobs.py:", "no function ''", "train"),
        ("jobs:trian", "no function 'trian'", "train"),
        ("no_module.jobs:train", "no module 'no_module'", "./path"),
        ("a b:train", "is not a component", "path/to"),
        ("nowhere/jobs.py:train", "no file", "nowhere"),
        ("folder.py", "is a directory", ""),
        ("/dev/null:fn", "is not a regular file", ""),
        ("./tool", "neither a Python nor a shell script", "shunter run -- ./tool"),
        ("jobs", "no component 'jobs'", "./jobs.py"),
        ("tool", "no component 'tool'", "shunter run -- ./tool"),
        ("notes", "no component 'notes'", "not executable"),
        ("utils.", "no component", ""),
        ("", "no component", ""),
        (":", "is not a component", ""),
    ],
)
def test_names_that_are_not_there(write: Write, name: str, message: str, hint: str) -> None:
    write("jobs.py", JOBS)
    write("tool", "#!/bin/sh\n", header="")
    Path("tool").chmod(0o755)
    write("notes", "", header="")
    Path("folder.py").mkdir()
    with pytest.raises(ComponentNotFoundException) as caught:
        get_component(name)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == 3


def test_a_path_may_hold_a_colon(write: Write) -> None:
    write("a:b/jobs.py", JOBS)
    assert get_component("a:b/jobs.py:train").parse(["-n", "1"]).name == "train"


def test_a_module(write: Write) -> None:
    write("team/__init__.py", "", header="")
    write("team/jobs.py", JOBS)
    assert get_component("team.jobs:train").parse(["-n", "1"]).name == "train"
    write("team/broken.py", "import missing_part\n" + JOBS)
    with pytest.raises(ConfigError, match="No module named 'missing_part'"):
        get_component("team.broken:train")


# ---- plain scripts


def test_a_plain_script_gets_everything_untouched(write: Write) -> None:
    write("train.py", "raise SystemExit('it must not be imported')", header="")
    words = ["--lr", "0.1", "--name", "x", "--help", "-1", "--", "--cpu", "3", "--lr", "2"]
    component = get_component("./train.py")
    (role,) = component.parse(words).roles
    assert (role.name, role.entrypoint, role.args) == ("train", "python", ["./train.py", *words])
    assert component.parse([]).roles[0].args == ["./train.py"]
    assert get_component("train.py").name == "train.py"
    assert component.config_name == "train.script"


def test_a_plain_script_takes_the_defaults_of_train_script(write: Write) -> None:
    write("train.py", "", header="")
    (role,) = (
        get_component("./train.py").parse(["--cpu", "1"], {"cpu": "4", "env": "A=1", "script": "no.py"}).roles
    )
    assert role.resource.cpu == 4
    assert role.env == {"A": "1"}
    assert role.args == ["./train.py", "--cpu", "1"]
    text = get_component("./train.py").help_text()
    assert text.startswith("usage: shunter run ./train.py [script_args ...]\n")
    assert "Every word after the name is passed unchanged." in text
    assert "--cpu" not in text


# ---- entry points


@pytest.mark.parametrize("group", ["shunter.components", "torchx.components"])
def test_entry_points_add_and_never_hide(install: Write, group: str) -> None:
    install(
        {
            **dict.fromkeys([f"team_jobs/{f}.py" for f in ("__init__", "deep/more", "_private")], JOBS),
            "solo.py": JOBS,
            "shadow.py": SHADOW,
        },
        {"team": "team_jobs", "_": "solo", "_0": "team_jobs.deep", "one": "solo:train", "utils": "shadow"},
        group,
    )  # fmt: skip
    names = finder.component_names()
    assert {"team.train", "team.deep.more.train", "train", "more.train", "one", "utils.extra"} <= set(names)
    assert not any("_private" in name for name in names)
    assert "team_jobs" not in sys.modules  # names cost no import
    for name in ("team.train", "team.deep.more.train", "train", "more.train", "one"):
        assert get_component(name).parse(["-n", "1"]).name == "train"
    assert get_component("utils.extra").parse([]).name == "extra"
    assert get_component("utils.echo").origin == "builtin"
    infos = {info.name: info for info in finder.list_components()}
    assert set(names) == set(infos)
    assert infos["utils.echo"].origin == "builtin"
    assert infos["team.train"].summary == "Train."
    assert group in infos["team.train"].origin


def test_ours_win_over_the_predecessors(install: Write) -> None:
    install({"new.py": JOBS, "old.py": JOBS}, {"team": "old"}, "torchx.components")
    install({}, {"team": "new"})
    assert "= new" in get_component("team.train").origin


def test_a_broken_plugin_harms_nobody_else(install: Write) -> None:
    install(
        {"broken.py": "1 / 0\n", "fine.py": JOBS}, {"broken": "broken", "fine": "fine", "gone": "gone_module"}
    )
    assert get_component("fine.train").parse(["-n", "1"]).name == "train"
    infos = {info.name: info for info in finder.list_components()}
    assert "gone_module" in infos["gone"].error
    assert infos["utils.echo"].error == infos["fine.train"].error == ""
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        get_component("broken.train")
    with pytest.raises(ComponentNotFoundException):
        get_component("fine.nothing")


def test_one_component_that_is_not_valid_leaves_the_others(install: Write) -> None:
    text = "def bad(x) -> AppDef: ...\ndef good() -> AppDef: ...\n"
    install({"team_of_two.py": text}, {"team": "team_of_two"})
    found = finder.get_components()
    assert "team.good" in found
    assert "team.bad" not in found


def test_components_behind_entry_points_are_linted(install: Write) -> None:
    install({"team.py": "def train(a, b) -> AppDef: ...\n"}, {"team": "team"})
    with pytest.raises(ComponentValidationException, match="2 problems"):
        get_component("team.train")
