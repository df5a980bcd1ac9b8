"""The requests that jobs become: golden files, and what holds for all of them."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from shunter.errors import ConfigError
from shunter.schedulers.aws_batch_scheduler import request as request_module
from shunter.schedulers.aws_batch_scheduler.replicas import original_command
from shunter.specs import AppDef, Resource, macros
from tests.aws.batch.jobs import CASES, app, request, role

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(autouse=True)
def fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_module, "make_unique", lambda name: f"{name.lower().replace(' ', '-')}-x1")
    monkeypatch.setattr("shunter.schedulers.aws_batch_scheduler.request.__version__", "1.2.3")


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    job, cfg = CASES[name]
    made = request(copy.deepcopy(job), **cfg)
    text = json.dumps(
        {"RegisterJobDefinition": made.job_def, "SubmitJob": made.submission}, indent=2, sort_keys=True
    )
    path = GOLDEN / f"{name}.json"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text(), "UPDATE_GOLDEN=1 rewrites it"


@pytest.mark.parametrize("name", CASES)
def test_the_job_is_left_as_it_is(name: str) -> None:
    job, cfg = CASES[name]
    before = copy.deepcopy(job)
    request(job, **cfg)
    request(job, **cfg)
    assert job == before


@pytest.mark.parametrize("name", CASES)
def test_definitions_depend_on_content_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    job, cfg = CASES[name]
    first = request(job, **cfg)
    monkeypatch.setattr(request_module, "make_unique", lambda name: "another-name")
    assert request(job, **cfg).job_def == first.job_def
    job = copy.deepcopy(job)
    job.roles[0].env["NEW"] = "1"
    assert request(job, **cfg).job_def["jobDefinitionName"] != first.job_def["jobDefinitionName"]


def test_what_differs_between_runs_goes_into_the_submission() -> None:
    job = role(
        args=["--name", macros.app_id],
        env={"OUT": f"/{macros.app_id}", "TORCHX_INTERNAL_SESSION_ID": "s", "SAME": "x"},
    )
    made = request(app(job))
    override = made.submission["containerOverrides"]
    changed = {pair["name"]: pair["value"] for pair in override["environment"]}
    assert changed == {
        "OUT": f"/{made.name}",
        "TORCHX_INTERNAL_SESSION_ID": "s",
        "TORCHX_JOB_ID": f"aws_batch://session/gpus:{made.name}",
    }
    assert override["command"] == ["python", "--name", made.name]


def test_job_id_is_the_whole_handle_for_a_queue_given_by_arn() -> None:
    made = request(app(), queue="arn:aws:batch:us-west-2:123456789012:job-queue/gpus")
    assert made.app_id == f"gpus:{made.name}"
    assert made.region == "us-west-2"
    assert made.submission["jobQueue"].startswith("arn:")
    environment = made.submission["containerOverrides"]["environment"]
    assert {"name": "TORCHX_JOB_ID", "value": f"aws_batch://session/{made.app_id}"} in environment


@pytest.mark.parametrize("retries", [0, 1, 9])
def test_a_retry_is_an_attempt_more(retries: int) -> None:
    strategy = request(app(role(max_retries=retries))).job_def["retryStrategy"]
    assert strategy["attempts"] == retries + 1


def test_secrets_of_the_environment_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    made = request(
        app(role(env={"HF_TOKEN": "hf_abcdefghij"}, args=["--password", "swordfish1"])),
        execution_role_arn="arn:aws:iam::123456789012:role/r",
        secrets={"API_KEY": "ssm:/prod/key"},
    )
    for text in (str(made), repr(made)):
        assert "hf_abcdefghij" not in text
        assert "swordfish1" not in text
        assert '"valueFrom": "/prod/key"' in text
        assert '"name": "API_KEY"' in text


# ---- commands, run by a real shell


def environment(made: Any, index: int) -> dict[str, str]:
    if "nodeProperties" in made.job_def:
        container = made.job_def["nodeProperties"]["nodeRangeProperties"][0]["container"]
        return {pair["name"]: pair["value"] for pair in container["environment"]}
    pairs = made.job_def["containerProperties"]["environment"]
    return {pair["name"]: pair["value"] for pair in pairs}


def run(command: list[str], **env: str) -> str:
    path = {"PATH": os.environ["PATH"]}
    return subprocess.run(command, env={**path, **env}, capture_output=True, text=True, check=True).stdout


WORDS = ["two words", "quote's", 'double"s', "$HOME `id` $(id)", "*", "", "-n", "ünï", "a\nb", "\\"]


@pytest.mark.parametrize("with_index", [False, True])
def test_words_arrive_as_given(with_index: bool) -> None:
    words = [f"{macros.replica_id} it's"] if with_index else []
    script = 'for word in "$@"; do printf "[%s]" "$word"; done; printf " %s %s" "$E" "$TORCHX_REPLICA_IDX"'
    job = role(
        entrypoint="sh",
        args=["-c", script.replace("$", "$$"), "sh", *[w.replace("$", "$$") for w in WORDS], *words],
        env={"E": f"'{macros.replica_id}'$$X"},
        num_replicas=7,
    )
    for array in (False, True):
        made = request(app(job), array=array)
        container = (
            made.job_def["containerProperties"]
            if array
            else made.job_def["nodeProperties"]["nodeRangeProperties"][0]["container"]
        )
        variable = "AWS_BATCH_JOB_ARRAY_INDEX" if array else "AWS_BATCH_JOB_NODE_INDEX"
        printed = run(container["command"], **environment(made, 5), **{variable: "5"})
        expected = "".join(f"[{word}]" for word in [*WORDS, *(["5 it's"] if with_index else [])])
        assert printed == f"{expected} '5'$X 5"


def test_second_role_counts_from_its_first_node() -> None:
    job = app(role(num_replicas=3), role("reader", entrypoint="sh", args=["-c", "env"], num_replicas=2))
    ranges = request(job).job_def["nodeProperties"]["nodeRangeProperties"]
    assert [each["targetNodes"] for each in ranges] == ["0:2", "3:4"]
    command = ranges[1]["container"]["command"]
    printed = run(
        command, AWS_BATCH_JOB_NODE_INDEX="4", AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS="10.0.0.7"
    )
    assert "TORCHX_REPLICA_IDX=1\n" in printed
    assert "TORCHX_RANK0_HOST=10.0.0.7\n" in printed
    assert "TORCHX_RANK0_HOST=localhost\n" in run(command, AWS_BATCH_JOB_NODE_INDEX="3")


@pytest.mark.parametrize("args", [["a b", "c'd"], ["x", f"--i={macros.replica_id}", "it's"]])
def test_commands_can_be_read_back(args: list[str]) -> None:
    made = request(app(role(args=args, num_replicas=2)), array=True)
    command = made.job_def["containerProperties"]["command"]
    assert original_command(command) == ["python", *args]
    assert original_command(["sh", "-c", "echo"]) == ["sh", "-c", "echo"]


# ---- refusals, before any call


def refused(job: AppDef, match: str, **cfg: Any) -> None:
    with pytest.raises(ConfigError, match=match):
        request(job, **cfg)


@pytest.mark.parametrize(
    ("cfg", "match"),
    [
        ({"priority": 1}, "share_id"),
        ({"platform": "fargate"}, "platform"),
        ({"platform": "FARGATE"}, "execution_role_arn"),
        ({"retry_on": "never"}, "retry_on"),
        ({"retry_rules": ["exit:x:retry"]}, "exit:x:retry"),
        ({"retry_rules": ["exit:1:again"]}, "again"),
        ({"retry_rules": ["status:a*b:final"]}, r"last character may be a"),
        ({"retry_rules": [f"exit:{i}:retry" for i in range(5)]}, "5"),
        ({"job_role_arn": "jobs"}, "job_role_arn"),
        ({"execution_role_arn": "arn:aws:iam::1:role/x"}, "execution_role_arn"),
        ({"secrets": {"A": "ssm:/x"}}, "execution_role_arn"),
        ({"tags": {"k" * 129: "v"}}, "tag"),
        ({"tags": {str(i): "" for i in range(47)}}, "at most 50"),
        ({"ephemeral_storage": 50}, "FARGATE"),
        ({"public_ip": True}, "FARGATE"),
        ({"ulimits": ["nofle:1:1"]}, "nofile"),
        ({"ulimits": ["nofile:1"]}, "soft"),
        ({"ulimits": ["nofile:2:1"]}, "above"),
    ],
)
def test_wrong_options_are_refused(cfg: dict[str, Any], match: str) -> None:
    refused(app(), match, **cfg)


def test_a_secret_itself_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        request(
            app(),
            secrets={"HF_TOKEN": "hf_verysecret"},
            execution_role_arn="arn:aws:iam::123456789012:role/r",
        )
    assert "hf_verysecret" not in str(caught.value)


FARGATE = {"platform": "FARGATE", "execution_role_arn": "arn:aws:iam::123456789012:role/r"}


@pytest.mark.parametrize(
    ("fields", "cfg", "match"),
    [
        ({"resource": Resource(1, 0, -1)}, {}, "memMB"),
        ({"image": "<NONE>"}, {}, "no image"),
        ({"resource": Resource(1, 0, 64, devices={"vpc.amazonaws.com/eaf": 1})}, {}, "efa"),
        ({"resource": Resource(1, 1, 2048)}, FARGATE, "GPU"),
        ({}, {**FARGATE, "privileged": True}, "privileged"),
        ({}, {**FARGATE, "ulimits": ["nofile:1:1"]}, "ulimits"),
        ({"num_replicas": 2}, FARGATE, "multi-node"),
        ({"max_retries": 10}, {}, "10 attempts"),
        ({"num_replicas": 1001}, {}, "1000"),
        ({"num_replicas": 10_001}, {"array": True}, "10000"),
    ],
)
def test_wrong_roles_are_refused(fields: dict[str, Any], cfg: dict[str, Any], match: str) -> None:
    refused(app(role(**fields)), match, **cfg)


def test_wrong_jobs_are_refused() -> None:
    refused(app(role("a"), role("b")), "one role", array=True)
    refused(app(*[role(name) for name in "abcdef"]), "5 ranges")
    types = [Resource(1, 0, 64, {"node.kubernetes.io/instance-type": t}) for t in ("p3.2xlarge", "m5.xlarge")]
    refused(app(role("a", resource=types[0]), role("b", resource=types[1])), "one instance type")


def test_everything_that_is_wrong_with_the_options_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        request(app(), job_role_arn="r", platform="x", retry_on="never")
    for word in ("job_role_arn", "platform", "retry_on"):
        assert word in str(caught.value)


def test_references_to_secrets_are_kept_in_the_history() -> None:
    from shunter.redaction import Redactor

    given = {
        "HF_TOKEN": "arn:aws:secretsmanager:us-east-1:123456789012:secret:a-b",
        "API_KEY": "ssm:/prod/key",
    }
    assert Redactor({}).named("secrets", given) == given
    assert Redactor({}).named("secrets", {"HF_TOKEN": "hf_abc"}) != {"HF_TOKEN": "hf_abc"}
