"""The contract, row by row: arguments and variables."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shunter_toolkit import input_config, mapping, resources
from shunter_toolkit.environment import Environment

from .conftest import DUMP, RESOURCE, Tree

# Raw value in hyperparameters.json -> the script's arguments and the SM_HP variable. Recorded from the
# predecessor.
GOLDEN = [
    ("batch-size", "256", ["--batch-size", "256"], "256"),
    ("flag", "true", ["--flag", "True"], "true"),
    ("none", "null", ["--none", ""], ""),
    ("d", '{"a":1,"b":{"c":true}}', ["-d", "a=1,b={'c': True}"], '{"a":1,"b":{"c":true}}'),
    ("L", '[1,2,{"a":3}]', ["-L", "[1, 2, {'a': 3}]"], '[1,2,{"a":3}]'),
    ("sci", "1e5", ["--sci", "100000.0"], "100000.0"),
    ("zip", "01234", ["--zip", "01234"], "01234"),
    ("nan", "NaN", ["--nan", "nan"], "NaN"),
    ("big", "12345678901234567890123", ["--big", "12345678901234567890123"], "12345678901234567890123"),
    ("q", '"quoted"', ["-q", "quoted"], "quoted"),
    ("sp", "it's $HOME `id`", ["--sp", "it's $HOME `id`"], "it's $HOME `id`"),
    ("uni", "h\u00e9llo", ["--uni", "h\u00e9llo"], "h\u00e9llo"),
    ("flaglike", "--evil", ["--flaglike", "--evil"], "--evil"),
    ("under_score", "1.5", ["--under_score", "1.5"], "1.5"),
    ("", '"x"', ["", "x"], "x"),
]


@pytest.mark.parametrize(("name", "raw", "args", "variable"), GOLDEN)
def test_golden_vectors(name: str, raw: str, args: list[str], variable: str) -> None:
    decoded = input_config.decode_hyperparameters({name: raw})
    assert mapping.to_cmd_args(decoded) == args
    assert mapping.to_env_value(decoded[name]) == variable


# Every variable of the contract and its value for the tree below: text, or JSON by its structure.
EXPECTED: dict[str, Any] = {
    "SM_HOSTS": ["algo-1"],
    "SM_CURRENT_HOST": "algo-1",
    "SM_CURRENT_INSTANCE_TYPE": "ml.p3.2xlarge",
    "SM_CURRENT_INSTANCE_GROUP": "group-1",
    "SM_CURRENT_INSTANCE_GROUP_HOSTS": ["algo-1"],
    "SM_INSTANCE_GROUPS": ["group-1"],
    "SM_INSTANCE_GROUPS_DICT": {"group-1": RESOURCE["instance_groups"][0]},  # type: ignore[index]
    "SM_DISTRIBUTION_INSTANCE_GROUPS": [],
    "SM_IS_HETERO": "false",
    "SM_NETWORK_INTERFACE_NAME": "eth0",
    "SM_HPS": {"batch-size": 256, "opt": "adam"},
    "SM_HP_BATCH-SIZE": "256",
    "SM_HP_BATCH_SIZE": "256",
    "SM_HP_OPT": "adam",
    "SM_USER_ARGS": ["--batch-size", "256", "--opt", "adam"],
    "SM_USER_ENTRY_POINT": "train.py",
    "SM_MODULE_NAME": "train",
    "SM_MODULE_DIR": "{base}/code",
    "SM_FRAMEWORK_PARAMS": {"sagemaker_estimator": "x"},
    "SM_FRAMEWORK_MODULE": "",
    "SM_CHANNELS": ["train", "val-set"],
    "SM_CHANNEL_TRAIN": "{base}/input/data/train",
    "SM_CHANNEL_VAL-SET": "{base}/input/data/val-set",
    "SM_CHANNEL_VAL_SET": "{base}/input/data/val-set",
    "SM_INPUT_DIR": "{base}/input",
    "SM_INPUT_CONFIG_DIR": "{base}/input/config",
    "SM_OUTPUT_DIR": "{base}/output",
    "SM_OUTPUT_DATA_DIR": "{base}/output/data",
    "SM_OUTPUT_INTERMEDIATE_DIR": "{base}/output/intermediate",
    "SM_MODEL_DIR": "{base}/model",
    "SM_CHECKPOINT_DIR": "{base}/checkpoints",
    "SM_RESOURCE_CONFIG": RESOURCE,
    "SM_INPUT_DATA_CONFIG": {
        "train": {"TrainingInputMode": "File"},
        "val-set": {"TrainingInputMode": "File"},
    },
    "SM_NUM_CPUS": str(resources.num_cpus()),
    "SM_NUM_GPUS": str(resources.num_gpus()),
    "SM_NUM_NEURONS": str(resources.num_neurons()),
    "SM_LOG_LEVEL": "10",
}


def _full(tree: Tree) -> None:
    tree.script(DUMP)
    tree.configure(
        "inputdataconfig", {"val-set": {"TrainingInputMode": "File"}, "train": {"TrainingInputMode": "File"}}
    )
    tree.hyperparameters(
        **{
            "batch-size": "256",
            "opt": "adam",
            "sagemaker_estimator": '"x"',
            "sagemaker_container_log_level": "10",
            "sagemaker_job_name": '"jobby"',
            "sagemaker_region": '"us-west-2"',
            "_tuning_objective_metric": "acc",
        }
    )


def test_every_variable(tree: Tree) -> None:
    _full(tree)
    assert tree.train().returncode == 0
    env = tree.dump()["env"]
    seen = {name: value for name, value in env.items() if name.startswith("SM_")}
    training = json.loads(seen.pop("SM_TRAINING_ENV"))
    assert sorted(seen) == sorted(EXPECTED)
    for name, expected in EXPECTED.items():
        if isinstance(expected, str):
            assert seen[name] == expected.format(base=tree.base), name
        else:
            assert json.loads(seen[name]) == expected, name
            assert seen[name] == json.dumps(expected, separators=(",", ":"), sort_keys=True)
    assert training["hyperparameters"] == {"batch-size": 256, "opt": "adam"}
    assert training["num_cpus"] == resources.num_cpus()
    assert (env["CURRENT_HOST"], env["SAGEMAKER_JOB_NAME"], env["SAGEMAKER_REGION"]) == (
        "algo-1",
        "jobby",
        "us-west-2",
    )


def test_the_documents_table_names_every_variable() -> None:
    text = (Path(__file__).parents[2] / "docs/contract.md").read_text(encoding="utf-8")
    table = set(re.findall(r"^\| `(SM_[A-Z_]+?)(?:<NAME>)?` ", text, re.MULTILINE))
    exact = {name for name in EXPECTED if not name.startswith(("SM_HP_", "SM_CHANNEL_"))}
    assert table == exact | {"SM_HP_", "SM_CHANNEL_", "SM_TRAINING_ENV", "SM_TOPOLOGY"}


def test_heterogeneous_groups(tree: Tree) -> None:
    groups = [
        {"instance_group_name": "data", "instance_type": "ml.c5.xlarge", "hosts": ["algo-3"]},
        {"instance_group_name": "gpu", "instance_type": "ml.p3.2xlarge", "hosts": ["algo-1", "algo-2"]},
    ]
    tree.configure(
        "resourceconfig",
        {
            "current_host": "algo-3",
            "hosts": ["algo-1", "algo-2", "algo-3"],
            "current_group_name": "data",
            "current_instance_type": "ml.c5.xlarge",
            "instance_groups": groups,
            "network_interface_name": "eth0",
        },
    )
    distribution = {"sagemaker_mpi_enabled": "true", "sagemaker_distribution_instance_groups": '["gpu"]'}
    tree.hyperparameters(**distribution)
    tree.script(DUMP)
    assert (
        tree.train().returncode == 0
    )  # this host takes no part in the distribution: it runs the script plainly
    env = tree.dump()["env"]
    assert env["SM_IS_HETERO"] == "true"
    assert env["SM_DISTRIBUTION_INSTANCE_GROUPS"] == '["gpu"]'
    assert env["SM_CURRENT_INSTANCE_GROUP_HOSTS"] == '["algo-3"]'
    training = json.loads(env["SM_TRAINING_ENV"])
    assert training["distribution_hosts"] == ["algo-1", "algo-2"]
    assert (training["master_hostname"], training["is_master"]) == ("algo-1", False)


def test_topology_only_where_there_is_one() -> None:
    with_one = Environment({**RESOURCE, "topology": [{"host": "algo-1"}]}, {"c": {}}, {"a": 1})
    assert with_one.to_env_vars()["SM_TOPOLOGY"] == '[{"host":"algo-1"}]'
    assert "SM_TOPOLOGY" not in Environment(RESOURCE, {"c": {}}, {"a": 1}).to_env_vars()


names = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=20).filter(
    lambda n: not n.startswith("sagemaker_") and n not in input_config.CORE_PARAMETERS
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


@given(st.dictionaries(names, values, max_size=6))
def test_round_trip(hyperparameters: dict[str, Any]) -> None:
    """What the platform writes is what the script reads back from SM_HPS; arguments come in pairs, one per
    name.
    """
    raw = {name: json.dumps(value) for name, value in hyperparameters.items()}
    decoded = input_config.decode_hyperparameters(raw)
    user, core, framework = input_config.split_hyperparameters(decoded)
    assert (core, framework) == ({}, {})
    assert json.loads(mapping.to_json(user)) == hyperparameters
    args = mapping.to_cmd_args(user)
    assert len(args) == 2 * len(hyperparameters)
    for option, name in zip(args[::2], sorted(hyperparameters)):  # noqa: B905
        assert option == ("-" if len(name) == 1 else "--") + name
    for text, name in zip(args[1::2], sorted(hyperparameters)):  # noqa: B905
        if isinstance(hyperparameters[name], (str, int, float)):
            assert text == str(hyperparameters[name])


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.dictionaries(
        names,
        st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=20),
        max_size=3,
    )
)
def test_round_trip_through_a_real_process(tree: Tree, hyperparameters: dict[str, str]) -> None:
    """No shell, no encoding and no flag-like look changes a value on its way into a script."""
    tree.script(DUMP)
    tree.hyperparameters(**{name: json.dumps(value) for name, value in hyperparameters.items()})
    done = tree.train()
    assert done.returncode == 0, done.stderr
    assert tree.dump()["argv"] == mapping.to_cmd_args(hyperparameters)
    assert json.loads(tree.dump()["env"]["SM_HPS"]) == hyperparameters


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "10000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/cpu.cfs_quota_us": "100000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_cpu_quota(tmp_path: Path, files: dict[str, str], expected: int | None) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    available = len(os.sched_getaffinity(0))
    assert resources.num_cpus(str(tmp_path)) == min(available, expected or available)


# ----------------------------------------------------------------------------------------------------------
# -----
