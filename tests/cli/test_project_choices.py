"""What a project's files may choose for those who work in it, and what is said of it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

CONFIG = """
[run]
scheduler = "aws_batch"
component = "utils.echo"

[scheduler.aws_batch]
queue = "theirs"
region = "eu-west-1"
image_repo = "registry.example.org/theirs"
"""


@pytest.mark.slow
@pytest.mark.parametrize("workspace", ["{}/private", "..", "link", "in=a,{}/private=b", "@0123456789abcdef"])
def test_a_workspace_outside_of_the_project_needs_trust(cli: Cli, tmp_path: Path, workspace: str) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "a.py").touch()
    (cli.directory / "in").mkdir()
    (cli.directory / "in" / "b.py").touch()
    (cli.directory / "link").symlink_to(tmp_path / "private")
    text = workspace.format(tmp_path)
    place = cli.directory / "shunter.toml"
    place.write_text(f'[run]\ncomponent = "utils.echo"\nworkspace = "{text}"\n')
    refused = cli("run", "--dryrun", code=3)
    assert refused.err.startswith(
        f"error: {place}: run.workspace names files outside of the project. "
        "This counts only if you trust the project\n"
    )
    if not text.startswith("@"):
        assert cli("run", "--dryrun", "--workspace", text).code == 0
        cli("trust", "--yes")
        assert cli("run", "--dryrun").code == 0


def test_what_is_below_the_repository_is_in_the_project(cli: Cli) -> None:
    (cli.directory / ".git").mkdir()
    (cli.directory / "lib").mkdir()
    (cli.directory / "shunter.toml").write_text(
        '[run]\ncomponent = "utils.echo"\nworkspace = "lib"\n[scheduler.local_cwd]\nlog_dir = "logs"\n'
    )
    (cli.directory / "lib" / "a.py").touch()
    assert cli("run", "--dryrun", "-s", "local_cwd").code == 0


def test_a_home_directory_that_is_a_repository_is_no_project(cli: Cli) -> None:
    home = cli.directory.parent
    (home / ".git").mkdir()
    (home / ".ssh").mkdir()
    (cli.directory / "shunter.toml").write_text('[run]\nworkspace = "../.ssh"\n')
    refused = cli("run", "--dryrun", "utils.echo", code=3, HOME=str(home))
    assert "run.workspace names files outside of the project" in refused.err


def test_data_outside_of_the_project_needs_trust(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (cli.directory / "shunter.toml").write_text(
        f'[scheduler.aws_sagemaker.channels]\ntraining = "{tmp_path}/private"\n'
    )
    options = ["-s", "aws_sagemaker", "-cfg", "role=r,instance_type=ml.m5.large,region=eu-west-1"]
    refused = cli("run", "--dryrun", *options, "utils.echo", code=3)
    assert "scheduler.aws_sagemaker.channels names files outside of the project" in refused.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_is_left_out_is_named_once(cli: Cli) -> None:
    path = cli.directory / "shunter.toml"
    path.write_text('[run]\nscheduler = "local_cwd"\n')
    os.chown(path, 54321, -1)
    said = cli("run", "--dryrun", "utils.echo", SUDO_UID="").err
    assert said.count("is ignored") == 1


def test_what_a_project_opens_to_containers_needs_trust(cli: Cli) -> None:
    (cli.directory / "shunter.toml").write_text(
        '[component."utils.sh"]\nmounts = "type=bind,src=/etc,dst=/x"\n'
        '[scheduler.local_docker]\ncopy_env = ["AWS_*"]\nprivileged = true\n'
    )
    words = ["run", "-s", "local_docker", "--workspace", "", "utils.sh", "--image", "none.invalid/a:1"]
    environ = {"DOCKER_HOST": "unix:///nowhere"}
    mount = ["--mounts", "type=bind,src=/tmp,dst=/x"]
    said = cli(*words, "true", code=3, **environ).err
    assert "component.utils.sh.mounts names access to this machine or a network" in said
    said = cli(*words, *mount, "true", code=3, **environ).err
    assert "mounts" not in said
    assert "scheduler.local_docker.copy_env names credentials" in said
    assert "scheduler.local_docker.privileged names access" in said
    words[3:3] = ["-cfg", "copy_env=HF_*,privileged=false"]
    tried = cli(*words, *mount, "true", code=None, **environ)
    assert tried.code in (3, 4)  # there is no command docker, or no daemon
    assert "scheduler.local_docker" not in tried.err
    assert "docker" in tried.err.lower()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_strangers_component_needs_the_command_line(cli: Cli) -> None:
    (cli.directory / "shunter.toml").write_text('[run]\ncomponent = "job.py:fn"\n')
    path = cli.directory / "job.py"
    path.write_text("open('ran', 'w')\n")
    os.chown(path, 54321, -1)
    cli("trust", "--yes", SUDO_UID="")
    refused = cli("run", "--dryrun", code=3, SUDO_UID="")
    assert "the component job.py:fn is not used: it belongs to user 54321" in refused.err
    assert not (cli.directory / "ran").exists()


@pytest.mark.slow
def test_where_code_goes_is_said_before_anything_is_sent(cli: Cli) -> None:
    """The first call asks for the queue, so that nothing is pushed with credentials that do not hold."""
    place = cli.directory / "shunter.toml"
    place.write_text(CONFIG)
    (cli.directory / "main.py").touch()
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
    environ = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_MAX_ATTEMPTS": "1",
        "DOCKER_HOST": f"tcp://127.0.0.1:{endpoint.rpartition(':')[2]}",
    }
    words = ["run", "--", "--image", "busybox:1"]
    refused = cli(*words, code=3, **environ).err
    for key in ("queue", "region", "image_repo"):
        assert f"{place}: scheduler.aws_batch.{key} names a destination of code or data" in refused
    given = ["-cfg", "queue=mine,region=eu-west-1,image_repo=registry.example.org/mine"]
    said = cli("run", *given, "utils.echo", "--image", "busybox:1", code=4, **environ).err.splitlines()
    assert said[0] == f"The project's files choose the scheduler aws_batch ({place})"
    assert said[-2].startswith("error: batch:DescribeJobQueues: AWS cannot be reached")
    cli("trust", "--yes")
    said = cli(*words, code=4, **environ).err.splitlines()
    assert said[-2].startswith("error: batch:DescribeJobQueues: AWS cannot be reached")
