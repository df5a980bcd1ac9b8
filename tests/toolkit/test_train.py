"""`train` as a process: what the script sees, and what is left when it has ended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from .conftest import DUMP, RESOURCE, Tree


def test_script_gets_arguments_variables_and_its_directory(tree: Tree) -> None:
    tree.script(DUMP)
    tree.hyperparameters(**{"batch-size": "256", "learning-rate": "0.0001", "communicator": "pure_nccl"})
    done = tree.train()
    assert done.returncode == 0, done.stderr
    seen = tree.dump()
    assert seen["argv"] == ["--batch-size", "256", "--communicator", "pure_nccl", "--learning-rate", "0.0001"]
    assert seen["cwd"] == str(tree.base / "code")
    assert seen["env"]["SM_HP_BATCH-SIZE"] == seen["env"]["SM_HP_BATCH_SIZE"] == "256"
    assert seen["env"]["PYTHONPATH"].split(":")[0] == str(tree.base / "code")
    assert tree.succeeded


def test_stdout_is_the_same_file_when_no_capture_is_needed(tree: Tree) -> None:
    tree.script("import os; print(os.readlink('/proc/self/fd/1'), os.readlink('/proc/self/fd/2'))")
    log = tree.base / "log.txt"
    with log.open("w") as file:
        subprocess.run(tree.command(), env=tree.env(), stdout=file, stderr=file, check=True)
    assert f"{log} {log}" in log.read_text()


@pytest.mark.parametrize("code", [1, 77])
def test_exit_code_is_the_scripts_own(tree: Tree, code: int) -> None:
    tree.script(f"import sys; sys.exit({code})")
    assert tree.train().returncode == code
    assert tree.report["class"] == "user_error"
    assert tree.report["exit_code"] == code


def test_signal_gives_128_plus_its_number(tree: Tree) -> None:
    tree.script("import os; os.kill(os.getpid(), 9)")
    assert tree.train().returncode == 137
    assert tree.report["class"] == "signal"
    assert tree.report["signal"] == "SIGKILL"
    assert tree.failure.startswith("train.py was killed by SIGKILL\n")


def test_failure_names_the_error_first(tree: Tree) -> None:
    tree.script(
        """
        import sys
        def check(rate):
            raise ValueError(f"learning rate must be positive, not {rate}")
        print("x" * 5000, file=sys.stderr)
        check(-1)
        """
    )
    assert tree.train().returncode == 1
    lines = tree.failure.splitlines()
    assert lines[0] == "ValueError: learning rate must be positive, not -1"
    assert "line 4, in check" in tree.failure
    assert len(tree.failure) <= 1024
    report = tree.report
    assert report["outcome"] == "failed"
    assert report["exception"] == "ValueError"
    assert [frame["function"] for frame in report["traceback"]] == ["<module>", "check"]
    assert report["traceback"][-1]["code"].startswith("raise ValueError")
    assert report["host"] == "algo-1"
    assert report["stderr"][-1].startswith("ValueError")


def test_scripts_own_failure_text_wins(tree: Tree) -> None:
    tree.script(
        """
        import os, sys
        open(os.path.join(os.environ["SM_OUTPUT_DIR"], "failure"), "w").write("my own reason\\nmore")
        sys.exit(4)
        """
    )
    assert tree.train().returncode == 4
    assert tree.failure == "my own reason\nmore"
    assert tree.report["reason"] == "my own reason"


def test_earlier_reports_are_removed(tree: Tree) -> None:
    tree.script("raise SystemExit(1)")
    tree.train()
    tree.script("pass")
    assert tree.train().returncode == 0
    assert tree.succeeded


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hyperparameters", "inputdataconfig", "resourceconfig"])
@pytest.mark.parametrize(
    ("content", "code", "words"),
    [(None, 2, "no such file"), ("{bad", 1, "not valid JSON"), ("[1]", 1, "not an object"), ("\xff", 1, "")],
)
def test_bad_configuration(tree: Tree, name: str, content: str | None, code: int, words: str) -> None:
    path = tree.base / f"input/config/{name}.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content.encode("latin-1"))
    tree.script("pass")
    done = tree.train()
    assert done.returncode == code
    assert tree.report["class"] == "client_error"
    assert f"{name}.json" in tree.failure.splitlines()[0]
    assert words in tree.failure
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("resource", "words"),
    [
        ({"hosts": ["algo-1"]}, "current_host"),
        ({**RESOURCE, "hosts": "algo-1"}, "list of names"),
        ({**RESOURCE, "instance_groups": [{"x": 1}]}, "instance_group_name"),
        ({**RESOURCE, "current_group_name": "other"}, "'other' is not in"),
    ],
)
def test_bad_cluster(tree: Tree, resource: dict, words: str) -> None:
    tree.configure("resourceconfig", resource)
    tree.script("pass")
    assert tree.train().returncode == 1
    assert words in tree.failure
    assert tree.report["class"] == "client_error"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("", "No entry point"),
        ("nope.py", "is not in the code directory"),
        ("../evil.py", "path under the code directory"),
        ("/bin/true", "path under the code directory"),
        ("-c", "path under the code directory"),
        ("folder.py", "is a folder"),
    ],
)
def test_bad_entry_point(tree: Tree, program: str, words: str) -> None:
    (tree.base / "code/folder.py").mkdir()
    tree.hyperparameters(program)
    done = tree.train()
    assert done.returncode == 1
    assert tree.report["class"] == "client_error"
    assert words in tree.failure
    assert "Traceback" not in done.stderr


def test_program_variable_wins(tree: Tree) -> None:
    tree.script("raise SystemExit(9)", "other.py")
    tree.script("pass")
    assert tree.train(SAGEMAKER_PROGRAM="other.py").returncode == 9


def test_shell_script_gets_arguments_unharmed(tree: Tree) -> None:
    tree.script('for a in "$@"; do echo "<$a>"; done; exit 5', "run.sh")
    tree.hyperparameters("run.sh", a="it's $HOME `id`", b='"two  words"')
    done = tree.train()
    assert done.returncode == 5
    assert done.stdout.splitlines() == ["<-a>", "<it's $HOME `id`>", "<-b>", "<two  words>"]


def test_shell_scripts_first_line_is_honoured(tree: Tree) -> None:
    script = tree.script(f"#!{sys.executable}\nimport sys; print(sys.version_info[0]); sys.exit(6)", "run.sh")
    tree.hyperparameters("run.sh")
    done = tree.train()
    assert done.returncode == 6, done.stderr
    assert done.stdout == "3\n"
    assert not os.access(script, os.X_OK)  # it may be the user's own file


def test_a_program_is_made_executable(tree: Tree) -> None:
    shutil.copyfile("/bin/true", tree.script("", "run"))
    tree.hyperparameters("run")
    assert tree.train().returncode == 0


def test_binary_rubbish_is_refused(tree: Tree) -> None:
    path = tree.script("", "run")
    path.write_bytes(b"\x00\x01\x02")
    tree.hyperparameters("run")
    assert tree.train().returncode == 1
    assert "neither a script nor a program" in tree.failure


def test_explicit_arguments_are_passed_exactly(tree: Tree) -> None:
    tree.script(DUMP)
    tree.hyperparameters(x="1")
    given = ["--", "--flag", "", "a b", "--x=1"]
    assert tree.train("--", *given).returncode == 0
    assert tree.dump()["argv"] == given
    assert json.loads(tree.dump()["env"]["SM_USER_ARGS"]) == given


def test_secrets_are_masked(tree: Tree) -> None:
    tree.script("import sys; sys.exit('bad token hunter2-hunter2 at https://u:pw@host/x')")
    tree.hyperparameters(hf_token="hunter2-hunter2", pad_token="<pad>", url="https://me:pw@host/x")
    done = tree.train(DB_PASSWORD="swordfish-swordfish")
    head = done.stderr.split("bad token")[0]
    assert done.returncode == 1
    assert "hunter2-hunter2" not in head
    assert "me:pw" not in head
    assert "SM_HP_HF_TOKEN=******" in head
    assert "SM_HP_PAD_TOKEN=<pad>" in head
    for text in (tree.failure, json.dumps(tree.report)):
        assert "hunter2" not in text
        assert "u:pw@" not in text


def test_short_secrets_are_masked_where_their_name_is(tree: Tree) -> None:
    tree.script("raise SystemExit(1)")
    tree.hyperparameters(**{"db-password": "qzx", "deep": '{"token": "qzx", "n": 1}', "epochs": "3"})
    done = tree.train()
    assert "qzx" not in done.stderr + tree.failure + json.dumps(tree.report)
    assert '"epochs":3' in done.stderr
    assert "--epochs 3" in tree.failure


def test_background_processes_are_ended(tree: Tree) -> None:
    tree.script(
        """
        import os, subprocess, sys
        command = [sys.executable, "-c", "import time; time.sleep(300)"]
        child = subprocess.Popen(command, start_new_session=True)
        same = subprocess.Popen(command)
        print(child.pid, same.pid, flush=True)
        os._exit(0)
        """
    )
    done = tree.train()
    assert done.returncode == 0
    pids = done.stdout.split()
    assert len(pids) == 2
    for pid in pids:
        assert not os.path.exists(f"/proc/{pid}")


def test_memory_error_is_out_of_memory(tree: Tree) -> None:
    tree.script("raise MemoryError('no more')")
    assert tree.train().returncode == 1
    assert tree.report["class"] == "out_of_memory"


def test_wrong_command_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shunter_toolkit", "trian"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "usage:" in done.stderr
