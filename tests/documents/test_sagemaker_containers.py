"""What the README of SageMaker Containers says, checked in a job that the toolkit's ``train`` runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest

from tests.toolkit.conftest import DUMP, RESOURCE, Tree
from tests.toolkit.conftest import home as home

HYPERPARAMETERS = {"batch-size": "256", "learning-rate": "0.0001", "communicator": "pure_nccl"}
DECODED = {"batch-size": 256, "learning-rate": 0.0001, "communicator": "pure_nccl"}
CHANNEL = {
    "RecordWrapperType": "None",
    "S3DistributionType": "FullyReplicated",
    "TrainingInputMode": "File",
}
CHANNELS = {"testing": CHANNEL, "training": CHANNEL}


@dataclass(frozen=True)
class Job:
    """What a script saw.

    Attributes:
        base: the base directory, ``/opt/ml`` on SageMaker.
        argv: its arguments.
        env: its variables.
        output: what the toolkit wrote.
    """

    base: str
    argv: list[str]
    env: dict[str, str]
    output: str

    def value(self, name: str) -> Any:
        """Return the value of a variable in JSON."""
        return json.loads(self.env[name])


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    tree = Tree(tmp_path_factory.mktemp("documents") / "ml")
    tree.configure("inputdataconfig", CHANNELS)
    tree.hyperparameters(**HYPERPARAMETERS)
    tree.script(DUMP)
    done = tree.train()
    assert done.returncode == 0, done.stderr
    seen = tree.dump()
    return Job(str(tree.base), seen["argv"], seen["env"], done.stdout + done.stderr)


#: Statement -> whether it holds.
STATEMENTS: dict[str, Callable[[Job], object]] = {
    "hyperparameters are arguments of the script": lambda job: (
        dict(zip(job.argv[::2], job.argv[1::2], strict=True))
        == {f"--{name}": value for name, value in HYPERPARAMETERS.items()}
    ),
    "SM_MODEL_DIR": lambda job: job.env["SM_MODEL_DIR"] == f"{job.base}/model",
    "SM_CHANNELS": lambda job: job.value("SM_CHANNELS") == ["testing", "training"],
    "SM_CHANNEL_TRAINING": lambda job: job.env["SM_CHANNEL_TRAINING"] == f"{job.base}/input/data/training",
    "SM_CHANNEL_TESTING": lambda job: job.env["SM_CHANNEL_TESTING"] == f"{job.base}/input/data/testing",
    "SM_HPS": lambda job: job.value("SM_HPS") == DECODED,
    "SM_HP_LEARNING-RATE": lambda job: float(job.env["SM_HP_LEARNING-RATE"]) == 0.0001,
    "SM_HP_BATCH-SIZE": lambda job: int(job.env["SM_HP_BATCH-SIZE"]) == 256,
    "SM_HP_COMMUNICATOR": lambda job: job.env["SM_HP_COMMUNICATOR"] == "pure_nccl",
    "SM_CURRENT_HOST": lambda job: job.env["SM_CURRENT_HOST"] == "algo-1",
    "SM_HOSTS": lambda job: job.value("SM_HOSTS") == ["algo-1"],
    "SM_NUM_GPUS": lambda job: int(job.env["SM_NUM_GPUS"]) >= 0,
    "SM_NUM_CPUS": lambda job: int(job.env["SM_NUM_CPUS"]) >= 1,
    "SM_LOG_LEVEL": lambda job: job.env["SM_LOG_LEVEL"] == "20",
    "SM_NETWORK_INTERFACE_NAME": lambda job: job.env["SM_NETWORK_INTERFACE_NAME"] == "eth0",
    "SM_USER_ARGS": lambda job: job.value("SM_USER_ARGS") == job.argv,
    "SM_INPUT_DIR": lambda job: job.env["SM_INPUT_DIR"] == f"{job.base}/input",
    "SM_INPUT_CONFIG_DIR": lambda job: job.env["SM_INPUT_CONFIG_DIR"] == f"{job.base}/input/config",
    "SM_OUTPUT_DATA_DIR": lambda job: job.env["SM_OUTPUT_DATA_DIR"] == f"{job.base}/output/data",
    "SM_RESOURCE_CONFIG": lambda job: job.value("SM_RESOURCE_CONFIG") == RESOURCE,
    "SM_INPUT_DATA_CONFIG": lambda job: job.value("SM_INPUT_DATA_CONFIG") == CHANNELS,
    "all variables are printed when training starts": lambda job: "SM_CURRENT_HOST" in job.output,
}
#: The keys of the example of SM_TRAINING_ENV, with values of this job.
TRAINING_ENV: dict[str, Callable[[Job], object]] = {
    "channel_input_dirs": lambda job: {name: f"{job.base}/input/data/{name}" for name in CHANNELS},
    "current_host": lambda job: "algo-1",
    "framework_module": lambda job: None,
    "hosts": lambda job: ["algo-1"],
    "hyperparameters": lambda job: DECODED,
    "input_config_dir": lambda job: f"{job.base}/input/config",
    "input_data_config": lambda job: CHANNELS,
    "input_dir": lambda job: f"{job.base}/input",
    "log_level": lambda job: 20,
    "model_dir": lambda job: f"{job.base}/model",
    "module_dir": lambda job: f"{job.base}/code",
    "module_name": lambda job: "train",
    "network_interface_name": lambda job: "eth0",
    "num_cpus": lambda job: int(job.env["SM_NUM_CPUS"]),
    "num_gpus": lambda job: int(job.env["SM_NUM_GPUS"]),
    "output_data_dir": lambda job: f"{job.base}/output/data",
    "output_dir": lambda job: f"{job.base}/output",
    "resource_config": lambda job: RESOURCE,
}


@pytest.mark.parametrize("statement", STATEMENTS)
def test_variables_and_arguments(statement: str, job: Job) -> None:
    assert STATEMENTS[statement](job)


@pytest.mark.parametrize("key", TRAINING_ENV)
def test_sm_training_env(key: str, job: Job) -> None:
    assert job.value("SM_TRAINING_ENV")[key] == TRAINING_ENV[key](job)


def test_job_name_is_in_sm_training_env(job: Job) -> None:
    assert "job_name" in job.value("SM_TRAINING_ENV")


def test_shell_scripts_run_by_a_shell(tree: Tree) -> None:
    tree.script('#!/bin/sh\necho "$SM_CURRENT_HOST $1 $2" > "$DUMP"\n', "train.sh")
    tree.hyperparameters("train.sh", rate="0.1")
    assert tree.train().returncode == 0
    assert (tree.base / "dump.json").read_text() == "algo-1 --rate 0.1\n"


def test_the_variable_sagemaker_program_names_the_script(tree: Tree) -> None:
    tree.script(DUMP, "other.py")
    assert tree.train(SAGEMAKER_PROGRAM="other.py").returncode == 0
    assert tree.dump()["argv"] == []


@pytest.mark.parametrize("name", ["entry_point", "environment"])
def test_modules_of_the_training_toolkit(name: str) -> None:
    assert import_module(f"shunter_toolkit.{name}")


@pytest.fixture
def tree(tmp_path: Any) -> Tree:
    return Tree(tmp_path / "ml")
