"""The predecessor's Python interface: names, signatures, what they do; and the commands of its launchers.

``predecessor.json`` is recorded from sagemaker-training 5.1.4: what `surface.py` prints of its modules, and
what CALLS prints with it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shunter_toolkit import torchrun, xla
from shunter_toolkit.predecessor.mpi_runner import MasterRunner
from shunter_toolkit.predecessor.pytorch_xla_runner import PyTorchXLARunner
from shunter_toolkit.predecessor.smdataparallel_runner import SMDataParallelRunner
from shunter_toolkit.predecessor.torch_distributed_runner import TorchDistributedRunner
from tests.backends import need

from .conftest import Tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

SURFACE = Path(__file__).with_name("surface.py")
GOLDEN = Path(__file__).with_name("launchers.json")
RECORDED = Path(__file__).with_name("predecessor.json")


def run(*words: str, tree: Tree, stdin: str = "") -> Any:
    """Run Python code that prints JSON."""
    done = subprocess.run(
        [sys.executable, *words], input=stdin, env=tree.env(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def accepts(ours: list[list[str]] | None, theirs: list[list[str]] | None) -> bool:
    """Whether every call that suits their signature suits ours: the same parameters, then optional ones."""
    if ours is None or theirs is None:
        return ours == theirs
    fixed = [row for row in theirs if not row[1].startswith("VAR")]
    same = [row[:2] for row in ours[: len(fixed)]] == [row[:2] for row in fixed]
    stricter = any(row[2] and not our[2] for row, our in zip(fixed, ours, strict=False))
    rest = [row for row in ours[len(fixed) :] if not row[1].startswith("VAR")]
    return same and not stricter and all(row[2] for row in rest)


def recorded(part: str, tree: Tree) -> Any:
    return json.loads(RECORDED.read_text().replace("{base}", str(tree.base)))[part]


def test_every_public_name_with_its_signature(tree: Tree) -> None:
    theirs = recorded("names", tree)
    wanted = json.dumps({name: list(offered) for name, offered in theirs.items()})
    ours = run(str(SURFACE), "--aliases", tree=tree, stdin=wanted)
    assert sum(map(len, theirs.values())) > 150
    for name, offered in theirs.items():
        compare(offered, ours[name])


def compare(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Compare what a module offers."""
    for attribute, their in theirs.items():
        our = ours[attribute]
        assert our["kind"] == their["kind"], attribute
        assert accepts(our.get("parameters"), their.get("parameters")), (attribute, our, their)
        if "<function" not in str(their.get("value")):
            assert our.get("value") == their.get("value"), attribute
        for member, signature in their.get("members", {}).items():
            own = our["members"].get(member)
            same = own == signature if "property" in (own, signature) else accepts(own, signature)
            assert same, (attribute, member, own, signature)


CALLS = """
import json, sys
import numpy as np
from sagemaker_training import encoders, errors, mapping, modules, process, timeout

def value(function):
    try:
        result = function()
    except Exception as error:
        return [type(error).__name__]
    if isinstance(result, np.ndarray):
        return [result.dtype.kind, list(result.shape), [str(x) for x in result.ravel().tolist()]]
    return result.hex() if isinstance(result, bytes) else repr(result)

class Mixed(mapping.MappingMixin):
    @property
    def a(self): return 1
    def b(self): return 2

texts = ["1,2\\n3,4", "a,b\\nc,d", "1,b", "1,,3", "nan,1", "1.5", "a", "1 2", '"a,b",2', "", "#1,2"]
out = [value(lambda text=text: encoders.decode(text, "text/csv")) for text in texts]
out.append(value(lambda: encoders.decode("1,2\\r\\n3,4\\r\\n", "text/csv")))
for text in ("[1, 2]", "[[1, 2.5]]", '["a"]'):
    out.append(value(lambda text=text: encoders.decode(text, "application/json")))
out.append(value(lambda: encoders.decode("x", "text/foo")))
for array in ([[1, 2], [3, 4]], [1, 2], [["a,b", 'q"']], np.array([[1, 2.5]])):
    for kind in ("text/csv", "application/json", "application/x-npy", "text/foo"):
        out.append(value(lambda array=array, kind=kind: encoders.encode(array, kind)))
for arguments in ({"return_code": 2, "output": b"boom"}, {"return_code": -9, "info": "more"}, {}):
    for name in ("ExecuteUserScriptError", "InstallModuleError", "InstallRequirementsError"):
        error = getattr(errors, name)(["python", "x"], **arguments)
        out.append([str(error), error.return_code, repr(error.output), error.extra_info])
out.append([issubclass(errors.InstallModuleError, errors.InstallRequirementsError)])
out.append(mapping.to_env_vars({"": "x", "a": None, "A": b"\\xff", "b": True, "n": 1.5}))
out.append(value(lambda: mapping.split_by_criteria({"a": 1, "b_c": 2, "d": 3}, keys=["a"], prefix="b_")))
out.append([isinstance(mapping.split_by_criteria({}), tuple)])
out.append([dict(Mixed()), str(Mixed()), len(Mixed()), list(Mixed()), Mixed().properties()])
out.append([value(lambda name=name: Mixed()[name]) for name in ("a", "b", "no_such")])
out.append(value(lambda: encoders.csv_to_numpy("a\\n", dtype="float")))
out.append(value(lambda: encoders.array_to_json(lambda: 3)))
out.append(value(lambda: encoders.array_to_npy({1: 2})))
out.append([process.process_error_classes(given) for given in (None, "A", ["A", ValueError])])
out.append([modules.exists("json"), modules.exists("no_such"), modules.has_requirements("/")])
out.append(value(lambda: process.check_error(["false"], errors.ExecuteUserScriptError, 1)))
for name in ("train.py", "bin/run.sh", "-x", "/a", "a b", "../x", "a/./b"):
    out.append(value(lambda name=name: process.validate_entry_point(name)))
json.dump(out, sys.stdout)
"""


def test_the_same_calls_give_the_same(tree: Tree) -> None:
    start = "from shunter_toolkit import aliases; aliases.install()\n"
    assert run("-c", start + CALLS, tree=tree) == recorded("calls", tree)


HOSTS = ["algo-1", "algo-2"]
OPTIONS = "-verbose --NCCL_DEBUG WARN -x A=1"


CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "mpi, 1 host": ("mpi", (["algo-1"], "", "lo"), {"num_processes": 3, "instance_type": "ml.c5.xlarge"}),
    "mpi, 2 hosts": ("mpi", (HOSTS, OPTIONS, "lo"), {"instance_type": "ml.p3.16xlarge"}),
    "mpi, EFA": ("mpi", (HOSTS, "", "lo"), {"instance_type": "ml.p3dn.24xlarge"}),
    "mpi, RDMA": ("mpi", (HOSTS, "", "lo"), {"instance_type": "ml.p4d.24xlarge"}),
    "mpi, model parallel": ("smp", (HOSTS, "", "lo"), {"instance_type": "ml.p4d.24xlarge"}),
    "smddp, 1 host": ("smddp", ("ml.p3.16xlarge", ["algo-1"]), {}),
    "smddp, 2 hosts": ("smddp", ("ml.p4d.24xlarge", HOSTS), {}),
    "torchrun, 1 host": ("torchrun", (["algo-1"], "algo-1", "ml.p3.16xlarge"), {}),
    "torchrun, EFA": ("torchrun", (HOSTS, "algo-2", "ml.p3dn.24xlarge"), {}),
    "torchrun, Neuron": ("neuron", (HOSTS, "algo-1", "ml.trn1.32xlarge"), {}),
    "xla, 1 host": ("xla", ("algo-1", ["algo-1"]), {}),
    "xla, 2 hosts": ("xla", ("algo-2", HOSTS), {}),
}
SCRIPT = ("train.py", ["--a", "1"])


def _ours(kind: str, given: tuple[Any, ...], words: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    if kind in ("mpi", "smp"):
        env = {"SM_HP_MP_PARAMETERS": '{"ddp": true}'} if kind == "smp" else {}
        return MasterRunner(*SCRIPT, env, 2, "algo-1", *given, **words)._create_command(), {}
    if kind == "smddp":
        instance, hosts = given
        runner = SMDataParallelRunner(*SCRIPT, {}, 8, "algo-1", hosts, OPTIONS, "lo")
        place = runner._place

        def placed(environment: Any) -> None:
            place(environment)
            environment.current_instance_type = instance

        runner._place = placed  # type: ignore[method-assign]
        return runner._create_command(), {}
    if kind in ("torchrun", "neuron"):
        hosts, here, instance = given
        torch = TorchDistributedRunner(*SCRIPT, {}, 2, "algo-1", hosts, here, "lo", instance)
        return torch._create_command(), torchrun.network_variables(torch.launch())
    here, hosts = given
    with_gpus = PyTorchXLARunner(*SCRIPT, {}, 1, "algo-1", here, hosts, 4)
    return with_gpus._create_command(), xla.variables(with_gpus.launch())


@pytest.fixture
def vendors(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """An image with the vendors' programs in it; called with the kind of launcher."""
    (tmp_path / "bin").mkdir()
    for name in ("smddprun", "smddpmprun"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "torch_xla/distributed").mkdir(parents=True)
    for name in ("__init__.py", "distributed/__init__.py", "distributed/xla_spawn.py"):
        (tmp_path / "torch_xla" / name).write_text("__version__ = '1'\n")
    tree.script("pass")
    tree.configure(
        "resourceconfig", {"current_host": "algo-1", "hosts": HOSTS, "network_interface_name": "lo"}
    )
    for name in [name for name in os.environ if name.startswith(("NCCL", "FI_", "SM_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tree.base))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def prepare(kind: str) -> None:
        if kind == "neuron":
            monkeypatch.setenv("RUN_NEURON_PARALLEL_COMPILE", "1")

    return prepare


@pytest.mark.parametrize("case", CASES)
def test_commands_of_the_launchers(case: str, vendors: Callable[[str], None]) -> None:
    """As in `launchers.json`. To write it: ``SHUNTER_WRITE_GOLDEN=1``."""
    kind, given, words = CASES[case]
    vendors(kind)
    line, env = _ours(kind, given, words)
    start = line.index("-c") if "-c" in line else None
    if start is not None:  # our own first process of each rank
        line = [*line[: start - 1], *line[start + 2 :]]
    if "mpi4py" in line:  # where it is installed here
        del line[line.index("mpi4py") - 1 : line.index("mpi4py") + 1]
    shown = shlex.join(line).replace(sys.executable, "python")
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if os.environ.get("SHUNTER_WRITE_GOLDEN"):
        golden[case] = {"command": shown, "environment": env}
        GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")
    assert golden[case] == {"command": shown, "environment": env}


COUNT = "sagemaker_mpi_num_of_processes_per_host"
PROGRAMS = {
    # vendor's program -> what it does here: say so and become the command that it is given
    "smddprun": """#!/bin/sh
echo "under smddprun $SMDATAPARALLEL_USE_SINGLENODE"; exec "$@"
""",
    "neuron_parallel_compile": """#!/bin/sh
echo under neuron_parallel_compile; exec "$@"
""",
    "nvidia-smi": """#!/bin/sh
echo "GPU 0: some"; echo "GPU 1: some"
""",
}
XLA_SPAWN = """
import os, runpy, sys
print("under xla_spawn", sys.argv[1:3], os.environ["XRT_WORKERS"])
sys.argv = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "parameters", "env", "expected"),
    [
        (
            "mpi",
            {
                "sagemaker_distributed_dataparallel_enabled": "true",
                "sagemaker_mpi_num_of_processes_per_host": "1",
            },
            {},
            "[1,0]<stdout>:under smddprun 1\n[1,0]<stdout>:trained 3\n",
        ),
        (
            "torch",
            {"sagemaker_torch_distributed_enabled": "true", COUNT: "1"},
            {"RUN_NEURON_PARALLEL_COMPILE": "1"},
            "under neuron_parallel_compile\ntrained 3\n",
        ),
        (
            "",
            {"sagemaker_pytorch_xla_multi_worker_enabled": "true"},
            {},
            "under xla_spawn ['--num_gpus', '2'] localservice:0;localhost:43857\ntrained 3\n",
        ),
    ],
    ids=["smddp", "neuron", "xla"],
)
def test_train_starts_the_vendors_launchers(
    tree: Tree, tmp_path: Path, backend: str, parameters: dict[str, str], env: dict[str, str], expected: str
) -> None:
    if backend:
        need(backend)
    (tmp_path / "bin").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / "torch_xla/distributed").mkdir(parents=True)
    (tmp_path / "torch_xla/__init__.py").touch()
    (tmp_path / "torch_xla/distributed/__init__.py").touch()
    (tmp_path / "torch_xla/distributed/xla_spawn.py").write_text(XLA_SPAWN)
    tree.configure("resourceconfig", {"current_host": "localhost", "hosts": ["localhost"]})
    tree.hyperparameters(depth="3", **parameters)
    tree.script("import sys; sys.stdout.write(f'trained {sys.argv[2]}\\n')")  # mpirun tags each write
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = tree.train(PATH=path, PYTHONPATH=str(tmp_path), **env)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


EXTRA = """
import os
from sagemaker_training import entry_point, environment, errors, runner
options = {"sagemaker_mpi_num_of_processes_per_host": 2, "sagemaker_mpi_custom_mpi_options": "-x WORD=said"}
env = environment.Environment()
run = lambda name: entry_point.run(env.module_dir, name, ["--a"], env.to_env_vars(),
                                   runner_type=runner.MPIRunnerType, extra_opts=options)
assert run("train.py").exit_code == 0
try:
    run("bad.py")
except errors.ExecuteUserScriptError as error:
    print(error.return_code, error.details["rank"], error.details["exception"], error.details["message"])
"""


@pytest.mark.slow
def test_options_of_mpi_from_a_frameworks_code(tree: Tree) -> None:
    need("mpi")
    tree.configure("resourceconfig", {"current_host": "localhost", "hosts": ["localhost"]})
    tree.script("import os, sys; os.write(1, f\"{os.environ['WORD']} {sys.argv[1:]}\\n\".encode())")
    tree.script("import os\nif os.environ['OMPI_COMM_WORLD_RANK'] == '1': raise OSError('no data')", "bad.py")
    start = "from shunter_toolkit import aliases; aliases.install()\n"
    done = subprocess.run(
        [sys.executable, "-c", start + EXTRA], env=tree.env(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("said ['--a']\n") == 2
    assert done.stdout.endswith("1 1 OSError no data\n")
