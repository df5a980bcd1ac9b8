"""Random options that go together make requests that the service's model takes; others are refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.errors import ConfigError
from shunter.schedulers.aws_sagemaker_scheduler.container_setup import PlannedCode
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.request import check_request, make_job, settle
from shunter.specs.app import AppDef, Role
from shunter.specs.mounts import parse_mounts
from tests import backends

ROLE = "arn:aws:iam::123456789012:role/service-role/Training"
TYPES = ("ml.m5.large", "ml.c5.xlarge", "ml.p3.16xlarge", "ml.trn1.2xlarge", "ml.g5.xlarge")
WITH_DISKS = ("ml.trn1.2xlarge", "ml.g5.xlarge")
WORDS = st.text("abcXYZ019", min_size=1, max_size=12)
TEXT = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=40)
S3 = st.builds(lambda bucket, key: f"s3://{bucket}/{key}", WORDS, st.lists(WORDS, max_size=3).map("/".join))
SWITCH = st.none() | st.booleans()
VARIABLE = st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True)
PLAIN = st.text("abc XYZ:/=+-@._", max_size=20)
PAIRS = st.dictionaries(WORDS, PLAIN, max_size=3)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    """Options that go together, any of them."""
    spot = draw(st.booleans())
    max_run = draw(maybe(st.integers(1, 10**6)))
    vpc = draw(st.booleans())
    checkpoints = draw(maybe(S3))
    groups = draw(maybe(st.lists(st.sampled_from("abcde"), min_size=1, max_size=5, unique=True)))
    model = draw(maybe(S3))
    login = vpc and draw(st.booleans())
    given: dict[str, Any] = {
        "role": draw(st.sampled_from([ROLE, "Training"])),
        "instance_type": None if groups else draw(st.sampled_from(TYPES)),
        "instance_count": 1 if groups else draw(st.integers(1, 20)),
        "instance_groups": groups
        and [
            {"name": name, "type": draw(st.sampled_from(TYPES)), "count": draw(st.integers(1, 4))}
            for name in groups
        ],
        "user": draw(maybe(WORDS)),
        "base_job_name": draw(maybe(TEXT)),
        "tags": draw(maybe(PAIRS.map(lambda tags: [{"Key": k, "Value": v} for k, v in tags.items()]))),
        "keep_alive_period_in_seconds": None if spot or groups else draw(maybe(st.integers(1, 21600))),
        "volume_size": draw(maybe(st.integers(1, 16384))),
        "volume_kms_key": draw(maybe(WORDS)),
        "max_run": max_run,
        "use_spot_instances": True if spot else draw(st.sampled_from([None, False])),
        "max_wait": (max_run or 86400) + draw(st.integers(0, 1000)) if spot else None,
        "max_pending": draw(maybe(st.integers(1800, 2419200))),
        "max_retry_attempts": draw(maybe(st.integers(1, 30))),
        "input_mode": draw(st.sampled_from([None, "File", "FastFile", "Pipe"])),
        "channels": draw(maybe(st.dictionaries(WORDS.map(lambda word: f"c{word}"), S3, max_size=4))),
        "model_uri": model,
        "model_channel_name": draw(maybe(WORDS.map(lambda word: f"m{word}"))) if model else None,
        "output_path": draw(maybe(S3)),
        "output_kms_key": draw(maybe(WORDS)),
        "checkpoint_s3_uri": checkpoints,
        "checkpoint_local_path": draw(maybe(WORDS.map(lambda word: f"/opt/ml/{word}")))
        if checkpoints
        else None,
        "metric_definitions": draw(
            maybe(st.just([{"Name": "loss", "Regex": "loss=([0-9.]+)"}, {"acc": "acc=(.*)"}, {"Name": "lr"}]))
        ),
        "subnets": ["subnet-1"] if vpc else None,
        "security_group_ids": ["sg-1", "sg-2"] if vpc else None,
        "training_repository_access_mode": "Vpc" if login else draw(st.sampled_from([None, "Platform"])),
        "training_repository_credentials_provider_arn": (
            "arn:aws:lambda:us-east-1:123456789012:function:login" if login and draw(st.booleans()) else None
        ),
        "environment": draw(maybe(st.dictionaries(VARIABLE, TEXT | st.just("x" * 900), max_size=4))),
        "hyperparameters": draw(maybe(st.dictionaries(WORDS, PLAIN, max_size=4))),
        "container_log_level": draw(maybe(st.integers(0, 50))),
        "code_location": draw(maybe(S3)),
    }
    for name in (
        "enable_infra_check",
        "disable_output_compression",
        "enable_sagemaker_metrics",
        "debugger_hook_config",
        "disable_profiler",
        "encrypt_inter_container_traffic",
        "enable_network_isolation",
        "enable_remote_debug",
        "enable_session_tag_chaining",
    ):
        given[name] = draw(SWITCH)
    if given["enable_network_isolation"]:
        given["enable_remote_debug"] = draw(st.sampled_from([None, False]))
    types = [group["type"] for group in given["instance_groups"] or []] or [given["instance_type"]]
    if all(kind in WITH_DISKS for kind in types):
        given["volume_kms_key"] = None
    return given


@st.composite
def jobs(draw: st.DrawFn) -> AppDef:
    """A script, or any program."""
    arguments = draw(st.lists(TEXT, max_size=4))
    if draw(st.booleans()):
        return AppDef("job", [Role("train", "image:1", entrypoint="python", args=["train.py", *arguments])])
    env = draw(st.dictionaries(VARIABLE, st.just("${replica_id}") | PLAIN, max_size=3))
    return AppDef("job", [Role("any", "image:1", entrypoint="sh", args=["-c", *arguments], env=env)])


@pytest.mark.slow
@given(options(), jobs(), st.booleans())
@settings(max_examples=300)
def test_requests_of_random_options_are_valid(given: dict[str, Any], app: AppDef, with_code: bool) -> None:
    backends.need("botocore")
    code = PlannedCode("c" * 40) if with_code or app.roles[0].entrypoint == "python" else None
    job = make_job(app, AWSSageMakerOpts(**given), code=code)
    check_request(settle(job.job_def, {"<account>": "123456789012"}))


BASE = {"role": ROLE, "instance_type": "ml.m5.large"}
GROUP = {"name": "a", "type": "ml.m5.large", "count": 1}
VPC = {"subnets": ["subnet-1"], "security_group_ids": ["sg-1"]}
LOGIN = "arn:aws:lambda:us-east-1:123456789012:function:login"
INCONSISTENT: list[tuple[dict[str, Any], str]] = [
    ({"use_spot_instances": True}, "needs max_wait"),
    ({"use_spot_instances": True, "max_wait": 60}, "less than max_run, 86400"),
    ({"use_spot_instances": True, "max_wait": 60, "max_run": 61}, "less than max_run"),
    ({"max_wait": 90000}, "without use_spot_instances"),
    ({"max_run": 0}, "max_run: Invalid value for parameter"),
    ({"max_retry_attempts": 31}, "max_retry_attempts: .*: 31 is more than 30"),
    ({"subnets": ["subnet-1"]}, "subnets and security_group_ids: Missing required parameter"),
    ({"training_repository_access_mode": "Private", **VPC}, "one of Platform, Vpc"),
    ({"checkpoint_local_path": "/opt/ml/c"}, "without checkpoint_s3_uri"),
    ({"checkpoint_s3_uri": "/tmp/c"}, "s3://bucket/prefix only"),
    ({"input_mode": "file"}, "input_mode: .*: 'file' must be one of Pipe, File, FastFile"),
    ({"model_channel_name": "m"}, "without model_uri"),
    ({"model_uri": "s3://b/m", "channels": {"model": "s3://b/x"}}, "'model' is given twice"),
    ({"channels": {"a": "gs://b/x"}}, "cannot read gs://"),
    ({"channels": {"a": "s3://b/x?modus=File"}}, "no setting 'modus'"),
    ({"channels": {"a": "s3://b/x?shuffle_seed=x"}}, "a whole number, not"),
    ({"metric_definitions": [{"loss": "("}]}, "is invalid"),
    ({"metric_definitions": [{"Regex": "(a)"}]}, "must have Name and Regex"),
    ({"tags": [{"Key": "team"}]}, "must have Key and Value"),
    ({"metric_definitions": [{"loss": "loss=.*"}]}, "no group"),
    ({"metric_definitions": [{"loss": "(a)"}, {"loss": "(b)"}]}, "defined twice"),
    ({"instance_type": None}, "instance_type"),
    ({"instance_type": None, "instance_groups": [{"name": "a"}]}, "must have a name, a type"),
    ({"instance_type": None, "instance_groups": [{**GROUP, "count": "x"}]}, "a whole number as its count"),
    (
        {"instance_type": None, "instance_groups": [GROUP], "instance_count": 2},
        "the latter have counts, too",
    ),
    ({"instance_count": 0}, "must be ≥ 1, not 0"),
    ({"source_dir": "s3://b/x.tar.gz", "dependencies": ["lib"]}, "dependencies cannot"),
    ({"git_config": {"branch": "main"}}, "no repo"),
    ({"git_config": {"repo": "https://x/y", "tok": "1"}}, "has no tok"),
    ({"git_config": {"repo": "http://x/y"}}, "without encryption"),
    ({"git_config": {"repo": "https://x/y"}, "source_dir": "/abs"}, "not in the repository"),
    ({"git_config": {"repo": "https://x/y"}, "source_dir": "s3://b/x.tar.gz"}, "from one only"),
    ({"hyperparameters": {"sagemaker_program": "x"}}, "sagemaker_program is set by the job's script"),
    (
        {
            "distribution": {"mpi": {"enabled": True}},
            "hyperparameters": {"sagemaker_mpi_enabled": True},
        },
        "sagemaker_mpi_enabled is set by the distribution",
    ),
    ({"role": ""}, "role is empty"),
    ({"tags": [{"a": "1"}, {"Key": "a", "Value": "2"}]}, "tags: 'a' is given twice"),
    ({"tags": [{"shunter/user": "x"}]}, "set by the launcher"),
    (
        {
            "training_repository_credentials_provider_arn": "arn:aws:lambda:us-east-1:1:function:f",
            "training_repository_access_mode": "Vpc",
            **VPC,
        },
        "training_repository_credentials_provider_arn: .* does not match",
    ),
    ({"environment": {f"V{i}": "1" for i in range(101)}}, "102 entries, at most 100 are allowed"),
    ({"distribution": {"horovod": {}}}, "distribution: there is no 'horovod'"),
    ({"distribution": {"mpi": True}}, "mpi must be an object such as"),
    (
        {"distribution": {"torch_distributed": {"enabled": True}, "mpi": {"enabled": True}}},
        "torch_distributed is enabled, so mpi would not be used",
    ),
    ({"distribution": {"smdistributed": {"dataparallel": {}, "modelparallel": {}}}}, "takes one strategy"),
    (
        {"distribution": {"multi_worker_mirrored_strategy": {"enabled": True}, "parameter_server": {}}},
        "cannot be combined with parameter_server",
    ),
    (
        {"distribution": {"mpi": {"enabled": True}}, "instance_type": "ml.trn1.32xlarge"},
        "on which only torch_distributed",
    ),
    (
        {"distribution": {"mpi": {"enabled": True}, "instance_groups": ["a"]}},
        "a, which the job does not have; the job has no instance groups",
    ),
    (
        {
            "distribution": {"mpi": {"enabled": True}},
            "instance_type": None,
            "instance_groups": [GROUP, {**GROUP, "name": "b"}],
        },
        "must name one of a, b",
    ),
    ({"debugger_hook_config": {"hooks": {}}}, "debugger_hook_config: Unknown parameter in DebugHookConfig"),
    ({"debugger_hook_config": {"collection_configs": {"name": "a"}}}, "must be a list"),
    ({"debugger_hook_config": False, "debugger_rules": [{"name": "Overfit"}]}, "saves nothing"),
    ({"debugger_rules": [{"rule_parameters": {}}]}, "Missing required parameter in DebugRuleConfigurations"),
    ({"disable_profiler": True, "profiler_config": {"s3_output_path": "s3://b/p"}}, "turns the profiler off"),
    ({"mlflow_config": {"run_name": "r"}}, "mlflow_config: Missing required parameter in MlflowConfig"),
    ({"instance_preferences": ["ml.m5.large"]}, "instance_type and instance_preferences are both given"),
    (
        {"instance_type": None, "instance_preferences": [{"typ": "x"}]},
        "instance_preferences: Unknown parameter in .*Typ",
    ),
    (
        {
            "instance_type": None,
            "instance_preferences": [{"type": "ml.m5.large", "count": 2}],
            "instance_count": 2,
        },
        "instance_count and instance_preferences are both given",
    ),
    ({"toolkit": False, "environment": {"A": "x" * 513}}, "512"),
]


@pytest.mark.parametrize(("given", "said"), INCONSISTENT, ids=lambda value: str(value)[:60])
def test_what_does_not_go_together_is_refused(given: dict[str, Any], said: str) -> None:
    backends.need("botocore")
    app = AppDef("job", [Role("train", "image:1", entrypoint="python", args=["train.py"])])
    with pytest.raises(ConfigError, match=said):
        check_request(make_job(app, AWSSageMakerOpts(**{**BASE, **given}), code=PlannedCode("k")).job_def)


def test_a_region_without_debugger_refuses_it() -> None:
    app = AppDef("job", [Role("any", "image:1", entrypoint="ls")])
    with pytest.raises(ConfigError, match="no SageMaker Debugger"):
        make_job(app, AWSSageMakerOpts(**BASE, debugger_hook_config=True), region="me-central-1")


def _roles(*counts: int, **fields: Any) -> AppDef:
    return AppDef(
        "job",
        [Role(f"r{i}", "image:1", entrypoint="ls", num_replicas=n, **fields) for i, n in enumerate(counts)],
    )


TOO_MUCH: list[tuple[AppDef, dict[str, Any], str]] = [
    (_roles(1, mounts=parse_mounts(["type=bind", "src=/a", "dst=/b"])), {}, "mounts are not possible"),
    (_roles(1, max_retries=2), {}, "max_retry_attempts"),
    (_roles(4, min_replicas=2), {}, "min_replicas"),
    (_roles(2), {"instance_count": 3}, "instance_count is 3, but the job has 2"),
    (_roles(1, 1), {"instance_count": 3}, "several roles"),
    (_roles(1, 1), {"instance_type": None, "instance_groups": [GROUP]}, "each role is a group"),
    (_roles(3), {"instance_type": None, "instance_groups": [GROUP]}, "3 replicas"),
    (AppDef("j", [Role("a", "i:1", entrypoint="ls"), Role("b", "i:2", entrypoint="ls")]), {}, "one image"),
    (
        AppDef("j", [Role("a", "i", entrypoint="ls"), Role("b c", "i", entrypoint="ls")]),
        {},
        "group of instances",
    ),
    (AppDef("j", [Role("a", "<NONE>", entrypoint="ls")]), {}, "no image"),
    (
        AppDef("j", [Role("a", "i", entrypoint="ls", args=["x" * 60_000])]),
        {},
        "characters, but SageMaker accepts",
    ),
    (
        AppDef(
            "j",
            [Role("a", "i", entrypoint="ls", metadata={"train": {"program": "t.py", "stop_hook": ["x"]}})],
        ),
        {},
        "stop_hook",
    ),
    (
        AppDef(
            "j",
            [
                Role(
                    "a",
                    "i",
                    entrypoint="ls",
                    metadata={"train": {"program": "t.py", "output": {"uri": "s3://a"}}},
                )
            ],
        ),
        {"output_path": "s3://b"},
        "Give one of them",
    ),
]


@pytest.mark.parametrize(("app", "given", "said"), TOO_MUCH, ids=lambda value: str(value)[:40])
def test_what_sagemaker_cannot_do_is_refused(app: AppDef, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_job(app, AWSSageMakerOpts(**{**BASE, **given}), code=PlannedCode("k"))
