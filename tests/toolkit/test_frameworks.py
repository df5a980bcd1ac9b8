"""AWS's framework toolkits train with ours in the place of the one that they were made for."""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.backends import frameworks, need

from .conftest import Tree
from .hosts import Hosts, require_hosts
from .image import make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator

PYTORCH = "sagemaker_pytorch_container.training:main"
TENSORFLOW = "sagemaker_tensorflow_container.training:main"
MXNET = "sagemaker_mxnet_container.training:main"

# TensorFlow's toolkit imports it; only a parameter server uses it.
TENSORFLOW_STAND_IN = """
import types
class ClusterSpec:
    def __init__(self, cluster): self.cluster = cluster
class Server:
    def __init__(self, spec, job_name, task_index, config): print("server", job_name, task_index, flush=True)
    def join(self): pass
train = types.SimpleNamespace(ClusterSpec=ClusterSpec)
distribute = types.SimpleNamespace(Server=Server)
compat = types.SimpleNamespace(v1=types.SimpleNamespace(ConfigProto=dict))
"""

# A script as users write them: it learns y = 3x on what the channel holds, and saves the model.
LEARN = """
import argparse, json, os, torch
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--train", default=os.environ["SM_CHANNEL_TRAIN"])
args = parser.parse_args()
rows = [tuple(map(float, line.split(","))) for line in open(args.train + "/data.csv")]
x, y = (torch.tensor([row[i] for row in rows]) for i in (0, 1))
weight = torch.zeros(1, requires_grad=True)
for _ in range(args.epochs):
    loss = ((weight * x - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        weight -= 0.05 * weight.grad
        weight.grad.zero_()
torch.save({"weight": weight}, os.environ["SM_MODEL_DIR"] + "/model.pt")
print("learned", round(weight.item(), 2), os.environ["MASTER_ADDR"], os.environ["SM_DLC_TORCH_VERSION"] != "")
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with our wheel, as a framework image has its toolkit."""
    folder = tmp_path_factory.mktemp("image")
    venv.create(folder / "env")
    site = next((folder / "env/lib").glob("python3*/site-packages"))
    with zipfile.ZipFile(make_wheel(folder)) as wheel:
        wheel.extractall(site)
    (site / "tensorflow.py").write_text(TENSORFLOW_STAND_IN)
    libraries = {frameworks(), sysconfig.get_paths()["purelib"]}
    torch = importlib.util.find_spec("torch")
    if torch is not None and torch.origin is not None:
        libraries.add(str(Path(torch.origin).parents[1]))
    (site / "libraries.pth").write_text("\n".join(sorted(libraries)))
    return folder / "env/bin/python"


@pytest.fixture
def tree(image: Path, tmp_path: Path) -> Tree:
    made = Tree(tmp_path / "ml")
    made.python = str(image)
    made.configure("resourceconfig", {"current_host": "localhost", "hosts": ["localhost"]})
    return made


@pytest.mark.slow
def test_pytorch_learns(tree: Tree) -> None:
    need("torch")
    (tree.base / "input/data/train").mkdir()
    (tree.base / "input/data/train/data.csv").write_text("1,3\n2,6\n3,9\n")
    tree.configure("inputdataconfig", {"train": {"TrainingInputMode": "File"}})
    tree.script(LEARN)
    tree.hyperparameters(epochs="200")
    done = tree.train(SAGEMAKER_TRAINING_MODULE=PYTORCH)
    assert (done.returncode, done.stdout) == (0, "learned 3.0 localhost True\n"), done.stderr
    assert (tree.base / "model/model.pt").stat().st_size > 500


@pytest.mark.slow
@pytest.mark.parametrize("module", [PYTORCH, TENSORFLOW, MXNET])
def test_each_of_them_runs_a_script_and_reports_its_failure(tree: Tree, tmp_path: Path, module: str) -> None:
    need("botocore")  # TensorFlow's toolkit imports boto3
    (tmp_path / "torch.py").write_text("__version__ = '0'")  # PyTorch's imports it, which takes seconds
    env = {"SAGEMAKER_TRAINING_MODULE": module, "PYTHONPATH": str(tmp_path)}
    tree.script("import sys; print(sys.argv[1:])")
    tree.hyperparameters(model_dir='"/opt/ml/model"', words='"it\'s $HOME"')
    done = tree.train(**env)
    expected = "['--model_dir', '/opt/ml/model', '--words', \"it's $HOME\"]\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
    tree.script("raise ValueError('no such column')")
    assert tree.train(**env).returncode == 1
    assert tree.failure.startswith("ValueError: no such column")
    tree.script("raise SystemExit(7)")
    assert tree.train(**env).returncode == 7


# What images call whose toolkits are in no index: scikit-learn's, and XGBoost's with the elder names.
OTHERS = """
import sys
from sagemaker_training import entry_point, environment, runner
from sagemaker_containers import _env
import sagemaker_containers.beta.framework as framework

def sklearn():
    env = environment.Environment()
    entry_point.run(uri=env.module_dir, user_entry_point=env.user_entry_point, args=env.to_cmd_args(),
                    env_vars=env.to_env_vars(), runner_type=runner.ProcessRunnerType)

def xgboost():
    env = framework.training_env()
    if env.user_entry_point is not None:
        framework.modules.run_module(env.module_dir, env.to_cmd_args(), env.to_env_vars(), env.module_name,
                                     capture_error=False)
    else:
        import os
        _env.write_env_vars(env.to_env_vars())
        print("algorithm mode", os.environ["SM_CURRENT_HOST"])
    sys.exit(0)
"""


@pytest.mark.slow
def test_toolkits_of_the_elder_names(tree: Tree, image: Path) -> None:
    next(image.parents[1].glob("lib/python3*/site-packages")).joinpath("others.py").write_text(OTHERS)
    tree.script("import os, sys; print(os.environ['SM_CURRENT_HOST'], *sys.argv[1:])")
    tree.hyperparameters(depth="3")
    for function in ("sklearn", "xgboost"):
        done = tree.train(SAGEMAKER_TRAINING_MODULE=f"others:{function}")
        assert (done.returncode, done.stdout) == (0, "localhost --depth 3\n"), done.stderr
    tree.configure("hyperparameters", {"depth": "3"})
    done = tree.train(SAGEMAKER_TRAINING_MODULE="others:xgboost")
    assert (done.returncode, done.stdout) == (0, "algorithm mode localhost\n"), done.stderr
    tree.hyperparameters(depth="3")
    tree.script("raise SystemExit(7)")
    assert tree.train(SAGEMAKER_TRAINING_MODULE="others:xgboost").returncode == 7


@pytest.fixture
def hosts(image: Path, tmp_path: Path) -> Iterator[Hosts]:
    require_hosts("netns")
    with Hosts(tmp_path, ["algo-1", "algo-2"]) as made:
        for each in made.trees.values():
            each.python = str(image)
        yield made


SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
os.write(1, f"rank {dist.get_rank()} on {os.environ['SM_CURRENT_HOST']} sum {total.item():.0f}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.timeout(150)
def test_pytorch_on_two_hosts(hosts: Hosts) -> None:
    need("torch")
    for tree in hosts.trees.values():
        tree.script(SUM)
        tree.hyperparameters(
            sagemaker_torch_distributed_enabled="true",
            sagemaker_torch_distributed_processes_per_host="1",
        )
    results = hosts.run(timeout=140, SAGEMAKER_TRAINING_MODULE=PYTORCH, SHUNTER_HOST_WAIT_SECONDS="60")
    assert [code for code, _, _ in results.values()] == [0, 0], results
    for rank, host in enumerate(results):
        assert f"rank {rank} on {host} sum 3\n" in results[host][1]


@pytest.mark.slow
def test_mpi_on_two_hosts(hosts: Hosts) -> None:
    need("mpi")
    for tree in hosts.trees.values():
        tree.script(
            "import os\nline = os.environ['OMPI_COMM_WORLD_RANK'] + ' ' + os.environ['SM_CURRENT_HOST']\n"
            "os.write(1, line.encode() + b'\\n')"
        )
        tree.hyperparameters(sagemaker_mpi_enabled="true", sagemaker_mpi_num_of_processes_per_host="1")
    results = hosts.run(SAGEMAKER_TRAINING_MODULE=MXNET)
    assert [code for code, _, _ in results.values()] == [0, 0], results
    out = results["algo-1"][1]
    assert "0 algo-1\n" in out
    assert "1 algo-2\n" in out


@pytest.mark.slow
def test_tensorflow_on_two_hosts(hosts: Hosts) -> None:
    need("botocore")
    for tree in hosts.trees.values():
        tree.script("import os; print(os.environ['TF_CONFIG'])")
        tree.hyperparameters(sagemaker_multi_worker_mirrored_strategy_enabled="true")
    theirs = hosts.run(SAGEMAKER_TRAINING_MODULE=TENSORFLOW)
    assert [code for code, _, _ in theirs.values()] == [0, 0], theirs
    ours = hosts.run()
    assert {host: out for host, (_, out, _) in ours.items()} == {h: out for h, (_, out, _) in theirs.items()}
    assert '"task": {"index": 1, "type": "worker"}' in ours["algo-2"][1]


COMPARE = """
import json, sys
from sagemaker_tensorflow_container.training import _build_tf_config_for_mwms, _build_tf_config_for_ps
from shunter_toolkit.environment import Environment
from shunter_toolkit.tf_config import MIRRORED_STRATEGY, PARAMETER_SERVER, variables
builders = (_build_tf_config_for_ps, _build_tf_config_for_mwms)
for hosts in (["a"], ["a", "b"], ["a", "b", "c"]):
    for host in hosts:
        cluster = {"current_host": host, "hosts": hosts}
        for flag, theirs in zip((PARAMETER_SERVER, MIRRORED_STRATEGY), builders):
            made = Environment(cluster, {"x": {}}, {flag: True})
            ours = variables(made).get("TF_CONFIG")
            if ours or len(hosts) > 1:
                assert json.loads(ours) == theirs(hosts=hosts, current_host=host), (hosts, host, flag)
            assert variables(Environment(cluster, {"x": {}}, {flag: "false"})) == {}
print("equal")
"""


def test_tf_config_is_theirs(image: Path) -> None:
    need("botocore")
    done = subprocess.run([str(image), "-c", COMPARE], capture_output=True, text=True, check=False)
    assert done.stdout == "equal\n", done.stderr
