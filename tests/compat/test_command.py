"""The command `torchx`: command lines of TorchX's documentation, and what TorchX 0.7.0 makes of them."""

from __future__ import annotations

import copy
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shunter.cli import command_line
from shunter.cli.parser import Parser
from shunter.compat import torchx_command
from shunter.compat.torchx_command import torchx_json
from shunter.components.finder import get_component
from shunter.runner.config import load_config
from shunter.specs.status import AppState, AppStatus, ReplicaStatus, RoleStatus
from tests.backends import torchx_python
from tests.compat.record_torchx import as_json

GOLDEN = Path(__file__).parent / "golden"
LINES = (GOLDEN / "command_lines.txt").read_text().splitlines()
#: What TorchX 0.7.0 makes of them; `test_the_recording_is_torchx_s` makes it again.
RECORDED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "torchx-0.7.0.json").read_text())
#: Options of later releases.
NEWER = {line for line, found in RECORDED.items() if "refused" in found}
COMPONENT = """
import torchx.specs as specs


def {name}(lr: float = 0.1) -> specs.AppDef:
    return specs.AppDef("train", [specs.Role("trainer", "img", entrypoint="echo", args=[str(lr)])])
"""
#: The commands of shunter that do what those of TorchX do.
MEANINGS = {
    "torchx builtins": "components",
    "torchx cancel slurm://torchx_user/1234": "cancel slurm://torchx_user/1234",
    "torchx cancel kubernetes://namespace/jobname": "cancel kubernetes://namespace/jobname",
    "torchx delete kubernetes://torchx_user/ns:1234": "delete kubernetes://torchx_user/ns:1234",
    "torchx describe slurm://torchx_user/1234": "describe slurm://torchx_user/1234",
    "torchx list -s kubernetes": "list -s kubernetes --limit=0",
    "torchx list --scheduler slurm": "list -s slurm --limit=0",
    "torchx list -s slurm -cfg partition=gpu": "list -s slurm --limit=0 --scheduler_args=partition=gpu",
    "torchx log kubernetes://torchx_user/ns:1234": "log kubernetes://torchx_user/ns:1234",
    "torchx log --tail slurm://torchx_user/1234": "log slurm://torchx_user/1234 --follow",
    "torchx log -t slurm://torchx_user/1234": "log slurm://torchx_user/1234 --follow",
    'torchx log --regex ".*Exception.*" slurm://torchx_user/1234': (
        "log slurm://torchx_user/1234 '--regex=.*Exception.*'"
    ),
    "torchx log --streams stderr slurm://torchx_user/1234/trainer": (
        "log slurm://torchx_user/1234/trainer --streams=stderr"
    ),
    "torchx log slurm://torchx_user/1234/trainer": "log slurm://torchx_user/1234/trainer",
    "torchx log slurm://torchx_user/1234/trainer/0,1": "log slurm://torchx_user/1234/trainer/0,1",
    "torchx log kubernetes:///ns:1234/trainer/0": "log kubernetes:///ns:1234/trainer/0",
    "torchx runopts": "runopts",
    "torchx runopts local_cwd": "runopts local_cwd",
    "torchx runopts kubernetes": "runopts kubernetes",
    "torchx status aws_batch://torchx_user/1234": "status aws_batch://torchx_user/1234",
    "torchx status kubernetes://torchx_user/1234": "status kubernetes://torchx_user/1234",
    "torchx status slurm://torchx_user/1234": "status slurm://torchx_user/1234",
    "torchx status --role trainer slurm://torchx_user/1234": (
        "status slurm://torchx_user/1234 --roles=trainer"
    ),
    "torchx status --roles trainer,reader slurm://torchx_user/1234": (
        "status slurm://torchx_user/1234 --roles=trainer,reader"
    ),
    "torchx tracker list jobs": "tracker list jobs",
    "torchx tracker list jobs --parent-run-id experiment": "tracker list jobs --parent-run-id experiment",
    "torchx tracker list metadata slurm://torchx_user/1234": "tracker list metadata slurm://torchx_user/1234",
    "torchx tracker list artifacts slurm://torchx_user/1234": (
        "tracker list artifacts slurm://torchx_user/1234"
    ),
}
#: Those that `torchx` carries out itself: the beginning of what they print.
PRINTED = {
    "torchx --version": "torchx command of shunter",
    "torchx --help": "usage: torchx",
    "torchx builtins --print utils.echo": '"""Components for everyday programs',
    "torchx configure --print": "[local_cwd]",
    "torchx configure -s local_cwd,slurm --print": "[local_cwd]\n\n[slurm]",
    "torchx configure -s kubernetes --print --all": "[kubernetes]\nimage_repo = None\nquiet = False\n",
    "torchx configure -s kubernetes --print -a": "[kubernetes]\nimage_repo = None\nquiet = False\n",
    "torchx run --help": "usage: torchx run",
    "torchx run --scheduler local_cwd utils.echo --help": "usage: shunter run utils.echo",
    "torchx run ./component.py:train --help": "usage: shunter run ./component.py:train",
    "torchx run component.py:train --help": "usage: shunter run component.py:train",
}
STATUS_JSON = "torchx status --json slurm://torchx_user/1234"  # has tests below
#: Those that name a scheduler which TorchX has removed, and the answer.
ANSWERED = {
    line: (f"there is no scheduler '{name}': TorchX removed it in {year}", hint)
    for name, year, hint in (
        ("gcp_batch", 2025, "On Google Cloud, kubernetes (GKE) and slurm work."),
        ("kubernetes_mcad", 2026, "Use kubernetes: with Kueue it queues jobs as MCAD did."),
    )
    for line in LINES
    if name in line
}
#: Those that TorchX 0.7.0 did not know, and the ones that mean the same.
SAME_AS = {
    "torchx run --scheduler local_cwd torchx.components.utils.echo": "torchx run -s local_cwd utils.echo",
    "torchx run -s local_cwd dist.torchrun -j 1x4 --script main.py": (
        "torchx run -s local_cwd dist.ddp -j 1x4 --script main.py"
    ),
}
RUNS = [
    line
    for line in LINES
    if line.startswith("torchx run ") and line not in {**PRINTED, **ANSWERED, **SAME_AS}
]

#: What cannot be done as TorchX did it, or lacks an option that TorchX requires too, and says so.
REFUSED = {
    line: "lsf has no mounts of type bind"  # programs run on the hosts, not in containers
    for line in RUNS
    if "-s lsf" in line and "--mount" in line
} | {
    line: "option 'role' (str) is required"
    for line in RUNS
    if "-s aws_sagemaker" in line and "-cfg" not in line
}

pytestmark = pytest.mark.filterwarnings("default::RuntimeWarning")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files that the command lines name."""
    folder = tmp_path / "project"
    for name in ("main.py", "my_app.py", "my_module.py", "lightning/train.py", "datapreproc/datapreproc.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "my_trainer_spec.py").write_text(COMPONENT.format(name="my_trainer"))
    for name in ("component.py", "my_component.py"):
        (folder / name).write_text(COMPONENT.format(name="train"))
    (folder / ".torchxconfig").write_text("[component:dist.ddp]\nscript = main.py\n")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def carried_out(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str], dict[str, Any]]]:
    """The commands of shunter that a command line comes to, which are not run."""
    found: list[tuple[str, list[str], dict[str, Any]]] = []

    def note(name: str, words: list[str], options: Any, **more: Any) -> int:
        found.append((name, words, more))
        return 0

    monkeypatch.setattr(torchx_command, "run_command", note)
    return found


def torchx(line: str) -> int:
    return torchx_command.main(shlex.split(line)[1:])


def test_every_line_is_in_one_of_the_tables() -> None:
    assert sorted([*MEANINGS, *PRINTED, *RUNS, *ANSWERED, *SAME_AS, STATUS_JSON]) == sorted(LINES)
    assert len(LINES) >= 70
    assert list(RECORDED) == LINES
    assert len(NEWER) == 3 + len(SAME_AS)


@pytest.mark.parametrize("line", MEANINGS)
def test_what_a_line_means(line: str, carried_out: list[Any], project: Path) -> None:
    assert torchx(line) == 0
    ((name, words, _),) = carried_out
    assert [name, *words] == shlex.split(MEANINGS[line])


@pytest.mark.parametrize("line", PRINTED)
def test_what_a_line_prints(line: str, capfd: pytest.CaptureFixture[str], project: Path) -> None:
    assert torchx(line) == 0
    assert capfd.readouterr().out.startswith(PRINTED[line])


@pytest.mark.parametrize("line", ANSWERED)
def test_removed_schedulers_are_answered(line: str, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert torchx(line) == 3
    shown = capfd.readouterr().err
    problem, hint = ANSWERED[line]
    assert problem in shown
    assert hint in shown
    assert "Did you mean" not in shown


@pytest.mark.parametrize("line", SAME_AS)
def test_what_is_newer_means_the_same(line: str, carried_out: list[Any], project: Path) -> None:
    assert torchx(line) == torchx(SAME_AS[line]) == 0
    run = command_line.load_command("run")
    apps = []
    for name, words, _ in carried_out:
        assert name == "run"
        parser = Parser("run")
        run.add_arguments(parser)
        args = run.parse(parser, words)
        assert args.scheduler == "local_cwd"
        apps.append(as_json(get_component(args.component).parse(args.component_args, {})))
    assert apps[0] == apps[1]


@pytest.mark.parametrize("line", RUNS)
def test_a_job_is_the_one_that_torchx_makes(line: str, carried_out: list[Any], project: Path) -> None:
    assert torchx(line) == 0
    ((name, words, more),) = carried_out
    assert (name, more) == ("run", {"surplus": "warn"})
    run = command_line.load_command("run")
    parser = Parser("run")
    run.add_arguments(parser)
    args = run.parse(parser, words)
    theirs = RECORDED[line]["args"]
    assert [getattr(args, key) for key in ("scheduler", "dryrun", "workspace", "parent_run_id")] == [
        theirs[key] for key in ("scheduler", "dryrun", "workspace", "parent_run_id")
    ]
    assert args.cfg == ([theirs["scheduler_args"]] if theirs["scheduler_args"] else [])
    # local schedulers wait and log
    assert args.log == (theirs["log"] or (theirs["scheduler"].startswith("local") and not args.dryrun))
    settings = load_config().component(args.component)
    defaults = {key: setting.value for key, setting in settings.items()}
    ours = as_json(get_component(args.component).parse(args.component_args, defaults))
    assert normal(ours) == normal(copy.deepcopy(RECORDED[line]["app"]))


def normal(app: dict[str, Any]) -> dict[str, Any]:
    """Return a job without what makes no difference.

    That is the name of its tracked run, which later releases of TorchX give to it too; the signals that
    torchrun passes on, so that a warning before the time limit arrives; quotes around a macro that holds no
    blank; the shell's exec; and a least number of replicas that is all of them.
    """
    for role in app["roles"]:
        role["env"].pop("TORCHX_TRACKING_RUN_NAME", None)
        role["env"].pop("PET_SIGNALS_TO_HANDLE", None)
        role["args"] = [
            word.replace("'${app_id}'", "${app_id}").removeprefix("exec ") for word in role["args"]
        ]
        role["min_replicas"] = role["min_replicas"] or role["num_replicas"]
    return app


@pytest.mark.parametrize("line", RUNS)
def test_no_job_is_refused(line: str, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line)
    code = torchx_command.main(["run", "--dryrun", *words[2:]])
    shown = capfd.readouterr()
    assert (code == 0) == (line not in REFUSED), shown.err
    if line in REFUSED:
        assert REFUSED[line] in shown.err
        return
    assert "# request" in shown.out
    assert "has no effect" not in shown.err


def test_options_that_a_scheduler_lacks_are_left_out_with_a_warning(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert torchx("torchx run --dryrun -s local_cwd -cfg log_dir=/tmp/x,log_dri=y utils.echo") == 0
    shown = capfd.readouterr()
    assert "command line: local_cwd has no option 'log_dri', so this setting has no effect" in shown.err
    assert '"log_dir": "/tmp/x"' in shown.out


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (["--items", "a;b,c"], ["a;b", "c"]),
        (["--items=a;b"], ["a;b"]),
        (["--it", "a,b"], ["a", "b"]),
        (["--items", "a,b", "--fl", "true"], ["a", "b", "True"]),
        (["--flag", "--items", "a,;,b"], ["a", ";", "b", "True"]),
    ],
)
def test_arguments_of_components(tmp_path: Path, given: list[str], read: list[str]) -> None:
    path = tmp_path / "own.py"
    path.write_text(
        "from typing import List\nimport torchx.specs as specs\n\n\n"
        "def job(items: List[str], flag: bool = False) -> specs.AppDef:\n"
        '    role = specs.Role("r", "i", entrypoint="echo", args=[*items, *(["True"] if flag else [])])\n'
        '    return specs.AppDef("a", [role])\n'
    )
    component = get_component(f"{path}:job")
    words = torchx_command.component_words(component, given)
    assert component.parse(words).roles[0].args == read


def test_the_configured_component_and_scheduler(project: Path, carried_out: list[Any]) -> None:
    (project / ".torchxconfig").write_text(
        "[cli:run]\ncomponent = utils.echo\nscheduler = kubernetes\n[cli:list]\nscheduler = slurm\n"
    )
    torchx("torchx run -- --msg hi")
    torchx("torchx list")
    assert [words for _, words, _ in carried_out] == [
        ["-s", "kubernetes", "utils.echo", "--msg", "hi"],
        ["-s", "slurm", "--limit=0"],
    ]


def test_a_local_job_is_followed_and_its_replicas_states_are_numbers(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert torchx("torchx run -s local_cwd --wait utils.sh echo hello") == 0
    shown = capfd.readouterr()
    assert "sh/0 hello" in shown.err
    handle = shown.out.strip()
    assert torchx(f"torchx status --json {handle}") == 0
    status = json.loads(capfd.readouterr().out)
    replica = status["roles"][0]["replicas"][0]
    assert (status["handle"], status["state"], replica["state"]) == (handle, "SUCCEEDED", 4)
    assert torchx(f"torchx log {handle}/sh/0") == 0
    assert capfd.readouterr().out == "sh/0 hello\n"
    assert torchx(f"torchx log --tail {handle}/sh") == 0


@pytest.mark.parametrize(
    ("ours", "name", "number"), [("UNREACHABLE", "UNKNOWN", 7), ("SUSPENDED", "PENDING", 2)]
)
def test_status_json_has_only_states_of_torchx(ours: str, name: str, number: int) -> None:
    state = AppState[ours]
    status = AppStatus(state, roles=[RoleStatus("sh", [ReplicaStatus(0, state, "sh", "host")])])
    shown = torchx_json("slurm://s/job-1", status)
    assert (shown["state"], shown["roles"][0]["replicas"][0]["state"]) == (name, number)


def test_configure_writes_what_it_prints_and_never_over_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert torchx("torchx configure -s aws_batch,local_cwd --all") == 0
    text = (tmp_path / ".torchxconfig").read_text()
    assert "[aws_batch]\n" in text
    assert "\nqueue = #FIXME:(str) " in text
    assert "\n[local_cwd]\nlog_dir = None\nprepend_cwd = False\n" in text
    assert torchx("torchx configure") == 3
    assert "exists, and is not overwritten" in capfd.readouterr().err
    # and what it wrote is read back without a word
    assert torchx("torchx run --dryrun -s local_cwd utils.echo") == 0
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("torchx stat x", "invalid choice: 'stat'"),
        ("torchx", "no command given"),
        ("torchx log", "the following arguments are required"),
        ("torchx run --nonsense utils.echo", "unrecognized arguments: --nonsense"),
        ("torchx status --json slurm:x", "handle"),
    ],
)
def test_mistakes(line: str, problem: str, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert torchx(line) != 0
    assert problem in capfd.readouterr().err


@pytest.mark.slow
def test_the_recording_is_torchx_s(project: Path) -> None:
    python = torchx_python()
    shutil.rmtree(project / "__pycache__", ignore_errors=True)
    done = subprocess.run(
        [python, str(Path(__file__).parent / "record_torchx.py")],
        input="\n".join(LINES),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
        env={"HOME": os.environ["HOME"], "PATH": os.environ["PATH"]},
    )
    assert json.loads(done.stdout) == RECORDED
