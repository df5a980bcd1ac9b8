"""Rights that a job would lack: said before anything is uploaded, by few calls, where they matter."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.cli.shown_plan import shown_request
from shunter.components.train import script
from shunter.errors import ConfigError
from shunter.progress import Silent
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import AWSSageMakerScheduler
from shunter.specs.status import AppState
from shunter.specs.workspace import Workspace
from tests.sagemaker.remote.conftest import Cloud, wait_for
from tests.sagemaker.remote.iam import SIMULATE, Iam

pytestmark = pytest.mark.usefixtures("iam")

READ, WRITE, LIST = "s3:GetObject", "s3:PutObject", "s3:ListBucket"


class Told(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def done(self, text: str) -> None:
        self.texts.append(text)

    @property
    def warnings(self) -> list[str]:
        return [text for text in self.texts if text.startswith("warning: ")]


def checkpoints(cloud: Cloud) -> list[dict[str, Any]]:
    bucket = f"arn:aws:s3:::{cloud.bucket}"
    prefix = {"StringLike": {"s3:prefix": "checkpoints/*"}}
    return [
        {"Action": [READ, WRITE], "Resource": f"{bucket}/checkpoints/*"},
        {"Action": LIST, "Resource": bucket, "Condition": prefix},
    ]


def options(cloud: Cloud, **given: Any) -> dict[str, Any]:
    return {
        "role": cloud.role_arn,
        "instance_type": "ml.m5.large",
        "output_path": f"s3://{cloud.bucket}/results",
        "debugger_hook_config": False,
        **given,
    }


def again(cloud: Cloud, **given: Any) -> dict[str, Any]:
    """Options of a job that is restarted and goes on from checkpoints."""
    uri = f"s3://{cloud.bucket}/checkpoints"
    return options(cloud, max_retry_attempts=2, checkpoint_s3_uri=uri, **given)


def ship(scheduler: AWSSageMakerScheduler, project: Path, cfg: dict[str, Any]) -> tuple[Any, Told]:
    told = Told()
    app = script(script="train.py", image="i:1")
    info = scheduler.submit_dryrun(app, cfg, Workspace({str(project): ""}))
    scheduler.ship(info, told)
    return info, told


def refusal(
    scheduler: AWSSageMakerScheduler, project: Path, cloud: Cloud, cfg: dict[str, Any]
) -> ConfigError:
    """Return why a job is refused. Nothing has been uploaded for it."""
    with pytest.raises(ConfigError) as refused:
        ship(scheduler, project, cfg)
    assert cloud.objects() == []
    return refused.value


# ---- who may be the role


@pytest.mark.slow
def test_a_role_given_by_name_that_sagemaker_may_not_assume_is_refused(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler, project: Path
) -> None:
    iam.trust(cloud.role, "sts:AssumeRole", service="ec2.amazonaws.com")
    error = refusal(scheduler, project, cloud, options(cloud, role=cloud.role))
    assert error.message == (
        f"sagemaker.amazonaws.com may not use the role {cloud.role_arn}: its trust policy does not allow "
        "sts:AssumeRole"
    )
    statement = json.loads(error.hint.partition(": ")[2])
    assert statement["Principal"] == {"Service": "sagemaker.amazonaws.com"}
    assert iam.calls == ["GetRole"]


@pytest.mark.slow
def test_the_usual_submission_asks_iam_for_nothing_more(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler, project: Path
) -> None:
    """By ARN nothing at all; by name the one call that there always was."""
    ship(scheduler, project, options(cloud, checkpoint_s3_uri=f"s3://{cloud.bucket}/c"))
    assert iam.calls == []
    ship(scheduler, project, options(cloud, role=cloud.role))
    assert iam.calls == ["GetRole"]


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"max_retry_attempts": 3}, {"enable_session_tag_chaining": True}])
def test_a_role_given_by_arn_is_looked_at_where_the_job_depends_on_it(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler, project: Path, given: dict[str, Any]
) -> None:
    iam.trust(cloud.role, "sts:AssumeRole", "sts:TagSession", service="ec2.amazonaws.com")
    assert "sts:AssumeRole" in refusal(scheduler, project, cloud, options(cloud, **given)).message
    iam.trust(cloud.role, "sts:AssumeRole", "sts:TagSession")
    _, told = ship(scheduler, project, options(cloud, **given))
    assert told.warnings == []
    assert iam.calls == ["GetRole"] * 2


def test_session_tags_need_a_separate_right(
    cloud: Cloud, scheduler: AWSSageMakerScheduler, project: Path
) -> None:
    chaining = options(cloud, enable_session_tag_chaining=True)
    message = refusal(scheduler, project, cloud, chaining).message
    assert message.endswith("does not allow sts:TagSession, which enable_session_tag_chaining needs")
    ship(scheduler, project, options(cloud, role=cloud.role))  # others do without


@pytest.mark.slow
def test_who_may_not_look_roles_up_is_warned_and_goes_on(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler, project: Path
) -> None:
    iam.forbidden = {"GetRole", SIMULATE}
    iam.put("role", cloud.role, *checkpoints(cloud))
    info, told = ship(scheduler, project, again(cloud))
    trusted, rights = told.warnings
    assert trusted.startswith(f"warning: the trust policy of {cloud.role_arn} was not checked: ")
    assert "iam:GetRole" in trusted
    assert rights.startswith(
        f"warning: the permissions of {cloud.role_arn} to s3://{cloud.bucket}/checkpoints"
    )
    assert f"iam:{SIMULATE}" in rights
    assert any(key.endswith("sourcedir.tar.gz") for key in cloud.objects())
    assert info.request.needs.steps() == []
    assert iam.calls == ["GetRole", SIMULATE]  # once each, without a second attempt


def test_iam_that_does_not_answer_holds_nobody_up(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a VPC from which IAM is not reached: a role's ARN was enough before."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_IAM", "http://127.0.0.1:9")
    _, told = ship(scheduler, project, again(cloud))
    assert len(told.warnings) == 2
    assert all("AWS cannot be reached" in text for text in told.warnings)


@pytest.mark.slow
def test_a_role_that_is_not_there_or_another_is_refused(
    cloud: Cloud, scheduler: AWSSageMakerScheduler, project: Path
) -> None:
    missing = "arn:aws:iam::123456789012:role/NotThere"
    error = refusal(scheduler, project, cloud, options(cloud, role=missing, max_retry_attempts=1))
    assert error.message == f"there is no IAM role {missing}"
    other = cloud.role_arn.replace("/service-role/", "/")
    error = refusal(scheduler, project, cloud, options(cloud, role=other, max_retry_attempts=1))
    assert error.message == f"the role of this name is {cloud.role_arn}, not {other}"


# ---- checkpoints of a job that is restarted


@pytest.mark.slow
@pytest.mark.parametrize("spot", [False, True])
def test_a_role_that_may_have_its_checkpoints_is_taken(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler, project: Path, spot: bool
) -> None:
    iam.put("role", cloud.role, *checkpoints(cloud))
    cfg = again(cloud)
    if spot:
        cfg |= {"use_spot_instances": True, "max_wait": 90_000}
        del cfg["max_retry_attempts"]
    info, told = ship(scheduler, project, cfg)
    assert told.warnings == []
    assert iam.calls == ([SIMULATE] if spot else ["GetRole", SIMULATE])
    app_id = scheduler.schedule(info)
    assert wait_for(scheduler, app_id).state == AppState.SUCCEEDED


@pytest.mark.slow
@pytest.mark.parametrize("lacking", [READ, WRITE, LIST])
def test_each_right_that_is_lacking_is_named_with_the_statement_to_add(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler, project: Path, lacking: str
) -> None:
    bucket = f"arn:aws:s3:::{cloud.bucket}"
    actions = [action for action in (READ, WRITE, LIST) if action != lacking]
    iam.put("role", cloud.role, {"Action": actions, "Resource": [bucket, f"{bucket}/*"]})
    error = refusal(scheduler, project, cloud, again(cloud))
    assert error.message == (
        f"the role {cloud.role_arn} may not {lacking} on s3://{cloud.bucket}/checkpoints (no statement "
        "allows it), so a job that is restarted (max_retry_attempts, use_spot_instances) could not "
        "continue from its checkpoints"
    )
    statements = json.loads(error.hint.partition(": ")[2])
    assert statements == [
        {
            "Sid": "Checkpoints",
            "Effect": "Allow",
            "Action": [READ, WRITE],
            "Resource": [f"{bucket}/checkpoints/*"],
        },
        {"Sid": "ListCheckpoints", "Effect": "Allow", "Action": [LIST], "Resource": [bucket]},
    ]
    iam.put("role", cloud.role, *statements)  # what it says helps
    _, told = ship(scheduler, project, again(cloud))
    assert told.warnings == []


@pytest.mark.slow
def test_what_a_statement_denies_no_bucket_policy_allows(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler, project: Path
) -> None:
    denial = {"Effect": "Deny", "Action": WRITE, "Resource": "*"}
    iam.put("role", cloud.role, {"Action": "s3:*", "Resource": "*"}, denial)
    bucket_policy(cloud)
    error = refusal(scheduler, project, cloud, again(cloud))
    assert "(a statement denies it)" in error.message
    assert error.hint.startswith("Narrow the statement that denies it. ")


def bucket_policy(cloud: Cloud) -> None:
    statement = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": "s3:*",
        "Resource": f"arn:aws:s3:::{cloud.bucket}/*",
    }
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    cloud.client("s3").put_bucket_policy(Bucket=cloud.bucket, Policy=document)


@pytest.mark.slow
def test_a_bucket_with_a_policy_is_left_to_its_policy(
    cloud: Cloud, scheduler: AWSSageMakerScheduler, project: Path
) -> None:
    bucket_policy(cloud)
    _, told = ship(scheduler, project, again(cloud))
    (warning,) = told.warnings
    assert warning == (
        f"warning: the policies of {cloud.role_arn} do not allow {READ}, {WRITE}, {LIST} on "
        f"s3://{cloud.bucket}/checkpoints; the policy of the bucket {cloud.bucket} may"
    )


@pytest.mark.slow
def test_what_only_a_real_request_can_tell_is_left_to_it(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler, project: Path
) -> None:
    endpoint = {"StringEquals": {"aws:SourceVpce": "vpce-1"}}
    iam.put("role", cloud.role, {"Action": "s3:*", "Resource": "*", "Condition": endpoint})
    _, told = ship(scheduler, project, again(cloud))
    assert len(told.warnings) == 1
    assert "whether they do depends on aws:SourceVpce" in told.warnings[0]


# ---- without any call


def test_a_dry_run_shows_what_would_be_looked_up_and_asks_nothing(
    cloud: Cloud, iam: Iam, scheduler: AWSSageMakerScheduler, project: Path
) -> None:
    app = script(script="train.py", image="i:1")
    workspace = Workspace({str(project): ""})
    info = scheduler.submit_dryrun(app, again(cloud), workspace)
    shown = shown_request(info)["before"]  # as the command line prints it
    assert shown == json.loads(str(info.request))["before"]
    assert shown[0] == "look up whether SageMaker may assume the role, if that is allowed"
    assert shown[1] == (
        f"look up whether the role may read and write s3://{cloud.bucket}/checkpoints, for when the job is "
        "restarted, if that is allowed"
    )
    info = scheduler.submit_dryrun(app, options(cloud, role=cloud.role), workspace)
    shown = json.loads(str(info.request))["before"]
    assert shown[0] == f"look up the ARN of the role {cloud.role}, and whether SageMaker may assume it"
    info = scheduler.submit_dryrun(app, options(cloud), workspace)
    assert not any("role" in step for step in json.loads(str(info.request))["before"])
    assert iam.calls == []


def test_on_this_machine_there_is_nobody_to_ask(project: Path, iam: Iam, cloud: Cloud) -> None:
    from shunter.schedulers.sagemaker_local_scheduler.scheduler import create_scheduler as create_local

    with closing(create_local("test")) as local:
        app = script(script="train.py", image="i:1")
        info = local.submit_dryrun(app, again(cloud), Workspace({str(project): ""}))
        assert [step.split()[0] for step in info.request.needs.steps()] == ["upload"]
