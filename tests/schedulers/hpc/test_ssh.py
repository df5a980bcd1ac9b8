from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from shunter.errors import BackendError, ConfigError, StateStoreError, UnreachableError
from shunter.schedulers.hpc import ssh
from shunter.schedulers.hpc.commands import Commands
from shunter.schedulers.hpc.ssh import SshCommands, commands_on
from shunter.schedulers.hpc.storage import Storage, archive_of, check_shared_folder
from shunter.schedulers.responses import LogQuery, LogRange
from shunter.specs.app import AppDef, Role
from shunter.specs.status import AppState
from tests import backends
from tests.schedulers.hpc.conftest import (
    LoginNode,
    forget_connections,
    run_on_terminal,
    use_config,
    wait_until,
)
from tests.schedulers.hpc.fake_cluster import FakeCluster
from tests.schedulers.known_context import KnownContext

# ---- commands


@pytest.fixture(params=["here", "over ssh"])
def commands(request):
    if request.param == "here":
        return Commands()
    request.getfixturevalue("login_node")
    return commands_on("login1")


def test_a_program_gets_its_words_and_its_input_as_they_are(commands):
    words = ["a b", "$HOME", "", "'\"", "*", "é\n"]
    answer = commands.run(["sh", "-c", 'printf "%s|" "$@"; cat; exit 3', "sh", *words], stdin=b"in\0put")
    assert answer.out == ("|".join(words) + "|").encode() + b"in\0put"
    assert answer.code == 3


def test_a_missing_program_is_a_matter_of_configuration(commands):
    with pytest.raises(ConfigError, match="there is no program 'no-such-program'"):
        commands.run(["no-such-program"])


def test_a_program_that_is_late_says_nothing_about_jobs(commands):
    with pytest.raises(UnreachableError, match=r"sleep .* did not answer within 0.2 s"):
        commands.run(["sleep", "60"], timeout=0.2)


def test_a_refusal_comes_back_in_its_own_words(commands):
    with pytest.raises(BackendError, match=r"cannot submit the job .*: no such partition") as caught:
        commands.check(["sh", "-c", "echo no such partition >&2; exit 1"], "submit the job")
    assert not isinstance(caught.value, UnreachableError)


# ---- one connection


def test_all_commands_share_one_connection(login_node):
    commands = commands_on("login1")
    threads = [threading.Thread(target=commands.run, args=(["true"],)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert commands_on("login1") is commands
    assert SshCommands("login1").run(["echo", "hi"]).out == b"hi\n"  # as another process would
    assert login_node.logins() == 1


def test_a_jump_host_is_used_as_the_configuration_says(tmp_path, monkeypatch):
    backends.need("sshd")
    gate, node = LoginNode(tmp_path / "gate"), LoginNode(tmp_path / "inner")
    try:
        use_config(tmp_path, monkeypatch, {"gate": gate.config, "inner": node.config + "ProxyJump gate\n"})
        assert commands_on("inner").run(["echo", "hi"]).out == b"hi\n"
        assert commands_on("inner").run(["echo", "again"]).out == b"again\n"
        assert (gate.logins(), node.logins()) == (1, 1)
    finally:
        forget_connections()
        gate.stop()
        node.stop()


def test_a_refused_connection_is_unreachable(login_node):
    login_node.stop()
    with pytest.raises(UnreachableError, match=r"cannot reach login1: .*refused"):
        commands_on("login1").run(["true"])


def test_a_refused_key_is_unreachable_and_nothing_is_asked_without_a_terminal(login_node):
    (login_node.directory / "user.pub").write_text("")
    with pytest.raises(UnreachableError, match=r"cannot reach login1: .*Permission denied"):
        commands_on("login1").run(["true"])


def test_a_connection_that_was_cut_is_made_again(login_node):
    commands = commands_on("login1")
    commands.run(["true"])
    login_node.cut()
    wait_until(lambda: not commands._is_alive(), "the end of the connection")
    assert commands.run(["echo", "back"]).out == b"back\n"
    assert login_node.logins() == 2


def test_an_option_is_not_a_host():
    with pytest.raises(ConfigError, match="is not the name of a host"):
        SshCommands("-oProxyCommand=touch /tmp/x")


def test_a_directory_that_others_can_write_holds_no_connections(tmp_path, monkeypatch):
    monkeypatch.setenv("SHUNTER_HOME", str(tmp_path / ("d" * 100)))
    monkeypatch.setattr(ssh, "SHORT_PARENT", str(tmp_path))
    (tmp_path / f"shunter-ssh-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"shunter-ssh-{os.getuid()}").chmod(0o777)
    with pytest.raises(ConfigError, match="is open to others"):
        SshCommands("login1").prepare()


ASKING = """
import sys
from shunter.schedulers.hpc.ssh import commands_on
commands = commands_on("login1")
print("first", commands.run(["echo", "hi"]).text.strip())
print("second", commands.run(["echo", "hi"]).text.strip())
"""


def test_a_secret_is_asked_for_on_the_terminal_once(tmp_path, monkeypatch):
    backends.need("sshd")
    node = LoginNode(tmp_path / "login1", passphrase="open sesame")
    try:
        use_config(tmp_path, monkeypatch, {"login1": node.config})
        shown = run_on_terminal(ASKING, b"passphrase", b"open sesame")
        assert b"first hi" in shown
        assert b"second hi" in shown
        # and another process, without a terminal, is not asked
        assert subprocess.run([sys.executable, "-c", ASKING], capture_output=True, check=True).stdout
        assert node.logins() == 1
    finally:
        SshCommands("login1").disconnect()
        forget_connections()
        node.stop()


# ---- storage


@pytest.fixture
def storage(commands):
    return Storage(commands)


def test_a_folder_is_made_once_and_whole(storage, tmp_path):
    folder = str(tmp_path / "shared" / "a b")
    files = {"x": (b"1\n", 0o600), "deep/y y": (b"\0\xff" * 100_000, 0o700)}
    assert storage.put_folder(folder, files, ["empty"])
    assert not storage.put_folder(folder, {"x": (b"2", 0o600)})
    assert storage.read([f"{folder}/x", f"{folder}/deep/y y", f"{folder}/no"]) == [
        b"1\n",
        b"\0\xff" * 100_000,
        None,
    ]
    assert os.stat(f"{folder}/x").st_mode & 0o777 == 0o600
    assert os.stat(f"{folder}/deep/y y").st_mode & 0o777 == 0o700
    assert os.stat(folder).st_mode & 0o777 == 0o700
    assert os.listdir(f"{folder}/empty") == []
    assert os.listdir(tmp_path / "shared") == ["a b"]


def test_of_many_who_make_a_folder_one_does(storage, tmp_path):
    made = []

    def make(number):
        files = {"who": (str(number).encode(), 0o600)}
        with archive_of(files) as archive:
            made.append((number, storage.put_archive(str(tmp_path / "s" / "f"), archive)))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winners = [number for number, was_made in made if was_made]
    assert len(winners) == 1
    assert (tmp_path / "s" / "f" / "who").read_text() == str(winners[0])
    assert os.listdir(tmp_path / "s" / "f") == ["who"]
    assert os.listdir(tmp_path / "s") == ["f"]


def test_what_cannot_be_read_is_not_taken_for_missing(storage, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    (tmp_path / "file").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    missing = [f"{tmp_path}/no", f"{tmp_path}/file/no", f"{tmp_path}/pipe"]
    assert storage.read([*missing, f"{tmp_path}/file"]) == [None, None, None, b"x"]
    with pytest.raises(StateStoreError, match=f"{loop}/x: Too many levels of symbolic links"):
        storage.read([f"{loop}/x", f"{tmp_path}/file"])


def test_parts_of_files_and_their_sizes(storage, tmp_path):
    (tmp_path / "a b").write_bytes(b"0123456789")
    (tmp_path / ".hidden").write_bytes(b"0")
    path = str(tmp_path / "a b")
    assert storage.sizes([str(tmp_path), f"{tmp_path}/no"])[path] == 10
    assert f"{tmp_path}/.hidden" not in storage.sizes([str(tmp_path)])
    parts = [(path, 2, 3), (path, 8, 100), (path, 10, 1), (path, 20, 1), (f"{path}/no", 0, 5)]
    assert storage.read_ranges(parts) == [b"234", b"89", b"", b"", b""]


def test_storage_that_cannot_be_written_is_reported(storage):
    with pytest.raises(BackendError, match=r"cannot .*proc"):
        storage.write("/proc/no-such-file", b"")


# ---- a job


@pytest.fixture
def remote(login_node, queue, tmp_path):
    scheduler = FakeCluster(environment=f"FAKE_QUEUE={queue}")
    scheduler.context = KnownContext({"host": "login1", "shared_dir": str(tmp_path / "shared")})
    yield scheduler
    scheduler.close()


def run(scheduler, script: str, tmp_path, **fields):
    app = AppDef("far", [Role("r", "", entrypoint="sh", args=["-c", script], **fields)])
    return scheduler.submit(app, {"host": "login1", "shared_dir": str(tmp_path / "shared")})


def test_a_job_runs_on_another_host(remote, login_node, tmp_path):
    app_id = run(remote, "echo hello; echo oops >&2; exit 3", tmp_path, num_replicas=2)
    found = remote.wait(app_id, 50)
    assert found.state == AppState.FAILED
    assert [replica.exit_code for replica in found.to_status().replicas()] == [3, 3]
    assert sorted(remote.log_iter(app_id, "r", 1)) == ["hello\n", "oops\n"]
    assert [row.app_id for row in remote.list()] == [app_id]
    remote.delete(app_id)
    assert remote.describe(app_id) is None
    assert login_node.logins() == 1


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_when_the_connection_is_cut(remote, login_node, tmp_path):
    go = tmp_path / "go"
    script = f"seq 1 1000; while [ ! -e {go} ]; do sleep 0.1; done; seq 1001 2000; printf end"
    app_id = run(remote, script, tmp_path)
    lines = []
    for block in remote.log_blocks(app_id, [("r", 0)], LogQuery(should_tail=True)):
        lines += block.data.splitlines()
        if lines[-1] == b"1000" and not go.exists():
            login_node.cut()
            go.touch()
    assert lines == [b"%d" % number for number in range(1, 2001)] + [b"end"]
    assert login_node.logins() >= 2
    assert remote.wait(app_id, 50).state == AppState.SUCCEEDED
    data, part = b"", remote.log_part(app_id, "r", 0, LogRange(500, at=0, is_complete=True))
    while part.data:
        data += part.data
        part = remote.log_part(app_id, "r", 0, LogRange(500, start=part.end, is_complete=True))
    assert data.splitlines() == lines


def test_a_host_that_is_away_makes_a_job_unreachable_not_failed(remote, login_node, tmp_path):
    app_id = run(remote, "exit 0", tmp_path)
    remote.wait(app_id, 50)
    forget_connections()
    login_node.stop()
    found = remote.describe(app_id)
    assert found.state == AppState.UNREACHABLE
    assert "cannot reach login1" in found.msg
    login_node.start()
    assert remote.describe(app_id).state == AppState.SUCCEEDED


def test_nothing_is_put_where_another_user_could_change_it(storage, tmp_path, monkeypatch):
    shared = tmp_path / "a b"
    (shared / "code").mkdir(parents=True)
    ours, ((owner, mode), nothing) = storage.owners([str(shared / "code"), str(shared / "jobs")])
    assert (owner, mode, nothing) == (ours, (shared / "code").stat().st_mode & 0o7777, None)
    check_shared_folder(storage, str(shared))
    (shared / "code").chmod(0o777)
    with pytest.warns(UserWarning, match=f"everybody can write to {shared}/code"):
        check_shared_folder(storage, str(shared))
    monkeypatch.setattr(storage, "owners", lambda paths: (1000, [(1001, 0o755)] * len(paths)))
    with pytest.raises(StateStoreError, match=f"cannot use {shared}: it belongs to another user"):
        check_shared_folder(storage, str(shared))


def test_folders_that_are_missing_above_are_private_too(storage, tmp_path):
    assert storage.put_folder(str(tmp_path / "new" / "er" / "x"), {"f": (b"1", 0o600)})
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "new", tmp_path / "new" / "er")] == [
        0o700
    ] * 2
