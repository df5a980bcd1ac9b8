"""Members of the request that SageMaker had not always: on a real job, and with a boto3 that lacks them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from shunter.components.train import script
from shunter.errors import ConfigError
from shunter.progress import Silent
from shunter.schedulers.aws import service_model
from shunter.schedulers.aws.aws_errors import AwsError
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.request import check_requests, make_job
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import AWSSageMakerScheduler
from shunter.schedulers.aws_sagemaker_scheduler.submission import extend_plan
from shunter.specs.app import AppDef, Role
from shunter.specs.status import AppState
from tests import backends
from tests.sagemaker.remote.conftest import Cloud, wait_for
from tests.sagemaker.remote.test_jobs import model, options, submit

PLAN = f"arn:aws:sagemaker:us-east-1:123456789012:training-plan/{'p' * 20}"
MLFLOW = "arn:aws:sagemaker:us-east-1:123456789012:mlflow-tracking-server/one"
PACKAGES = "arn:aws:sagemaker:us-east-1:123456789012:model-package-group/models"


@pytest.mark.slow
def test_a_job_keeps_what_this_machine_does_not_act_upon(
    cloud: Cloud, scheduler: AWSSageMakerScheduler, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    cfg = options(
        cloud,
        instance_type=None,
        instance_preferences="ml.p5.48xlarge,ml.p4d.24xlarge",
        instance_count=2,
        debugger_hook_config={"hook_parameters": {"save_interval": 100}},
        debugger_rules=[{"name": "Overfit"}],
        profiler_config={"profiling_interval_in_milliseconds": 1000},
        profiler_rules=[{"name": "ProfilerReport"}],
        tensorboard_output_config="s3_output_path=s3://board/x",
        experiment_config="experiment_name=e,trial_name=t",
        mlflow_config={"resource_arn": MLFLOW, "experiment_name": "e", "run_name": "r"},
        model_package_config={"model_package_group_arn": PACKAGES},
    )
    app_id = submit(scheduler, script(script="train.py", image="i:1"), cfg)
    response = wait_for(scheduler, app_id)
    assert response.state == AppState.SUCCEEDED, response
    assert [len(role.replicas) for role in response.roles_statuses] == [2]
    assert response.metadata["selected_instance_type"] == "ml.p5.48xlarge"
    assert response.metadata["experiment"] == "e/t"
    assert response.metadata["mlflow"] == "e/r"
    assert response.metadata["model_package"] == PACKAGES
    assert response.metadata["tensorboard"] == "s3://board/x"
    found = cloud.client("sagemaker").describe_training_job(TrainingJobName=app_id)
    assert found["MlflowConfig"]["MlflowResourceArn"] == MLFLOW
    assert found["ResourceConfig"]["SelectedInstanceCount"] == 2
    assert found["DebugHookConfig"]["HookParameters"] == {"save_interval": "100"}
    assert [rule["RuleConfigurationName"] for rule in found["DebugRuleConfigurations"]] == ["Overfit"]


@pytest.mark.slow
@pytest.mark.parametrize("toolkit", [True, False])
def test_shell_scripts_are_started_as_such(
    cloud: Cloud,
    scheduler: AWSSageMakerScheduler,
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    toolkit: bool,
) -> None:
    monkeypatch.chdir(project)
    text = """printf '{"argv": "%s", "sum": "%s"}' "$*" "$SM_HP_LR" > "$SM_MODEL_DIR/model.json"\n"""
    (project / "run.sh").write_text(text)
    app = script("--lr", "0.1", script="run.sh", image="i:1", output=f"s3://{cloud.bucket}/results")
    response = wait_for(scheduler, submit(scheduler, app, options(cloud, toolkit=toolkit)))
    assert response.state == AppState.SUCCEEDED, response
    assert model(cloud, response)["argv"] == "--lr 0.1"


# ---- an older boto3

ANY = AppDef("job", [Role("any", "image:1", entrypoint="ls")])
BASE: dict[str, Any] = {"role": "arn:aws:iam::123456789012:role/R", "instance_type": "ml.m5.large"}


def _without(service: str, *removed: tuple[str, str]) -> Any:
    """Return the service's model without members of shapes, and without operations."""
    from botocore.loaders import Loader
    from botocore.model import ServiceModel

    document = copy.deepcopy(Loader().load_service_model(service, "service-2"))
    for shape, member in removed:
        if shape == "operations":
            del document["operations"][member]
        else:
            del document["shapes"][shape]["members"][member]
    return ServiceModel(document, service)


@pytest.fixture
def old_boto3(monkeypatch: pytest.MonkeyPatch) -> None:
    backends.need("botocore")
    request = "CreateTrainingJobRequest"
    models = {
        "sagemaker": _without(
            "sagemaker",
            ("ResourceConfig", "InstancePreferences"),
            ("ResourceConfig", "InstancePlacementConfig"),
            (request, "MlflowConfig"),
            (request, "ModelPackageConfig"),
            ("operations", "ExtendTrainingPlan"),
        ),
        "batch": _without("batch", ("SubmitServiceJobRequest", "quotaShareName")),
    }
    monkeypatch.setattr(service_model, "_model", models.__getitem__)
    monkeypatch.setattr("botocore.__version__", "1.35.80")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"mlflow_config": {"resource_arn": MLFLOW}},
            "mlflow_config needs boto3 1.42.2 or newer, and 1.35.80",
        ),
        (
            {"model_package_config": {"ModelPackageGroupArn": PACKAGES}},
            "model_package_config needs boto3 1.42.2",
        ),
        (
            {"instance_type": None, "instance_preferences": ["ml.m5.large"]},
            "instance_preferences needs boto3 1.43.90",
        ),
        (
            {"instance_placement_config": {"EnableMultipleJobs": True}},
            "instance_placement_config needs boto3 1.40.6",
        ),
        (
            {"training_plan": PLAN, "training_plan_extension": "tpeo-1"},
            "training_plan_extension needs boto3 1.42.66",
        ),
        ({"batch_queue": "q", "batch_quota_share": "s"}, "batch_quota_share needs boto3 1.42.72"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_an_older_boto3_lacks_is_named(old_boto3: None, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        check_requests(make_job(ANY, AWSSageMakerOpts(**{**BASE, **given, "max_pending": 10})))
    assert "MaxPendingTimeInSeconds" in caught.value.message  # the rest is checked all the same
    assert "Unknown parameter" not in caught.value.message


# ---- training plans


class Plans(AwsSession):
    """SageMaker's answers about one plan; an answer may get lost."""

    def __init__(self, *bought: str, is_lost: bool = False, is_refused: bool = False) -> None:
        self.bought = list(bought)
        self.is_lost = is_lost
        self.is_refused = is_refused
        self.calls: list[str] = []

    def call(self, service: str, operation: str, *, repeats: bool = True, **params: Any) -> dict[str, Any]:
        self.calls.append(operation)
        if operation == "ExtendTrainingPlan":
            assert not repeats
            if not self.is_refused:
                self.bought.append(params["TrainingPlanExtensionOfferingId"])
            if self.is_lost or self.is_refused:
                raise AwsError("no answer", lost_answer=self.is_lost)
            return {"TrainingPlanExtensions": []}
        assert params == {"TrainingPlanArn": PLAN, "MaxResults": 100}
        return {"TrainingPlanExtensions": [{"TrainingPlanExtensionOfferingId": each} for each in self.bought]}


@pytest.mark.parametrize("plans", [Plans(), Plans("other"), Plans("tpeo-1"), Plans(is_lost=True)])
def test_an_extension_is_bought_once(plans: Any) -> None:
    for _ in range(2):
        extend_plan(plans, PLAN, "tpeo-1", Silent())
    assert plans.bought.count("tpeo-1") == 1


def test_an_extension_that_is_refused_stops_the_job() -> None:
    with pytest.raises(AwsError):
        extend_plan(Plans(is_refused=True), PLAN, "tpeo-1", Silent())


def test_an_extension_is_announced() -> None:
    opts = AWSSageMakerOpts(**BASE, training_plan=PLAN, training_plan_extension="tpeo-1")
    before = json.loads(str(make_job(ANY, opts)))["before"]
    assert any("buy the extension tpeo-1" in step for step in before)
