"""What the doctor finds, and that the policies that it prints are enough: they are put in place."""

from __future__ import annotations

import fnmatch
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.schedulers.api import Check
from shunter.schedulers.aws.iam import policy
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.permissions import Policies
from shunter.schedulers.aws_sagemaker_scheduler.role_checks import problem_of
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import AWSSageMakerScheduler, create_scheduler
from tests.sagemaker.remote.conftest import Cloud, wait_for
from tests.sagemaker.remote.iam import SIMULATE, Iam
from tests.sagemaker.remote.test_rights import options, ship

USER = "moto"  # whom moto takes everybody for


@pytest.fixture(autouse=True)
def user(iam: Iam) -> Iterator[None]:
    client = iam.client
    client.create_user(UserName=USER)
    yield
    for name in client.list_user_policies(UserName=USER)["PolicyNames"]:
        client.delete_user_policy(UserName=USER, PolicyName=name)
    client.delete_user(UserName=USER)


def found(scheduler: AWSSageMakerScheduler, **cfg: Any) -> dict[str, Check]:
    """Return the checks by name; of several with one name the worst."""
    worst: dict[str, Check] = {}
    for check in scheduler.doctor(cfg):
        if check.name not in worst or check.ok is False:
            worst[check.name] = check
    return worst


def allow_all(iam: Iam, cloud: Cloud, *denied: str) -> None:
    """Let user and role do everything but this."""
    denials = [{"Effect": "Deny", "Action": list(denied), "Resource": "*"}] if denied else []
    for kind, name in (("user", USER), ("role", cloud.role)):
        iam.put(kind, name, {"Action": "*", "Resource": "*"}, *denials)


def policy_of(check: Check) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(check.text.partition("\n")[2])
    return document


def everything(cloud: Cloud) -> dict[str, Any]:
    """Options that take every kind of right."""
    key = "arn:aws:kms:us-east-1:123456789012:key/abc"
    return options(
        cloud,
        checkpoint_s3_uri=f"s3://{cloud.bucket}/checkpoints",
        channels={"training": f"s3://{cloud.bucket}/data?mode=FastFile", "local": "data"},
        output_kms_key=key,
        volume_kms_key=key,
        subnets=["subnet-1"],
        security_group_ids=["sg-1"],
        enable_remote_debug=True,
    )


@pytest.mark.slow
def test_all_is_well(cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler) -> None:
    allow_all(iam, cloud)
    checks = found(scheduler, **options(cloud))
    assert {name: check.ok for name, check in checks.items()} == {
        "credentials": True,
        "region": True,
        "SageMaker": True,
        "role": True,
        "permissions of the caller": True,
        "permissions of the role": True,
        "output bucket": True,
        "log group": True,
        "policy of the caller": None,
        "policy of the role": None,
    }
    assert cloud.objects() == []


@pytest.mark.slow
def test_the_policies_that_are_printed_are_enough(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler
) -> None:
    cfg = everything(cloud)
    before = found(scheduler, **cfg)
    assert before["permissions of the caller"].ok is False
    assert before["permissions of the role"].ok is False
    parties = {"caller": ("user", USER), "role": ("role", cloud.role)}
    for party, (kind, name) in parties.items():
        iam.put(kind, name, *policy_of(before[f"policy of the {party}"])["Statement"])
    after = found(scheduler, **cfg)
    assert [after[f"permissions of the {party}"].ok for party in parties] == [True, True]
    for party, (kind, name) in parties.items():
        statements = policy_of(after[f"policy of the {party}"])["Statement"]
        for sid in ("PassRole", "Upload") if party == "caller" else ("Checkpoints", "EncryptVolumes"):
            iam.put(kind, name, *(each for each in statements if each["Sid"] != sid))
            check = found(scheduler, **cfg)[f"permissions of the {party}"]
            assert check.ok is not True, sid
            assert sid in check.hint
        iam.put(kind, name, *statements)


@pytest.mark.slow
def test_the_callers_policy_holds_every_call_of_a_jobs_life(
    cloud: Cloud,
    iam: Iam,
    scheduler: AWSSageMakerScheduler,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from botocore.client import BaseClient

    cfg = options(
        cloud,
        role=cloud.role,
        max_retry_attempts=1,
        checkpoint_s3_uri=f"s3://{cloud.bucket}/checkpoints",
        output_path=None,
    )
    allow_all(iam, cloud)
    statements = policy_of(found(scheduler, **cfg)["policy of the caller"])["Statement"]
    allowed = {action for statement in statements for action in statement["Action"]}
    made: set[str] = set()
    original = BaseClient._make_api_call

    def recorded(self: Any, operation: str, params: Any) -> Any:
        if self is not iam.client:  # that is how the simulator looks policies up
            made.add(f"{self.meta.service_model.signing_name}:{operation}")
        return original(self, operation, params)

    monkeypatch.setattr(BaseClient, "_make_api_call", recorded)
    info, _ = ship(scheduler, project, cfg)
    app_id = scheduler.schedule(info)
    wait_for(scheduler, app_id)
    list(scheduler.log_iter(app_id, "train", 0))
    scheduler.list()
    scheduler.cancel(app_id)
    scheduler.delete(app_id)
    monkeypatch.undo()
    # operations of S3 have other names as rights; who one is may always be asked
    rights = {"s3:HeadObject": "s3:GetObject", "s3:HeadBucket": "s3:ListBucket"}
    needed = {rights.get(name, name) for name in made} - {"sts:GetCallerIdentity"}
    assert {"sagemaker:CreateTrainingJob", "s3:PutObject", "iam:GetRole", f"iam:{SIMULATE}"} <= needed
    # `list` looks for queues if it may, and does without if it may not
    assert needed - allowed <= {"batch:DescribeJobQueues"}
    assert "iam:PassRole" in allowed


@pytest.mark.slow
def test_the_roles_policy_holds_what_aws_documents() -> None:
    """The table of CreateTrainingJob in the developer guide."""
    opts = AWSSageMakerOpts(
        role="R", output_path="s3://b/r", checkpoint_s3_uri="s3://b/k", subnets=["subnet-1"]
    )
    statements = Policies(opts, "us-east-1", "", "").of_role()
    actions = {action for statement in statements for action in statement["Action"]}
    documented = {
        *("cloudwatch:PutMetricData", "logs:CreateLogStream", "logs:PutLogEvents", "logs:CreateLogGroup"),
        *("logs:DescribeLogStreams", "s3:GetObject", "s3:PutObject", "s3:ListBucket"),
        *("ecr:GetAuthorizationToken", "ecr:BatchCheckLayerAvailability", "ecr:GetDownloadUrlForLayer"),
        *("ecr:BatchGetImage", "ec2:CreateNetworkInterface", "ec2:CreateNetworkInterfacePermission"),
        *("ec2:DeleteNetworkInterface", "ec2:DeleteNetworkInterfacePermission"),
        *("ec2:DescribeNetworkInterfaces", "ec2:DescribeVpcs", "ec2:DescribeDhcpOptions"),
        *("ec2:DescribeSubnets", "ec2:DescribeSecurityGroups"),
    }
    assert actions == documented


@pytest.mark.slow
def test_the_policies_of_the_documentation_are_those_that_are_printed() -> None:
    page = (Path(__file__).parents[3] / "docs/schedulers/aws_sagemaker.md").read_text()
    shown = [json.loads(block.partition("```")[0]) for block in page.split("```json\n")[1:]]
    opts = AWSSageMakerOpts(
        role="Training",
        output_path="s3://BUCKET/results",
        checkpoint_s3_uri="s3://BUCKET/checkpoints",
        channels={"training": "s3://BUCKET/data"},
    )
    role = "arn:aws:iam::ACCOUNT:role/Training"
    policies = Policies(opts, "REGION", "arn:aws:iam::ACCOUNT:user/me", role)
    assert shown[:2] == [policy(policies.of_caller()), policy(policies.of_role())]
    assert problem_of({"Arn": role, "AssumeRolePolicyDocument": shown[2]}, role, tag_chaining=True) is None


@pytest.mark.slow
def test_without_a_region_or_credentials_there_is_nothing_to_see(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with closing(create_scheduler("test")) as scheduler:
        (check,) = scheduler.doctor({})
        assert (check.name, check.ok) == ("region", False)
        assert "-cfg region=" in check.hint
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with closing(create_scheduler("test")) as scheduler:
        checks = scheduler.doctor({"region": "us-east-1"})
        assert [(check.name, check.ok) for check in checks] == [("credentials", False), ("region", True)]
        assert "AWS_PROFILE" in checks[0].hint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"role": "NotThere"}, "there is no IAM role NotThere"),
        ({"role": "arn:aws:iam::123456789012:role/NotThere"}, "there is no IAM role arn:aws:iam"),
        ({"role": ""}, "not given"),
        ({"enable_session_tag_chaining": True}, "does not allow sts:TagSession"),
    ],
)
def test_roles(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler, given: dict[str, Any], said: str
) -> None:
    allow_all(iam, cloud)
    check = found(scheduler, **{**options(cloud), **given})["role"]
    assert check.ok is (None if given.get("role") == "" else False)
    assert said in check.text
    assert check.hint or check.ok is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "party"),
    [
        ("sagemaker:CreateTrainingJob", "caller"),
        ("sagemaker:Search", "caller"),
        ("sagemaker:ListTags", "caller"),
        ("iam:PassRole", "caller"),
        ("logs:GetLogEvents", "caller"),
        ("logs:FilterLogEvents", "caller"),
        ("s3:PutObject", "caller"),
        ("s3:GetObject", "role"),
        ("s3:ListBucket", "role"),
        ("logs:PutLogEvents", "role"),
        ("ecr:GetAuthorizationToken", "role"),
        ("kms:GenerateDataKey", "role"),
        ("kms:CreateGrant", "role"),
        ("ec2:CreateNetworkInterface", "role"),
        ("ssmmessages:OpenDataChannel", "role"),
    ],
)
def test_each_right_that_is_denied_is_reported(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler, action: str, party: str
) -> None:
    allow_all(iam, cloud, action)
    check = found(scheduler, **everything(cloud))[f"permissions of the {party}"]
    assert check.ok is False
    assert f"may not {action} on " in check.text
    assert check.text.endswith(": a statement denies it")
    assert check.hint.startswith("Narrow the statement that denies it. Its policy needs: {")


@pytest.mark.slow
@pytest.mark.parametrize("forbidden", [{SIMULATE}, {SIMULATE, "GetRole"}])
def test_what_may_not_be_looked_at_is_no_failure(
    cloud: Cloud,
    iam: Iam,
    scheduler: AWSSageMakerScheduler,
    forbidden: set[str],
) -> None:
    iam.forbidden = forbidden
    checks = found(scheduler, **options(cloud))
    for name in ("permissions of the caller", "permissions of the role"):
        assert checks[name].ok is None
        assert (
            f"cannot be checked: arn:aws:iam::123456789012:user/me lacks the permission iam:{SIMULATE}"
            in (checks[name].text)
        )
    assert checks["role"].ok is (None if "GetRole" in forbidden else True)
    assert not [check for check in checks.values() if check.ok is False]


@pytest.mark.slow
def test_buckets(cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler) -> None:
    allow_all(iam, cloud)
    far = f"far-{cloud.bucket}"
    cloud.client("s3").create_bucket(
        Bucket=far, CreateBucketConfiguration={"LocationConstraint": "eu-west-1"}
    )
    checks = found(
        scheduler,
        **options(cloud, output_path=None),
        checkpoint_s3_uri="s3://not-there-at-all/c",
        code_location=f"s3://{cloud.bucket}/code",
        channels={"training": f"s3://{far}/data"},
    )
    assert checks["checkpoint bucket"].text == "there is no bucket not-there-at-all"
    assert checks["checkpoint bucket"].hint == "aws s3 mb s3://not-there-at-all --region us-east-1"
    assert checks["code bucket"].ok is True
    assert checks["data bucket"].ok is False
    assert checks["data bucket"].text == f"the bucket {far} is in eu-west-1, jobs in us-east-1"
    assert "-cfg region=eu-west-1" in checks["data bucket"].hint
    elsewhere = options(cloud, output_path=None, region="ca-west-1")  # where no other test makes it
    check = found(scheduler, **elsewhere)["default bucket"]
    assert (check.ok, check.text) == (
        None,
        "sagemaker-ca-west-1-123456789012 does not exist yet: the first job makes it",
    )
    cloud.client("s3").create_bucket(
        Bucket="sagemaker-ca-west-1-123456789012",
        CreateBucketConfiguration={"LocationConstraint": "ca-west-1"},
    )
    assert found(scheduler, **elsewhere)["default bucket"].ok is True
    cloud.client("s3").delete_bucket(Bucket="sagemaker-ca-west-1-123456789012")


@pytest.mark.slow
def test_from_the_command_line(cloud: Cloud, iam: Iam) -> None:
    allow_all(iam, cloud)
    words = [sys.executable, "-m", "shunter", "doctor", "-s", "aws_sagemaker", "-cfg"]
    good = subprocess.run(
        [*words, f"role={cloud.role},output_path=s3://{cloud.bucket}/x"],
        capture_output=True,
        text=True,
        check=False,
        timeout=55,
    )
    assert good.returncode == 0, good.stdout + good.stderr
    assert fnmatch.filter(good.stdout.splitlines(), f"ok   role: {cloud.role_arn}")
    assert "jobs should run" in good.stderr
    allow_all(iam, cloud, "iam:PassRole")
    bad = subprocess.run(
        [*words, f"role={cloud.role}"], capture_output=True, text=True, check=False, timeout=55
    )
    assert bad.returncode == 4, bad.stdout + bad.stderr
    refused = "FAIL permissions of the caller: arn:aws:sts::123456789012:user/moto may not iam:PassRole"
    assert refused in bad.stdout
