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
    from sagemaker.debugger import DebuggerHookConfig
    from sagemaker.estimator import Estimator
    from sagemaker.inputs import FileSystemInput, TrainingInput
    from sagemaker.instance_group import InstanceGroup
    from sagemaker.pytorch import PyTorch
    from sagemaker.session import Session
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
        if "instance_groups" in result:
            result["instance_groups"] = [InstanceGroup(*group) for group in result["instance_groups"]]
        if result.get("debugger_hook_config") is True:
            result["debugger_hook_config"] = DebuggerHookConfig(s3_output_path=None)
        return result

    def channel(spec: dict) -> object:
        spec = dict(spec)
        if "file_system_id" in spec:
            return FileSystemInput(**spec)
        return TrainingInput(spec.pop("s3_data"), **spec)

    answers = []
    for case in json.load(sys.stdin):
        made = session(case.get("region", "us-east-1"))
        kind = PyTorch if case.get("framework") else Estimator
        try:
            estimator = kind(sagemaker_session=made, **given(case["kwargs"]))
            inputs = {name: channel(spec) for name, spec in (case.get("inputs") or {}).items()}
            estimator.fit(inputs or None, wait=False)
            answers.append(made.sagemaker_client.create_training_job.call_args.kwargs)
        except Exception as error:
            answers.append({"error": f"{type(error).__name__}: {error}"})
    sys.stdout.write("\n@@@" + json.dumps(answers))


if __name__ == "__main__":
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        main()
