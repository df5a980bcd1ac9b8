from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shunter.errors import ConfigError, InvalidRunConfigException
from shunter.runner.config import Config, Setting, check_keys, effective_options, load_config
from shunter.runner.config_files import read_ini
from shunter.schedulers.registry import get_scheduler_factory
from shunter.specs import option, runopts
from tests.runner.fake_scheduler import FakeOpts
from tests.trusting import trust_project

OPTS = runopts.from_dataclass(FakeOpts)


@dataclass
class Listed:
    marks: list[dict[str, str]] | None = option("marks", default=None)  # noqa: RUF009 - a field
    place: str | None = option("a place", default="here")
    globs: list[str] | None = option("patterns", default=None)  # noqa: RUF009 - a field


@pytest.fixture
def user(tmp_path: Path) -> Path:
    directory = tmp_path / "shunter-home" / "config"
    directory.mkdir(parents=True)
    return directory


def shown(settings: dict[str, Setting]) -> dict[str, tuple[object, str]]:
    return {key: (setting.value, setting.origin) for key, setting in settings.items()}


# ---- layers


def test_without_any_file(project: Path) -> None:
    config = load_config()
    assert config.sources == []
    assert config.scheduler("fake") == config.component("utils.echo") == config.command("run") == {}
    assert config.trackers() == {}


def test_later_layers_win_and_each_value_knows_its_place(project: Path, user: Path, tmp_path: Path) -> None:
    """queue is set in all layers, one of which is taken away after the other."""
    home = tmp_path / "user"
    (home / ".torchxconfig").write_text("[fake]\nqueue = 1\n")
    (user / "config.toml").write_text('\n[scheduler.fake]\nqueue = "2"\n')
    (project / ".torchxconfig").write_text("# project\n\n[fake]\n; comment\nqueue = 3\n")
    (project / "pyproject.toml").write_text('[tool.other]\n[tool.shunter.scheduler]\nfake = {queue = "4"}\n')
    (project / "shunter.toml").write_text('[scheduler.fake]\nfast = true\n\nqueue = "5"\n')
    environ = {"SHUNTER_FAKE_QUEUE": "6", "SHUNTER_FAKE_PRIORITY": "0"}

    def queue(cli: dict[str, object] | None = None) -> tuple[object, str]:
        return shown(effective_options(load_config(environ=environ), "fake", OPTS, cli))["queue"]

    assert queue({"queue": "7"}) == ("7", "command line")
    assert queue() == ("6", "SHUNTER_FAKE_QUEUE")
    del environ["SHUNTER_FAKE_QUEUE"]
    assert queue() == ("5", f"{project}/shunter.toml")
    (project / "shunter.toml").unlink()
    assert queue() == ("4", f"{project}/pyproject.toml")
    (project / "pyproject.toml").unlink()
    assert queue() == ("3", f"{project}/.torchxconfig")
    (project / ".torchxconfig").unlink()
    assert queue() == ("2", f"{user}/config.toml")
    (user / "config.toml").unlink()
    assert queue() == ("1", f"{home}/.torchxconfig")
    (home / ".torchxconfig").unlink()
    assert queue() == ("default", "default")
    assert shown(effective_options(load_config(environ=environ), "fake", OPTS))["priority"] == (
        0,
        "SHUNTER_FAKE_PRIORITY",
    )


def test_a_profile_is_stronger_than_what_is_set_for_its_scheduler(project: Path, user: Path) -> None:
    (user / "config.toml").write_text('[scheduler."fake:a100"]\nqueue = "a100"\npriority = 3\n')
    (project / "shunter.toml").write_text('[scheduler.fake]\nqueue = "gpu"\npriority = 1\n')
    config = load_config(environ={"SHUNTER_FAKE_QUEUE": "debug"})
    values = effective_options(config, "fake", OPTS, {"priority": 5}, profile="a100")
    assert (values["queue"].value, values["priority"].value) == ("a100", 5)
    assert values["queue"].origin.endswith("config.toml")
    assert effective_options(config, "fake", OPTS)["queue"].value == "debug"
    with pytest.raises(ConfigError, match="no profile 'a10'") as refused:
        effective_options(config, "fake", OPTS, profile="a10")
    assert "fake:a100" in refused.value.hint


def test_a_profile_of_a_project_needs_the_same_trust(project: Path) -> None:
    (project / "shunter.toml").write_text('[scheduler."slurm:a100"]\nprologue = ["rm -rf ~"]\n')
    opts = get_scheduler_factory("slurm")("test").run_opts()
    with pytest.raises(ConfigError, match="only if you trust the project"):
        effective_options(load_config(), "slurm", opts, profile="a100")
    trust_project()
    assert effective_options(load_config(), "slurm", opts, profile="a100")["prologue"].value == ["rm -rf ~"]


def test_the_nearest_directory_above_holds_the_project(project: Path) -> None:
    (project.parent / "shunter.toml").write_text('[run]\nscheduler = "far"\nworkspace = "w"\n')
    (project / "pyproject.toml").write_text("[tool.shunter.run]\nscheduler = 'near'\n")
    (project / "a" / "b").mkdir(parents=True)
    (project / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    run = load_config(str(project / "a" / "b")).command("run")
    assert shown(run) == {"scheduler": ("near", f"{project}/pyproject.toml")}


def test_components_and_commands(project: Path) -> None:
    (project / "shunter.toml").write_text(
        '[component."utils.echo"]\nmsg = "hi"\n[component."jobs.py:train"]\nlr = 0.5\n[cli.log]\ntail = 5\n'
    )
    (project / ".torchxconfig").write_text(
        "[component:utils.echo]\nmsg = old\nimage = i\n[cli:run]\ncomponent = c\n"
    )
    config = load_config()
    assert shown(config.component("utils.echo")) == {
        "msg": ("hi", f"{project}/shunter.toml"),
        "image": ("i", f"{project}/.torchxconfig"),
    }
    assert shown(config.component("jobs.py:train")) == {"lr": (0.5, f"{project}/shunter.toml")}
    assert shown(config.command("log")) == {"tail": (5, f"{project}/shunter.toml")}
    assert shown(config.command("run")) == {"component": ("c", f"{project}/.torchxconfig")}


def test_run_settings(project: Path) -> None:
    (project / "shunter.toml").write_text('[run]\nscheduler = "a"\nwait = true\n')
    (project / ".torchxconfig").write_text("[cli:run]\nlog = Yes\nworkspace = w\n")
    environ = {"SHUNTER_SCHEDULER": "b", "SHUNTER_WORKSPACE": ""}
    run = load_config(environ=environ).command("run")
    assert {key: setting.value for key, setting in run.items()} == {
        "scheduler": "b",
        "wait": True,
        "log": True,
        "workspace": "w",
    }
    assert run["scheduler"].origin == "SHUNTER_SCHEDULER"


def test_trackers(project: Path) -> None:
    (project / "shunter.toml").write_text('[tracker.toml]\nconfig = "t"\n[tracker.bare]\n')
    (project / ".torchxconfig").write_text(
        "[torchx:tracker]\nini =\n[tracker:ini]\nconfig=i\n[tracker:unused]\nconfig=u\n"
    )
    trust_project()
    assert load_config().trackers() == {"ini": "i", "toml": "t", "bare": None}


# ---- the predecessor's file


def test_torchxconfig_values(project: Path) -> None:
    (project / ".torchxconfig").write_text(
        "[fake]\ntags = a,b;c\nqueue = with # hash\npriority = None\nfast = FALSE\n"
        "login = #FIXME:(str) yours\n\n[aws_batch]\nqueue = not ours\n"
    )
    options = effective_options(load_config(), "fake", OPTS)
    assert {key: setting.value for key, setting in options.items()} == {
        "tags": ["a,b", "c"],
        "queue": "with # hash",
        "priority": None,
        "fast": False,
        "login": None,
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('[{"Key": "a", "Value": "b;c"}]', [{"Key": "a", "Value": "b;c"}]),
        ("a:b;c=d", [{"a": "b"}, {"c": "d"}]),
        ("loss=loss=([0-9.]+),x", [{"loss": "loss=([0-9.]+),x"}]),
        ("None", None),
    ],
)
def test_torchxconfig_takes_lists_of_dicts(project: Path, text: str, value: object) -> None:
    (project / ".torchxconfig").write_text(f"[fake]\nmarks = {text}\nplace = None\nglobs = [A-Z]*;b\n")
    options = effective_options(load_config(), "fake", runopts.from_dataclass(Listed))
    assert {key: setting.value for key, setting in options.items()} == {
        "marks": value,
        "place": None,
        "globs": ["[A-Z]*", "b"],
    }


def test_torchxconfig_named_by_the_environment(project: Path, tmp_path: Path) -> None:
    for place, text in ((project, "here"), (tmp_path / "user", "home")):
        (place / ".torchxconfig").write_text(f"[fake]\nqueue = {text}\n")
    other = tmp_path / "other.ini"
    other.write_text("[fake]\nqueue = other\n")
    config = load_config(environ={"TORCHXCONFIG": str(other)})
    assert shown(config.scheduler("fake")) == {"queue": ("other", f"{other}")}
    assert load_config(environ={"TORCHXCONFIG": ""}).scheduler("fake") == {}
    with pytest.raises(ConfigError, match="does not exist") as caught:
        load_config(environ={"TORCHXCONFIG": "/nope.ini"})
    assert "TORCHXCONFIG" in caught.value.hint


def test_in_the_home_directory_its_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "user"
    (home / ".torchxconfig").write_text("[fake]\nqueue = home\n")
    monkeypatch.chdir(home)
    assert len(load_config().sources) == 1


# ---- the environment


def test_variables_go_to_the_scheduler_with_the_longest_name() -> None:
    environ = {
        "SHUNTER_LOCAL_CWD_LOG_DIR": "/x",
        "SHUNTER_LOCAL_OTHER": "y",
        "SHUNTER_LOCAL_": "z",
        "SHUNTER_HOME": "/h",
        "SHUNTER_MY_BOX_A": "1",
    }
    config = load_config(environ=environ)
    assert shown(config.scheduler("local_cwd")) == {"log_dir": ("/x", "SHUNTER_LOCAL_CWD_LOG_DIR")}
    assert shown(config.scheduler("local")) == {"other": ("y", "SHUNTER_LOCAL_OTHER")}
    assert list(config.scheduler("my-box")) == ["a"]


def test_variables_find_options_of_any_case() -> None:
    opts = runopts()
    opts.add("jobQueue", str, "a queue")
    config = Config([], {"SHUNTER_FAKE_JOBQUEUE": "q"})
    assert effective_options(config, "fake", opts)["jobQueue"].value == "q"


# ---- what can be wrong

BAD_FILES: list[tuple[str, str, str, str]] = [
    ("shunter.toml", "[runn]\nx = 1\n", ": there is no table [runn]", "Did you mean run?"),
    ("shunter.toml", "\nrun = 5\n", ": run must be a table", "[run]"),
    ("shunter.toml", "[scheduler]\nfake = 5\n", ": scheduler.fake must be a table", "Write"),
    (
        "shunter.toml",
        "[run]\n\nschedluer = 'x'\n",
        ": [run] has no key 'schedluer'",
        "Did you mean scheduler?",
    ),
    ("shunter.toml", "[run]\na = = 5\n", ": this is not valid TOML", ""),
    ("shunter.toml", '[run]\nscheduler = "abc\n', ": this is not valid TOML", ""),
    ("shunter.toml", "[run\n", ": this is not valid TOML", ""),
    ("pyproject.toml", "[tool.shunter]\nrunn = {}\n", ": there is no table [runn]", "Did you mean run?"),
    (
        ".torchxconfig",
        "queue = 1\n",
        ": this is not a valid .torchxconfig: File contains no section",
        "Example",
    ),
    (".torchxconfig", "[fake]\nqueue\n", ": this is not a valid .torchxconfig: Source contains", "Example"),
]


@pytest.mark.parametrize(("name", "text", "message", "hint"), BAD_FILES)
def test_malformed_files(project: Path, name: str, text: str, message: str, hint: str) -> None:
    (project / name).write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_config()
    assert f"{project / name}{message}" in caught.value.message
    assert hint in caught.value.hint


def make_directory(path: Path) -> None:
    path.mkdir()


def write_latin1(path: Path) -> None:
    path.write_bytes("[run]\n# é\n".encode("latin-1"))


@pytest.mark.parametrize("name", ["shunter.toml", ".torchxconfig", "pyproject.toml"])
@pytest.mark.parametrize(("make", "text"), [(make_directory, "cannot read"), (write_latin1, "not UTF-8")])
def test_files_that_cannot_be_read(project: Path, name: str, make: Callable[[Path], None], text: str) -> None:
    make(project / name)
    with pytest.raises(ConfigError, match=text) as caught:
        load_config()
    assert str(project / name) in caught.value.message


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("[scheduler.fake]\nqueu = 'x'\n", ": fake has no option 'queu'", "Did you mean queue?"),
        ("[scheduler.fake]\npriority = 'x'\n", ": option 'priority' (int): 'x' is not an integer", ""),
        ("[scheduler.fake]\nfast = 1\n", ": option 'fast' (bool): 1 is not of type bool", ""),
        ("[scheduler.local_cdw]\n", ": there is no scheduler 'local_cdw'", "Did you mean local_cwd"),
        ("[run]\nscheduler = 7\n", ": scheduler must be a string, not 7", ""),
        ("[run]\nwait = 'perhaps'\n", ": wait must be true or false, not 'perhaps'", ""),
    ],
)
def test_bad_values(project: Path, text: str, message: str, hint: str) -> None:
    (project / "shunter.toml").write_text(text)

    def use() -> None:
        config = load_config()
        config.command("run")
        effective_options(config, "fake", OPTS)

    with pytest.raises(ConfigError) as caught:
        use()
    assert f"{project}/shunter.toml{message}" in caught.value.message
    assert hint in caught.value.hint


def test_bad_variables_and_command_line() -> None:
    with pytest.raises(InvalidRunConfigException, match="SHUNTER_FAKE_QUEU: fake has no option 'queu'"):
        effective_options(load_config(environ={"SHUNTER_FAKE_QUEU": "x"}), "fake", OPTS)
    with pytest.raises(InvalidRunConfigException, match=r"SHUNTER_FAKE_PRIORITY: .*not an integer"):
        effective_options(load_config(environ={"SHUNTER_FAKE_PRIORITY": "x"}), "fake", OPTS)
    with pytest.raises(InvalidRunConfigException, match="command line: fake has no option") as caught:
        effective_options(load_config(), "fake", OPTS, {"prioritty": 3})
    assert "Did you mean priority?" in caught.value.hint


def test_check_keys(project: Path) -> None:
    (project / "shunter.toml").write_text("[cli.log]\ntial = 5\n")
    with pytest.raises(ConfigError, match=r"shunter.toml: \[cli.log\] has no key 'tial'") as caught:
        check_keys(load_config().command("log"), ["tail", "regex"], "[cli.log]")
    assert "Did you mean tail?" in caught.value.hint


# ---- reading files


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.sampled_from("[]=:#;'\"{}ab1 \n\t.,\\é")))
def test_any_text_is_read_or_refused_with_the_files_name(project: Path, text: str) -> None:
    for name in ("shunter.toml", ".torchxconfig"):
        (project / name).write_text(text)
        try:
            load_config()
        except ConfigError as error:
            assert f"{project / name}:" in error.message  # noqa: PT017 - it need not be raised
        (project / name).unlink()


def test_sections_that_only_torchx_has_are_left_alone(project: Path) -> None:
    (project / ".torchxconfig").write_text("[run:a]\nb = 1\n[scheduler:fake]\nqueue = x\n[other:y]\nz = 1\n")
    config = load_config()
    assert config.command("run") == config.scheduler("fake") == {}


def test_ini_continuation_lines(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("[a]\nk: v=1\n   more\nK = other\n[a]\nz=\n")
    source = read_ini(str(tmp_path / "x"))
    assert source is not None
    assert source.tables["scheduler", "a"] == {"k": "v=1\nmore", "K": "other", "z": ""}


@pytest.mark.parametrize("name", ["shunter.toml", "pyproject.toml", ".torchxconfig"])
def test_a_fifo_with_the_name_of_a_configuration_file_is_an_error_not_a_wait(
    name: str, project: Path
) -> None:
    os.mkfifo(project / name)
    with pytest.raises(ConfigError, match=rf"{name}: it is a FIFO"):
        load_config()


def test_a_configuration_file_may_be_named_that_is_a_device(project: Path) -> None:
    assert load_config(environ={"TORCHXCONFIG": "/dev/null"}).scheduler("fake") == {}
