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
{run}
[scheduler.aws_batch]
queue = "theirs"
region = "eu-west-1"
image_repo = "registry.example.org/theirs"
"""


def configure(cli: Cli, run: str = "") -> str:
    path = cli.directory / "trainyard.toml"
    path.write_text(CONFIG.format(run=run))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("workspace", ["{}/private", "..", "link", "in=a,{}/private=b", "@0123456789abcdef"])
def test_a_workspace_outside_of_the_project_needs_the_command_line(
    cli: Cli, tmp_path: Path, workspace: str
) -> None:
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "a.py").touch()
    (cli.directory / "in").mkdir()
    (cli.directory / "in" / "b.py").touch()
    (cli.directory / "link").symlink_to(tmp_path / "private")
    text = workspace.format(tmp_path)
    place = configure(cli, f'workspace = "{text}"')
    refused = cli("run", "--dryrun", code=3)
    assert refused.err.startswith(f"error: {place}:5: the workspace ")
    assert "is outside the project" in refused.err
    assert f"--workspace {text}" in refused.err
    if not text.startswith("@"):
        assert cli("run", "--dryrun", "-s", "local_cwd", "--workspace", text).code == 0


def test_what_is_below_the_repository_is_in_the_project(cli: Cli) -> None:
    (cli.directory / ".git").mkdir()
    (cli.directory / "lib").mkdir()
    configure(cli, 'workspace = "lib"')
    (cli.directory / "lib" / "a.py").touch()
    assert cli("run", "--dryrun", "-s", "local_cwd").code == 0


def test_data_outside_of_the_project_needs_the_command_line(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    (cli.directory / "trainyard.toml").write_text(
        f'[scheduler.aws_sagemaker.channels]\ntraining = "{tmp_path}/private"\n'
    )
    options = ["-s", "aws_sagemaker", "-cfg", "role=r,instance_type=ml.m5.large,region=eu-west-1"]
    refused = cli("run", "--dryrun", *options, "utils.echo", code=3)
    assert f"channels names {tmp_path}/private, which is not in the project" in refused.err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_is_left_out_is_named_once(cli: Cli) -> None:
    path = cli.directory / "trainyard.toml"
    path.write_text('[run]\nscheduler = "local_cwd"\n')
    os.chown(path, 54321, -1)
    said = cli("run", "--dryrun", "utils.echo", SUDO_UID="").err
    assert said.count("is ignored") == 1


def test_what_a_project_opens_to_containers_is_named(cli: Cli) -> None:
    (cli.directory / "trainyard.toml").write_text(
        '[component."utils.sh"]\nmounts = "type=bind,src=/etc,dst=/x"\n'
        '[scheduler.local_docker]\ncopy_env = ["AWS_*"]\n'
    )
    words = [
        "run",
        "-s",
        "local_docker",
        "--workspace",
        "",
        "utils.sh",
        "--image",
        "none.invalid/a:1",
        "true",
    ]
    said = cli(*words, code=4, DOCKER_HOST="unix:///nowhere").err
    assert "copy_env=['AWS_*']" in said
    assert "mounts=type=bind,src=/etc,dst=/x" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_strangers_component_needs_the_command_line(cli: Cli) -> None:
    (cli.directory / "trainyard.toml").write_text('[run]\ncomponent = "job.py:fn"\n')
    path = cli.directory / "job.py"
    path.write_text("open('ran', 'w')\n")
    os.chown(path, 54321, -1)
    refused = cli("run", "--dryrun", code=3, SUDO_UID="")
    assert "the component job.py:fn is not used: it belongs to user 54321" in refused.err
    assert not (cli.directory / "ran").exists()


@pytest.mark.slow
def test_where_code_goes_is_said_before_anything_is_sent(cli: Cli) -> None:
    """The first call asks for the queue, so that nothing is pushed with credentials that do not hold."""
    place = configure(cli)
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
    said = cli("run", "--", "--image", "busybox:1", code=4, **environ).err.splitlines()
    what, _, where = said[0].partition(": ")
    assert what == "The project's files choose where code and data go"
    assert sorted(where.split(", ")) == [
        f"image_repo=registry.example.org/theirs ({place}:9)",
        f"queue=theirs ({place}:7)",
        f"region=eu-west-1 ({place}:8)",
        f"scheduler aws_batch ({place}:3)",
    ]
    assert said[-2].startswith("error: batch:DescribeJobQueues: AWS cannot be reached")
    given = ["-s", "aws_batch", "-cfg", "queue=mine,region=eu-west-1,image_repo=registry.example.org/mine"]
    assert "choose" not in cli("run", *given, "utils.echo", "--image", "busybox:1", code=4, **environ).err
