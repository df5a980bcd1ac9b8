"""Run by a Python that has the SageMaker SDK (v2): the requests that its Estimator makes, without a call.

Reads a JSON list of ``{"kwargs", "inputs", "region"}`` and writes a JSON list of requests, or ``{"error"}``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from unittest import mock

ACCOUNT = "123456789012"


def main() -> None:
    from sagemaker.debugger import (
        CollectionConfig,
        DebuggerHookConfig,
        ProfilerConfig,
        ProfilerRule,
        Rule,
        TensorBoardOutputConfig,
    )
    from sagemaker.estimator import Estimator
    from sagemaker.inputs import FileSystemInput, TrainingInput
    from sagemaker.instance_group import InstanceGroup
    from sagemaker.pytorch import PyTorch, TrainingCompilerConfig
    from sagemaker.session import Session
    from sagemaker.tensorflow import TensorFlow
    from sagemaker.workflow import is_pipeline_variable  # noqa: F401 - imports what the stub needs

    def session(region: str) -> Session:
        boto = mock.MagicMock(name="boto")
        boto.region_name = region
        boto.resource.return_value.Role.side_effect = lambda name: mock.Mock(
            arn=f"arn:aws:iam::{ACCOUNT}:role/{name}"
        )
        made = Session(boto_session=boto, sagemaker_client=mock.MagicMock(), default_bucket=None)
        made._default_bucket = f"sagemaker-{region}-{ACCOUNT}"
        made.sagemaker_config = {}
        made.sagemaker_client.create_training_job.side_effect = None
        return made

    def given(kwargs: dict) -> dict:
        result = dict(kwargs)
        made_rules = rules(result.pop("debugger_rules", None), Rule)
        made_rules += rules(result.pop("profiler_rules", None), ProfilerRule)
        if made_rules:
            result["rules"] = made_rules
        if isinstance(result.get("debugger_hook_config"), dict):
            config = dict(result["debugger_hook_config"])
            collections = config.pop("collection_configs", [])
            config["collection_configs"] = [CollectionConfig(**each) for each in collections]
            result["debugger_hook_config"] = DebuggerHookConfig(**config)
        for name, kind in (
            ("profiler_config", ProfilerConfig),
            ("tensorboard_output_config", TensorBoardOutputConfig),
        ):
            if name in result:
                result[name] = kind(**result[name])
        if "instance_groups" in result:
            groups = [InstanceGroup(*group) for group in result["instance_groups"]]
            result["instance_groups"] = groups
            distribution = dict(result.get("distribution", {}))
            if "instance_groups" in distribution:
                names = distribution["instance_groups"]
                chosen = [group for group in groups if group.instance_group_name in names]
                result["distribution"] = {**distribution, "instance_groups": chosen}
        if result.get("debugger_hook_config") is True:
            result["debugger_hook_config"] = DebuggerHookConfig(s3_output_path=None)
        return result

    def rules(given: list | None, kind: type) -> list:
        made = []
        for rule in given or []:
            parameters = {"rule_to_invoke": rule["name"], **rule.get("rule_parameters", {})}
            rest = {key: rule.get(key) for key in ("instance_type", "volume_size_in_gb")}
            more: dict = {"collections_to_save": []} if kind is Rule else {}
            made.append(
                kind(
                    name=rule["name"],
                    image_uri=rule.get("image_uri", "DEFAULT_RULE_EVALUATOR_IMAGE"),
                    container_local_output_path=None,
                    s3_output_path=None,
                    rule_parameters=parameters,
                    **rest,
                    **more,
                )
            )
        return made

    def channel(spec: dict) -> object:
        spec = dict(spec)
        if "file_system_id" in spec:
            return FileSystemInput(**spec)
        return TrainingInput(spec.pop("s3_data"), **spec)

    answers = []
    for case in json.load(sys.stdin):
        made = session(case.get("region", "us-east-1"))
        name, _, compiler = case.get("framework", "").partition(" with ")
        kind = {"PyTorch": PyTorch, "TensorFlow": TensorFlow}.get(name, Estimator)
        try:
            kwargs = given(case["kwargs"])
            if compiler:
                kwargs["compiler_config"] = TrainingCompilerConfig()
                for key in [key for key in kwargs["hyperparameters"] if "compiler" in key]:
                    del kwargs["hyperparameters"][key]
            experiment = kwargs.pop("experiment_config", None)
            estimator = kind(sagemaker_session=made, **kwargs)
            inputs = {name: channel(spec) for name, spec in (case.get("inputs") or {}).items()}
            estimator.fit(inputs or None, wait=False, experiment_config=experiment)
            answers.append(made.sagemaker_client.create_training_job.call_args.kwargs)
        except Exception as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
    sys.stdout.write("\n@@@" + json.dumps(answers))


if __name__ == "__main__":
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        main()
