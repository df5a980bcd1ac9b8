"""What a script's job needs: options before the script, `[tool.shunter]` in its header, and who wins."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shunter.cli import main
from shunter.components.finder import get_component
from shunter.runner import get_runner
from shunter.specs.job_words import JOB_WORDS, job_of_words
from tests.cli.conftest import Cli

Command = Callable[..., tuple[str, str]]

HEADER = """\
# /// script
# dependencies = []
#
# [tool.shunter]
# cpu = 2
# gpu = 1
# mem = "2G"
# time = "1h30m"
# env = { A = "header", B = "header" }
# retries = 3
# metric = ["loss", 'accuracy=acc (\\d+)']
# distribution = "torchrun"
# processes = 2
#
# [tool.shunter.slurm]
# partition = "gpu"
# ///
"""


@pytest.fixture
def project(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")  # the GPUs that this machine has
    (project / "train.py").write_text("import sys\nprint(sys.argv[1:])\n")
    return project


@pytest.fixture
def shunter(project: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command line in this process; returns what it wrote to stdout and to stderr."""

    def run(*words: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        result = main(list(words))
        out, err = capsys.readouterr()
        assert result == code, f"{out}\n{err}"
        return out, err

    return run


def planned(shunter: Command, *words: str) -> Any:
    return json.loads(shunter("plan", "--json", *words)[0])


def test_there_is_a_word_for_every_parameter_of_scripts() -> None:
    parameters = {parameter.name for parameter in get_component("train.script").parameters}
    words = {word.parameter for word in JOB_WORDS.values()}
    assert words - {""} == parameters - {"script", "script_args"}


# ---- before the script


def test_options_before_a_script_are_those_of_its_job(shunter: Command) -> None:
    words = (
        "--gpu 1 --cpu 4 --mem 1.5GiB --env A=1 --env B=x,y --name try --image python:3.12 --time 1:30:00 "
        "--nodes 2 --distribution torchrun --processes 3 --retries 5 --channel d=/tmp --metric loss"
    )
    plan = planned(shunter, *words.split(), "./train.py", "--lr", "0.3", "--gpu", "7")
    (role,) = plan["app"]["roles"]
    assert plan["app"]["name"] == "try"
    assert role["resource"] | {"cpu": 4, "gpu": 1, "memMB": 1536} == role["resource"]
    assert role["env"] == {"A": "1", "B": "x,y"}
    assert (role["image"], role["num_replicas"], role["max_retries"]) == ("python:3.12", 2, 5)
    train = role["metadata"]["train"]
    assert train["arguments"] == ["--lr", "0.3", "--gpu", "7"]
    assert train["distribution"] == {"kind": "torchrun", "processes_per_host": 3}
    assert plan["options"]["timeout"] == {"value": 5400.0, "source": "command line"}
    assert plan["arguments"]["memMB"] == {"value": 1536, "source": "command line"}


@pytest.mark.parametrize(
    ("scheduler", "option", "value"),
    [
        ("local_cwd", "timeout", 5401.0),
        ("slurm", "time", "1:30:01"),
        ("sge", "time", "1:30:01"),
        ("lsf", "time", "1:31"),
        ("local_docker", "timeout", 5401.0),
        ("kubernetes", "timeout", 5401),
        ("ray", "timeout", 5401.0),
        ("aws_batch", "timeout", 5401),
        ("aws_sagemaker", "max_run", 5401),
        ("sagemaker_local", "max_run", 5401),
    ],
)
def test_a_time_limit_is_the_schedulers_own_option(scheduler: str, option: str, value: Any) -> None:
    with get_runner() as runner:
        opts = runner.scheduler_run_opts(scheduler)
        parameters, options = job_of_words({"mem": "2G", "time": "1h30m0.5s"}, scheduler, opts)
    assert parameters == {"memMB": 2048}
    assert {name: opts.get(name).convert(item) for name, item in options.items()} == {option: value}  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--time 60", "--time: '60' is not a time limit with units"),
        ("--time 1:30", "is not a time limit with units"),
        ("--time 0s", "must be longer than 0 s"),
        ("--mem 16", "--mem: '16' is not a size"),
        ("--gpu many", "--gpu: 'many' is not an integer"),
        ("--gpu 1 --gpu 2", "--gpu: is given twice ('1' and '2')"),
        ("--distribution ddp", "--distribution: 'ddp' is not a valid value"),
        ("--gpus 1", "Did you mean --gpu"),
        ("--lr 0.1", "For the script: shunter run --dryrun ./train.py --lr 0.1"),
        ("--h gpu.small --cpu 2", "--cpu has no effect beside the named resource gpu.small (command line)"),
    ],
)
def test_a_wrong_option_before_a_script(shunter: Command, words: str, problem: str) -> None:
    assert problem in shunter("run", "--dryrun", *words.split(), "./train.py", code=2)[1]


def test_other_components_take_the_options_that_they_have_parameters_for(shunter: Command) -> None:
    plan = planned(shunter, "--gpu", "1", "--mem", "2G", "--nodes", "2", "utils.sh", "true")
    (role,) = plan["app"]["roles"]
    assert (role["resource"]["gpu"], role["resource"]["memMB"], role["num_replicas"]) == (1, 2048, 2)
    refused = shunter("run", "--dryrun", "--gpu", "1", "--nodes", "2", "utils.echo", code=2)[1]
    assert "utils.echo has no parameter for --gpu\n" in refused
    assert "`shunter run utils.echo --help`" in refused


def test_a_sweep_has_the_same_options(shunter: Command) -> None:
    out, _ = shunter("sweep", "--dryrun", "--json", "--mem", "3G", "./train.py", "--lr", "1,2")
    (role,) = json.loads(out)["app"]["roles"]
    assert (role["resource"]["memMB"], role["num_replicas"]) == (3072, 2)


# ---- commands


def test_any_command_is_a_job(shunter: Command) -> None:
    out, err = shunter("run", "--env", "WHO=me", "--", "sh", "-c", "echo hello $WHO $0; exit 3", code=1)
    assert "hello me sh" in err
    assert out.startswith("local_cwd://shunter/sh-")
    plan = planned(shunter, "--name", "mine", "--", "nvidia-smi", "-L", "--time", "1h")
    assert plan["app"]["name"] == "mine"
    assert plan["app"]["roles"][0]["args"] == ["-c", "exec nvidia-smi -L --time 1h"]


def test_python_and_a_script_is_the_script(shunter: Command, project: Path) -> None:
    (project / "train.py").write_text(HEADER + "print(1)")
    plan = planned(shunter, "python", "train.py", "--lr", "0.1")
    assert plan["app"]["roles"][0]["metadata"]["train"]["arguments"] == ["--lr", "0.1"]
    assert plan["arguments"]["cpu"]["source"] == "the header of train.py"
    command = planned(shunter, "python3", "-m", "train", "--lr", "0.1")["app"]["roles"][0]["args"]
    assert command == ["-c", "exec python3 -m train --lr 0.1"]


def test_a_program_that_is_no_component_is_pointed_to(shunter: Command) -> None:
    refused = shunter("run", "ls", code=3)[1]
    assert "shunter run -- ls" in refused
    assert "train.py" in shunter("run", "--", "ls")[1]


def test_behind_two_dashes_a_configured_component_gets_its_arguments(shunter: Command, project: Path) -> None:
    (project / "shunter.toml").write_text('[run]\ncomponent = "utils.sh"\n')
    assert planned(shunter, "--", "ls", "-l")["app"]["roles"][0]["args"] == ["-c", "exec ls -l"]
    (project / "shunter.toml").write_text('[run]\ncomponent = "utils.echo"\n')
    assert planned(shunter, "--", "--msg", "hi")["app"]["roles"][0]["args"] == ["hi"]
    assert planned(shunter, "python3", "-V")["app"]["roles"][0]["args"] == ["-c", "exec python3 -V"]


# ---- options of ours behind a script


def test_a_dry_run_behind_a_script_starts_nothing(shunter: Command, project: Path) -> None:
    refused = shunter("run", "--cpu", "1", "./train.py", "--dryrun", "--lr", "1", code=2)[1]
    assert "./train.py does not mention --dryrun" in refused
    assert "nothing was started" in refused
    assert not json.loads(shunter("list", "--json")[0])
    hints = dict(line.split(": ", 1) for line in refused.splitlines() if line.startswith("For "))
    ours = shunter(*shlex.split(hints["For shunter"])[1:])[0]
    assert '"arguments": [\n            "--lr",\n            "1"\n          ]' in ours
    assert "['--dryrun', '--lr', '1']" in shunter(*shlex.split(hints["For the script"])[1:])[1]


def test_other_options_behind_a_script_are_warned_of(shunter: Command, project: Path) -> None:
    warned = shunter("run", "./train.py", "--gpu", "1")[1]
    assert "./train.py does not mention --gpu" in warned
    assert "['--gpu', '1']" in warned
    (project / "train.py").write_text(HEADER + "print(1)\n")  # the word in the header does not count
    assert "does not mention --gpu" in shunter("plan", "./train.py", "--gpu", "1")[1]


@pytest.mark.parametrize("source", ["p.add_argument('--dry-run')", "def main(dry_run): ...", "args.dry_run"])
def test_what_a_script_mentions_is_its_own(shunter: Command, project: Path, source: str) -> None:
    (project / "train.py").write_text(f'"""{source}"""\nprint("ran")')
    err = shunter("run", "./train.py", "--dry-run")[1]
    assert "does not mention" not in err
    assert "ran" in err


@pytest.mark.parametrize(("answer", "code"), [(b"n", 2), (b"y", 0)])
def test_on_a_terminal_it_is_asked(cli: Cli, answer: bytes, code: int) -> None:
    (cli.directory / "train.py").write_text("print('started')")
    terminal = cli.on_terminal("run", "./train.py", "--dryrun")
    terminal.wait_for(b"[y/N]")
    terminal.type(answer + b"\n")
    assert terminal.finish() == code
    assert (b"started" in terminal.shown.replace(b"nothing was started", b"")) == (code == 0)


# ---- the header


def test_a_header_says_what_the_job_needs(shunter: Command, project: Path) -> None:
    (project / "train.py").write_text(HEADER + "print(1)\n")
    plan = planned(shunter, "--env", "B=mine", "--mem", "4G", "./train.py", "--lr", "1")
    (role,) = plan["app"]["roles"]
    assert role["resource"] | {"cpu": 2, "gpu": 1, "memMB": 4096} == role["resource"]
    assert role["env"] == {"A": "header", "B": "mine"}
    assert role["max_retries"] == 3
    train = role["metadata"]["train"]
    assert train["metrics"] == [{"name": "loss"}, {"name": "accuracy", "regex": "acc (\\d+)"}]
    assert train["distribution"] == {"kind": "torchrun", "processes_per_host": 2}
    header = "the header of ./train.py"
    assert plan["options"]["timeout"] == {"value": 5400.0, "source": header}
    assert plan["arguments"]["gpu"] == {"value": 1, "source": header}
    assert plan["arguments"]["memMB"]["source"] == "command line"
    assert plan["arguments"]["env"]["source"] == f"{header}, command line"
    text = shunter("plan", "./train.py")[0]
    assert [line.split(None, 2) for line in text.splitlines() if line.startswith("memMB")] == [
        ["memMB", "2048", header]
    ]
    # `train.script` is what a script's path is short for
    assert planned(shunter, "train.script", "--script", "train.py")["arguments"]["gpu"]["value"] == 1


def test_of_several_places_the_nearest_wins(
    shunter: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "train.py").write_text(
        HEADER.replace('partition = "gpu"', 'partition = "gpu"\n# time = "5:00"\n# qos = "header"')
    )
    (project / "shunter.toml").write_text(
        '[run]\nscheduler = "slurm"\n[component."train.script"]\ncpu = 8\nmax_retries = 1\nnum_replicas = 4\n'
        '[scheduler.slurm]\npartition = "file"\naccount = "file"\ntime = "1:00"\n'
    )
    monkeypatch.setenv("SHUNTER_SLURM_QOS", "variable")
    plan = planned(shunter, "-cfg", "partition=typed,job_dir=shared", "./train.py")
    sources = {name: (entry["value"], entry["source"]) for name, entry in plan["options"].items()}
    assert sources["partition"] == ("typed", "command line")
    assert sources["qos"] == ("variable", "SHUNTER_SLURM_QOS")
    assert sources["time"] == ("5:00", "the header of ./train.py")
    assert sources["account"] == ("file", str(project / "shunter.toml"))
    assert plan["arguments"]["cpu"]["value"] == 2
    assert plan["arguments"]["num_replicas"] == {"value": 4, "source": str(project / "shunter.toml")}


def test_a_header_chooses_the_scheduler(shunter: Command, project: Path) -> None:
    (project / "train.py").write_text('# /// script\n# [tool.shunter]\n# scheduler = "slurm"\n# ///\n')
    # what the scheduler still needs shows that it was chosen
    assert planned(shunter, "-cfg", "job_dir=shared", "./train.py")["scheduler"] == "slurm"
    assert planned(shunter, "-s", "local_cwd", "./train.py")["scheduler"] == "local_cwd"
    (project / "train.py").write_text('# /// script\n# [tool.shunter]\n# scheduler = "slrum"\n# ///\n')
    refused = shunter("run", "./train.py", code=3)[1]
    assert "the header of ./train.py: " in refused
    assert "Did you mean slurm?" in refused


def test_config_shows_what_holds_for_a_script(shunter: Command, project: Path) -> None:
    (project / "train.py").write_text(HEADER)
    (project / "shunter.toml").write_text('[component."train.script"]\nimage = "mine"\n')
    sections = json.loads(shunter("config", "show", "--json", "train.py")[0])
    header = "the header of train.py"
    assert sections["component.train.py"]["memMB"] == {"value": 2048, "origin": header}
    assert sections["component.train.script"]["image"]["value"] == "mine"
    assert sections["scheduler.slurm"]["partition"] == {"value": "gpu", "origin": header}
    assert sections["scheduler.local_cwd"] == {"timeout": {"value": 5400.0, "origin": header}}
    assert "scheduler.lsf" not in sections
    assert "header" not in shunter("config", "show", "local_cwd")[0]


@pytest.mark.parametrize(
    ("lines", "problems", "hint"),
    [
        (
            "gpus = 1\nmem = 5\nenv = { A = 1 }",
            ["no key 'gpus'", "mem: 5 is not", "env: [A]: 1"],
            "gpu",
        ),
        ('time = "60"', ["time: '60' is not a time limit with units"], ""),
        ('gpu = "many"', ["gpu: 'many' is not an integer"], ""),
        ('[tool.shunter.slrum]\npartition = "gpu"', ["no key and no scheduler 'slrum'"], "slurm"),
        ('[tool.shunter.slurm]\nparttion = "gpu"', ["slurm has no option 'parttion'"], "partition"),
    ],
)
def test_a_wrong_header(shunter: Command, project: Path, lines: str, problems: list[str], hint: str) -> None:
    text = "\n".join(f"# {line}" for line in ["/// script", "[tool.shunter]", *lines.splitlines(), "///"])
    (project / "train.py").write_text(text + "\n")
    refused = shunter("run", "-s", "slurm", "-cfg", "job_dir=x", "./train.py", code=3)[1]
    assert all(problem in refused for problem in ["the header of ./train.py", *problems])
    assert f"Did you mean {hint}?" in refused if hint else True


@pytest.mark.parametrize(
    ("line", "name", "instead"),
    [
        ('output = "s3://elsewhere/x"', "output", ["--output", "out"]),
        ('checkpoints = "/elsewhere"', "checkpoints", ["--checkpoints", "out"]),
        ('channel = { training = "/" }', "channel", ["--channel", "training=."]),
        ('mounts = ["type=bind,src=/,dst=/host"]', "mounts", ["--mounts", ""]),
        ('[tool.shunter.local_cwd]\n# notify = ["sh -c boo"]', "local_cwd.notify", ["--notify", "true"]),
    ],
)
def test_what_a_header_may_not_choose_unasked(
    shunter: Command, project: Path, line: str, name: str, instead: list[str]
) -> None:
    script = project / "train.py"
    script.write_text(f"# /// script\n# [tool.shunter]\n# cpu = 2\n# {line}\n# ///\n")
    refused = shunter("run", "--dryrun", "./train.py", code=3)[1]
    assert f"the header of ./train.py: {name} names " in refused
    assert "`shunter trust ./train.py`" in refused
    shunter("run", "--dryrun", *instead, "./train.py")
    assert f"  {name} = " in shunter("trust", "./train.py", "--yes")[0]
    script.write_text(script.read_text() + "print('changed code needs no trust again')\n")
    shunter("run", "--dryrun", "train.py")
    assert "(changed since)" not in shunter("trust", "--list")[0]
    script.write_text(script.read_text().replace("cpu = 2", "cpu = 3"))
    shunter("run", "--dryrun", "./train.py", code=3)
    assert "(changed since)" in shunter("trust", "--list")[0]
    assert "is trusted no more" in shunter("trust", "--revoke", "train.py")[1]


# ---- init


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_init_adds_a_header_and_changes_nothing_else(shunter: Command, project: Path, newline: str) -> None:
    script = project / "train.py"
    first = ["#!/usr/bin/env python", "# -*- coding: utf-8 -*-"]
    rest = ['"""Trains."""', "import json, psutil, nothing_of_this_name, mine", "x = 'ä'  # no newline"]
    script.write_bytes(newline.join(first + rest).encode())
    script.chmod(0o755)
    (project / "mine.py").touch()
    shown = shunter("init", "--dry-run", "train.py")[0]
    assert script.read_bytes() == newline.join(first + rest).encode()
    assert shunter("init", "train.py")[0] == "train.py\n"
    text = script.read_bytes().decode()
    header = text.removeprefix(newline.join(first) + newline).removesuffix(newline.join(rest))
    assert header.replace("\r\n", "\n") == shown
    assert '# # dependencies = ["psutil"]\n' in shown
    assert script.stat().st_mode & 0o777 == 0o755
    assert "has a header already" in shunter("init", "train.py", code=3)[1]
    planned(shunter, "./train.py")


def test_every_example_of_init_can_be_uncommented(shunter: Command, project: Path) -> None:
    (project / "data").mkdir()
    shunter("init", "train.py")
    script = project / "train.py"
    script.write_text(script.read_text().replace("# # ", "# "))
    plan = planned(shunter, "--gpu", "0", "./train.py")
    assert plan["arguments"]["memMB"] == {"value": 16384, "source": "the header of ./train.py"}
    assert plan["options"]["timeout"]["value"] == 3600.0


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("none.py", None, "there is no script none.py"),
        ("data.bin", b"x", "neither a Python nor a shell script"),
        ("latin.py", b"# \xe4", "not UTF-8"),
    ],
)
def test_init_refuses(
    shunter: Command, project: Path, name: str, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (project / name).write_bytes(content)
    assert problem in shunter("init", name, code=3)[1]
