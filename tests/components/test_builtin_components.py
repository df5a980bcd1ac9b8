"""What the builtins make, and that it runs."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shunter.components import dist, metrics, serve, train, utils
from shunter.components.component import Component, component_args_from_str, materialize_appdef
from shunter.components.finder import BUILTINS, get_builtin_source, get_component
from shunter.components.structured_arg import Nodes, StructuredJArgument, StructuredNameArgument
from shunter.errors import ComponentArgumentError, ConfigError, UnknownAppException
from shunter.specs import AppDef, BindMount, Resource, Role, from_json, macros, to_json, validate_app
from shunter.specs.app import NO_IMAGE

# The names, the order and the defaults are an interface that existing configurations rely on.
SIZE = "cpu=1, gpu=0, memMB=1024, h=None"
SIGNATURES = {
    "utils.echo": "msg='hello world', image, num_replicas=1",
    "utils.touch": "file, image",
    "utils.sh": f"*args, image, num_replicas=1, {SIZE}, env=None, max_retries=0, mounts=None, "
    "entrypoint=None, name='sh'",
    "utils.python": "*args, m=None, c=None, script=None, image, name='torchx_utils_python', "
    f"{SIZE}, num_replicas=1, mounts=None",
    "utils.binary": f"*args, entrypoint, name='torchx_utils_binary', num_replicas=1, {SIZE}",
    "utils.copy": "src, dst, image, mounts=None",
    "utils.hydra": "*overrides, config_name, config_dir='.torchx'",
    "dist.ddp": "*script_args, script=None, m=None, image, name='/', h=None, cpu=2, gpu=0, memMB=1024, "
    "j='1x2', env=None, metadata=None, max_retries=0, rdzv_port=29500, rdzv_backend='c10d', rdzv_conf=None, "
    "mounts=None, "
    "debug=False, tee=3",
    "dist.spmd": "*args, script=None, m=None, image, name='/', h='gpu.small', j='1x1', env=None, "
    "metadata=None, max_retries=0, mounts=None, debug=False",
    "serve.torchserve": "model_path, management_api, image, params=None, dryrun=False",
    "metrics.tensorboard": "logdir, image, timeout=3600, port=6006, start_on_file='', exit_on_file=''",
}
REQUIRED: dict[str, list[str]] = {
    "utils.touch": ["--file", "f"],
    "utils.sh": ["true"],
    "utils.python": ["-m", "this"],
    "utils.binary": ["--entrypoint", "/bin/true"],
    "utils.copy": ["--src", "a", "--dst", "b"],
    "utils.booth": ["--x1", "1", "--x2", "2"],
    "dist.ddp": ["--script", "t.py"],
    "dist.torchrun": ["-m", "a.t"],
    "dist.spmd": ["--script", "t.py"],
    "serve.torchserve": ["--model-path", "m.mar", "--management-api", "http://localhost:8081"],
    "metrics.tensorboard": ["--logdir", "logs"],
    "train.script": ["--script", "t.py"],
}


def role_of(name: str, *args: str) -> Role:
    (role,) = get_component(name).parse(list(args)).roles
    return role


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures(name: str) -> None:
    shown = []
    for raw in inspect.signature(get_component(name).fn).parameters.values():
        star = "*" if raw.kind is raw.VAR_POSITIONAL else ""
        has_default = raw.default is not raw.empty and raw.name != "image"
        shown.append(f"{star}{raw.name}" + (f"={raw.default!r}" if has_default else ""))
        if raw.name == "image":
            assert raw.default == NO_IMAGE
    assert ", ".join(shown) == SIGNATURES[name]


@pytest.mark.parametrize(
    "name", [f"{m}.{fn}" for m, fns in BUILTINS.items() for fn in fns if (m, fn) != ("utils", "hydra")]
)
def test_every_builtin_makes_a_complete_job_with_resources(name: str) -> None:
    app = get_component(name).parse(REQUIRED.get(name, []))
    validate_app(app)
    assert from_json(AppDef, to_json(app)) == app
    for role in app.roles:
        assert role.resource.cpu > 0
        assert role.resource.memMB > 0


def run(role: Role, cwd: Path, **values: str) -> subprocess.CompletedProcess[str]:
    """Run a replica as a scheduler of processes does."""
    filled = macros.Values(img_root="", app_id="job-1", replica_id="0", rank0_env="TORCHX_RANK0_HOST").apply(
        role
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **filled.env, **values}
    program = sys.executable if filled.entrypoint == "python" else filled.entrypoint
    return subprocess.run(
        [program, *filled.args], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )


# ---- utils


def test_echo(workplace: Path) -> None:
    role = role_of("utils.echo", "--msg", "a  b", "--num_replicas", "3", "--image", "i")
    assert (role.num_replicas, role.image, role.resource) == (3, "i", Resource(1, 0, 1024))
    assert run(role, workplace).stdout == "a  b\n"


def test_touch(workplace: Path) -> None:
    assert run(role_of("utils.touch", "--file", "a b"), workplace).returncode == 0
    assert (workplace / "a b").exists()


def test_sh_keeps_arguments_as_they_are(workplace: Path) -> None:
    words = ["$HOME", "a b", "*", ";", "`id`", "'", "", "--n", "-1"]
    script = "import sys; print(sys.argv[1:])"
    role = role_of("utils.sh", "--", sys.executable, "-c", script, *words)
    assert run(role, workplace).stdout == f"{words}\n"


def test_sh_can_run_a_line_of_shell_and_fails_as_it_does(workplace: Path) -> None:
    role = role_of("utils.sh", "sh", "-c", "echo $GREETING; exit 3")
    done = run(role, workplace, GREETING="hi")
    assert (done.stdout, done.returncode) == ("hi\n", 3)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("ls", "a b"), "exec ls 'a b'"),
        (("A=1", "B=", "env"), "A=1 B= exec env"),
        (("A=1 2", "env"), "exec 'A=1 2' env"),
        (("exit", "3"), "exit 3"),
        (("A=1",), "A=1"),
    ],
)
def test_sh_becomes_the_program_where_there_is_one(words: tuple[str, ...], line: str) -> None:
    assert utils.sh(*words).roles[0].args == ["-c", line]


def test_sh_takes_more_than_fits_into_one_argument(workplace: Path) -> None:
    words = [f"{k:06} $HOME" for k in range(20_000)]
    role = utils.sh(
        "A=1", sys.executable, "-c", "import os, sys; print(os.environ['A'], sys.argv[-1])", *words
    )
    assert run(role.roles[0], workplace).stdout == f"1 {words[-1]}\n"


def test_sh_options() -> None:
    role = role_of(
        "utils.sh", "--env", "A=1", "--mounts", "type=bind,src=/a,dst=/b,readonly", "--h", "gpu.small",
        "--max-retries", "2", "--num-replicas", "3", "--env", "LOGLEVEL=INFO", "ls",
    )  # fmt: skip
    assert role.env == {"A": "1", "LOGLEVEL": "INFO"}
    assert role.mounts == [BindMount("/a", "/b", read_only=True)]
    assert (role.max_retries, role.num_replicas, role.resource.gpu) == (2, 3, 1)
    assert role_of("utils.sh", "ls").env == {"LOGLEVEL": "WARNING"}


def test_sh_with_an_entrypoint_starts_it_without_a_shell(workplace: Path) -> None:
    role = role_of("utils.sh", "--entrypoint", "echo", "$HOME", "a  b")
    assert run(role, workplace).stdout == "$HOME a  b\n"


def test_python(workplace: Path) -> None:
    (workplace / "s.py").write_text("import sys; print(sys.argv[1:])")
    for options in (["-m", "s"], ["--script", "s.py"], ["-c", "import sys; print(sys.argv[1:])"]):
        assert (
            run(role_of("utils.python", *options, "--", "-x", "a b"), workplace).stdout == "['-x', 'a b']\n"
        )
    assert role_of("utils.python", "-m", "s").env == {"HYDRA_MAIN_MODULE": "s"}
    assert role_of("utils.python", "-c", "", "x").args == ["-c", "", "x"]


@pytest.mark.parametrize("name", ["utils.python", "dist.ddp", "dist.spmd"])
def test_exactly_one_program(name: str) -> None:
    with pytest.raises(ComponentArgumentError, match=r"(none|neither a script nor a module) is given"):
        role_of(name, "x")
    with pytest.raises(ComponentArgumentError, match=r"-m and --script are given|both the module a and"):
        role_of(name, "-m", "a", "--script", "b")


def test_binary() -> None:
    role = role_of("utils.binary", "--entrypoint", "sleep", "--h", "cpu.nano", "-1", "--h")
    assert (role.entrypoint, role.args, role.image, role.resource.memMB) == (
        "sleep",
        ["-1", "--h"],
        "<NONE>",
        512,
    )


def test_hydra_without_the_library_or_the_directory(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no directory"):
        utils.hydra(config_name="job")
    (workplace / ".torchx").mkdir()
    monkeypatch.setitem(sys.modules, "hydra", None)
    with pytest.raises(ConfigError, match="hydra-core"):
        get_component("utils.hydra").parse(["-cn", "job", "-cd", ".torchx", "a=1"])


# ---- dist


def command(name: str, *args: str) -> str:
    role = role_of(name, *args)
    assert (role.entrypoint, role.args[0], len(role.args)) == ("bash", "-c", 2)
    return role.args[1]


def test_ddp_on_one_node() -> None:
    assert command("dist.ddp", "--script", "a/train.py", "--", "--lr", "-1", "a b") == (
        "torchrun --rdzv_backend c10d --rdzv_endpoint localhost:0 --rdzv_id ${app_id} "
        "--nnodes 1 --nproc_per_node 2 --tee 3 --role '' a/train.py --lr -1 'a b'"
    )


def test_ddp_with_a_static_rendezvous() -> None:
    text = command(
        "dist.ddp", "--script", "t.py", "-j", "2x1", "--rdzv_backend", "static", "--rdzv-port", "5"
    )
    assert "--rdzv_backend static --rdzv_endpoint $${${rank0_env}:=localhost}:5 " in text
    assert " --node_rank ${replica_id} " in text
    one_node = command("dist.ddp", "--script", "t.py", "--rdzv_backend", "static")
    assert "--rdzv_endpoint localhost:29500 " in one_node


@pytest.fixture
def torchrun(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torchrun on the PATH that prints its arguments, one a line."""
    program = workplace / "bin" / "torchrun"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return program


@pytest.mark.usefixtures("torchrun")
def test_ddp_gives_torchrun_what_it_needs(workplace: Path) -> None:
    role = role_of("dist.ddp", "--script", "my train.py", "-j", "1:3x2", "--", "--name", "a  'b", "", "$HOME")
    lines = run(role, workplace, TORCHX_RANK0_HOST="host-0").stdout.split("\n")[:-1]
    options = dict(zip(lines[0:14:2], lines[1:14:2], strict=True))
    assert options == {
        "--rdzv_backend": "c10d", "--rdzv_endpoint": "host-0:29500", "--rdzv_id": "job-1", "--nnodes": "1:3",
        "--nproc_per_node": "2", "--tee": "3", "--role": "",
    }  # fmt: skip
    assert lines[14:] == ["my train.py", "--name", "a  'b", "", "$HOME"]
    assert "localhost:29500" in run(role, workplace).stdout  # on the first node itself the host may be unset


@pytest.mark.usefixtures("torchrun")
def test_ddp_can_take_its_port_from_the_job(workplace: Path) -> None:
    role = role_of("dist.ddp", "--script", "t.py", "-j", "2x1", "--rdzv-port", "0")
    assert role.port_map == {}
    endpoint = run(role, workplace).stdout.split("\n")[3]
    assert run(role, workplace).stdout.split("\n")[3] == endpoint  # all replicas agree
    host, _, port = endpoint.rpartition(":")
    assert host == "localhost"
    assert 10000 <= int(port) < 30000
    assert command("dist.ddp", "--script", "t.py", "--rdzv-port", "0").split()[4] == "localhost:0"
    with pytest.raises(ComponentArgumentError, match="must be 0 to 65535, not 70000"):
        role_of("dist.ddp", "--script", "t.py", "--rdzv-port", "70000")


def test_ddp_roles() -> None:
    mounts = ["type=bind", "src=/a", "dst=/b"]
    app = dist.ddp(
        "x", script="a/train.py", name="exp/run", j="2:4x8", env={"A": "1"}, max_retries=3, h="gpu.small",
        mounts=mounts,
    )  # fmt: skip
    (role,) = app.roles
    assert (app.name, role.name) == ("run", "train")
    assert (role.min_replicas, role.num_replicas, role.max_retries) == (2, 4, 3)
    assert (role.port_map, role.resource.gpu, role.mounts) == ({"c10d": 29500}, 1, [BindMount("/a", "/b")])
    assert role.env == {
        "A": "1", "LOGLEVEL": "WARNING",
        "PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2",
        "TORCHX_TRACKING_EXPERIMENT_NAME": "exp", "TORCHX_TRACKING_RUN_NAME": "run",
    }  # fmt: skip
    assert dist.ddp(script="a.py").roles[0].min_replicas is None


def test_ddp_debug_and_environment_of_the_user_wins() -> None:
    env = role_of(
        "dist.ddp", "--script", "a.py", "--debug", "--env", "CUDA_LAUNCH_BLOCKING=0,LOGLEVEL=INFO"
    ).env
    assert env["TORCH_DISTRIBUTED_DEBUG"] == "DETAIL"
    assert env["NCCL_DESYNC_DEBUG"] == env["TORCH_SHOW_CPP_STACKTRACES"] == "1"
    assert env["CUDA_LAUNCH_BLOCKING"] == "0"
    assert env["LOGLEVEL"] == "INFO"
    assert "NCCL_DESYNC_DEBUG" not in role_of("dist.ddp", "--script", "a.py").env


def test_torchrun_is_ddp_with_metadata() -> None:
    app = get_component("dist.torchrun").parse(["--script", "a.py", "--metadata", "team=x"])
    assert app.metadata == {"team": "x"}
    assert app == dist.ddp(script="a.py", metadata={"team": "x"})
    assert dist.spmd(script="a.py", h="gpu.small", metadata={"team": "x"}).metadata == {"team": "x"}


def test_spmd_counts_the_gpus() -> None:
    assert "--nnodes 2 --nproc_per_node 4 " in command(
        "dist.spmd", "--script", "a.py", "-j", "2", "-h", "gpu.large"
    )
    assert "--nnodes 2 --nproc_per_node 1 " in command("dist.spmd", "--script", "a.py", "-j", "2x1")
    with pytest.raises(ComponentArgumentError, match="no gpus"):
        role_of("dist.spmd", "--script", "a.py", "-j", "2", "-h", "cpu.small")


@pytest.mark.parametrize(
    "j", ["", "x", "0", "-1", "1x0", "ax2", "1.5", "2:x1", "3:2x1", "2x2x2", ":2x1", "1:2", "²"]
)
def test_sizes_that_are_none(j: str) -> None:
    with pytest.raises(ComponentArgumentError, match="-j"):
        Nodes.parse(j)


@pytest.mark.parametrize(
    ("j", "size"),
    [
        ("4", Nodes(None, 1, 4)),
        ("2x8", Nodes(None, 2, 8)),
        ("1:4x8", Nodes(1, 4, 8)),
        ("2X3", Nodes(None, 2, 3)),
    ],
)
def test_sizes(j: str, size: Nodes) -> None:
    assert Nodes.parse(j) == size


@pytest.mark.parametrize(
    ("name", "m", "script", "expected"),
    [
        ("/", None, "a/train.py", "default-experiment/train"),
        ("/", "pkg.train", None, "default-experiment/train"),
        ("exp/", None, "train.py", "exp/train"),
        ("/run", None, "train.py", "default-experiment/run"),
        ("run", None, "train.py", "default-experiment/run"),
        ("exp/run", "m", None, "exp/run"),
    ],
)
def test_names(name: str, m: str | None, script: str | None, expected: str) -> None:
    found = StructuredNameArgument.parse_from(name, m=m, script=script)
    assert str(found) == expected
    assert found == StructuredNameArgument(*expected.split("/"))
    assert (found.experiment_name, found.run_name) == tuple(expected.split("/"))


def test_structured_j(recwarn: pytest.WarningsRecorder) -> None:
    assert StructuredJArgument.parse_from("gpu.large", "2") == StructuredJArgument(2, 4)
    assert StructuredJArgument.parse_from("gpu.large", "2x4") == StructuredJArgument(2, 4)
    assert StructuredJArgument.parse_from("t3.medium", "2x4") == StructuredJArgument(2, 4)
    assert StructuredJArgument.parse_from("not.known.here", "2x4") == StructuredJArgument(2, 4)
    assert not recwarn
    with pytest.warns(UserWarning, match="-j 2x3: 3 processes on each node, and gpu.large has 4 gpus"):
        assert str(StructuredJArgument.parse_from("gpu.large", "2x3")) == "2x3"


# ---- serve, metrics, train


def test_torchserve() -> None:
    app = serve.torchserve(
        "m.mar", "http://h:8081", params={"model_name": "x y", "batch_size": "2"}, dryrun=True
    )
    (role,) = app.roles
    assert (app.name, role.name) == ("torchx-torchserve", "worker")
    assert role.port_map == {"model-download": 8222}
    assert role.args[2:] == [
        "--model_path", "m.mar", "--management_api", "http://h:8081",
        "--model_name", "x y", "--batch_size", "2", "--dryrun",
    ]  # fmt: skip


def test_tensorboard() -> None:
    (role,) = metrics.tensorboard("logs", start_on_file="a", exit_on_file="b", port=7000).roles
    text = " ".join(role.args)
    assert "--timeout 3600 --start_on_file a --exit_on_file b -- tensorboard --bind_all --port 7000" in text
    assert role.port_map == {"http": 7000}
    assert role.resource.memMB > 0


def test_script(workplace: Path) -> None:
    (workplace / "my train.py").write_text("import os, sys; print(os.environ['A'], sys.argv[1:])")
    app = get_component("train.script").parse(
        ["--script", "my train.py", "--name", "n", "-h", "gpu.small", "--num_replicas", "2", "--env", "A=1",
         "--max_retries", "3", "--", "--lr", "-0.1"]
    )  # fmt: skip
    (role,) = app.roles
    assert (app.name, role.name, role.num_replicas, role.max_retries) == ("n", "my train", 2, 3)
    assert role.resource.gpu == 1
    assert run(role, workplace).stdout == "1 ['--lr', '-0.1']\n"


# ---- from Python


@pytest.mark.parametrize("name", ["..", ".", "a/b", ""])
def test_channels_have_names_that_directories_can_have(name: str) -> None:
    with pytest.raises(ConfigError, match="a channel cannot be named") as refused:
        train.script(script="t.py", channel={name: "/data"})
    assert "--channel training=DIRECTORY" in refused.value.hint


def test_materialize_precedence() -> None:
    def fn(*rest: str, a: int = 1, b: int = 1, c: int = 1, d: int = 1) -> AppDef:
        return AppDef(f"{a}{b}{c}{d}")

    app = materialize_appdef(fn, ["-d", "4"], {"b": "2", "c": "2", "d": "2"}, {"c": 3, "d": 3})
    assert app.name == "1234"  # what is on the command line is never overwritten


def test_materialize_is_pure() -> None:
    defaults: dict[str, Any] = {"env": {"A": "1"}}
    component = Component("utils.sh", utils.sh)
    first = component.parse(["ls"], defaults)
    first.roles[0].env["B"] = "2"
    assert component.parse(["ls"], defaults).roles[0].env == {"A": "1", "LOGLEVEL": "WARNING"}
    assert defaults == {"env": {"A": "1"}}
    assert materialize_appdef(train.script, ["--script", "a.py"]) == materialize_appdef(
        train.script, ["--script", "a.py"]
    )


def test_component_args_from_str() -> None:
    def fn(a: int, *rest: str, b: str = "b") -> AppDef: ...

    args = component_args_from_str(fn, ["-a", "1", "x"], {"b": "c"})
    assert (args.positional_args, args.var_args, args.kwargs) == ({"a": 1}, ["x"], {"b": "c"})


@pytest.mark.parametrize("name", [f"{m}.{f}" for m, functions in BUILTINS.items() for f in functions])
def test_source_of_a_builtin_is_a_component_by_itself(name: str, workplace: Path) -> None:
    Path("own.py").write_text(get_builtin_source(name))
    function = name.rpartition(".")[2]
    own, builtin = get_component(f"own.py:{function}"), get_component(name)
    assert inspect.signature(own.fn) == inspect.signature(builtin.fn)
    if name not in ("utils.hydra", "serve.torchserve"):
        assert to_json(own.parse(REQUIRED.get(name, []))) == to_json(builtin.parse(REQUIRED.get(name, [])))


def test_sh_needs_a_command() -> None:
    with pytest.raises(ComponentArgumentError, match="no command"):
        role_of("utils.sh")


def test_ddp_on_several_nodes() -> None:
    args = [
        "-j",
        "2x4",
        "-m",
        "pkg.train",
        "--rdzv_conf",
        "join_timeout=600",
        "--tee",
        "1",
        "--",
        "--lr",
        "$X",
    ]
    assert command("dist.ddp", *args) == (
        "torchrun --rdzv_backend c10d --rdzv_endpoint $${${rank0_env}:=localhost}:29500 --rdzv_id ${app_id} "
        "--rdzv_conf join_timeout=600 --nnodes 2 --nproc_per_node 4 --tee 1 --role '' -m pkg.train --lr '$X'"
    )


def test_python_and_copy_take_mounts() -> None:
    mount = ["--mounts", "type=bind,src=/data,dst=/d,readonly"]
    for words in (["utils.python", "-c", "1"], ["utils.copy", "--src", "a", "--dst", "b"]):
        (role,) = get_component(words[0]).parse([*mount, *words[1:]]).roles
        assert [each.dst_path for each in role.mounts] == ["/d"]


@pytest.mark.parametrize(("name", "script"), [("a/b/c", "t.py")])
def test_names_that_are_none(name: str, script: str | None) -> None:
    with pytest.raises(ComponentArgumentError, match="the name"):
        StructuredNameArgument.parse_from(name, script=script)


def test_errors_of_ours_pass_through_a_component() -> None:
    def fn() -> AppDef:
        raise UnknownAppException("x")

    with pytest.raises(UnknownAppException):
        Component("c", fn).parse([])
