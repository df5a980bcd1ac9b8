"""Members of the request that SageMaker had not always: on a real job, and with a boto3 that lacks them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from shunter.components.train import script
from shunter.errors import ConfigError
from shunter.schedulers.aws import service_model
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.request import check_requests, make_job
from shunter.schedulers.aws_sagemaker_scheduler.scheduler import AWSSageMakerScheduler
from shunter.specs.app import AppDef, Role
from shunter.specs.status import AppState
from tests import backends
from tests.sagemaker.remote.conftest import Cloud, wait_for
from tests.sagemaker.remote.test_jobs import model, options, submit

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


@pytest.mark.slow
def test_what_an_older_boto3_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    backends.need("botocore")
    models = {
        "sagemaker": _without("sagemaker", ("CreateTrainingJobRequest", "MlflowConfig")),
        "batch": _without("batch", ("operations", "SubmitServiceJob")),
    }
    monkeypatch.setattr(service_model, "_model", models.__getitem__)
    given: dict[str, Any] = {"mlflow_config": {"resource_arn": MLFLOW}, "batch_queue": "q", "max_pending": 10}
    with pytest.raises(ConfigError) as caught:
        check_requests(make_job(ANY, AWSSageMakerOpts(**BASE, **given)))
    for said in (
        "boto3 does not know batch:SubmitServiceJob; a newer boto3 may know it",
        'mlflow_config: Unknown parameter in input: "MlflowConfig"',
        "max_pending: Invalid value for parameter",  # the rest is checked all the same
    ):
        assert said in caught.value.message
