"""A training job that can be submitted: the request, and what comes before it.

What only AWS or a disk can tell stands in the request by a name of its own until then; `settle` puts in what
it has come to be.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.schedulers.aws.sagemaker.channels import Upload


@dataclass
class Needs:
    """What has to be done before a request can be sent.

    Attributes:
        role_name: name of the role whose ARN is to be found; "" where the ARN was given.
        role_check: whether the role is to be looked at, though its ARN was given.
        checkpoint_check: where the checkpoints are, if the role's rights to them are to be looked at.
        default_bucket: whether something goes to the account's own bucket, made if it is missing.
        code_uri: where the code is to be uploaded, a "directory" of S3; "" if there is none to upload.
        uploads: paths of this machine that are to be uploaded.
        extension: id of the offering that the job's training plan is to be extended by; "" for none.
    """

    role_name: str = ""
    role_check: bool = False
    checkpoint_check: str = ""
    default_bucket: bool = False
    code_uri: str = ""
    uploads: list[Upload] = field(default_factory=list)
    extension: str = ""

    def steps(self) -> list[str]:
        """Return in words what will be done."""
        steps = []
        if self.role_name:
            steps.append(f"look up the ARN of the role {self.role_name}, and whether SageMaker may assume it")
        if self.role_check:
            steps.append("look up whether SageMaker may assume the role, if that is allowed")
        if self.checkpoint_check:
            steps.append(
                f"look up whether the role may read and write {self.checkpoint_check}, for when the job is "
                "started again, if that is allowed"
            )
        if self.default_bucket:
            steps.append("make the account's own bucket, unless it is there")
        if self.code_uri:
            steps.append(f"upload the code to {self.code_uri}, unless it is there")
        steps += [f"upload {upload.path}, unless it is there" for upload in self.uploads]
        if self.extension:
            steps.append(
                f"buy the extension {self.extension} of the training plan, which is paid at once, unless the "
                "plan has it"
            )
        return steps


@dataclass
class AWSSageMakerJob:
    """A training job that can be submitted.

    Attributes:
        job_name: its name on SageMaker, which is the job's id.
        job_def: the CreateTrainingJob request.
        images_to_push: images with the workspace, where they are made: name -> repository and tag.
        needs: what has to be done before the request can be sent.
        runs: what each role runs, for people: the request may have it in pieces.
        submission: the SubmitServiceJob request of a job that goes through a Batch queue, without its
            payload, which is the CreateTrainingJob request; empty for others.
    """

    job_name: str
    job_def: dict[str, Any]
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)
    runs: dict[str, list[str]] = field(default_factory=dict)
    submission: dict[str, Any] = field(default_factory=dict)

    @property
    def app_id(self) -> str:
        """The job's id: its name, and before it the queue if it goes through one."""
        queue = str(self.submission.get("jobQueue", "")).rpartition("/")[2]
        return f"{queue}:{self.job_name}" if queue else self.job_name

    def shown(self) -> dict[str, Any]:
        """Return the request as JSON values, without secrets, with what comes before it and what will run."""
        from trainyard.redaction import Redactor
        from trainyard.schedulers.aws.sagemaker.start_script import without_secrets

        redactor = Redactor()
        job_def = without_secrets(self.job_def)
        request: dict[str, Any] = {"CreateTrainingJob": job_def}
        if self.submission:
            payload = {"serviceRequestPayload": job_def}
            request = {"SubmitServiceJob": {**redactor.json(self.submission), **payload}}
        before, runs = redactor.json(self.needs.steps()), redactor.json(self.runs)
        shown = {"before": before, **request, "runs": runs}
        return {key: value for key, value in shown.items() if value}

    def __str__(self) -> str:
        """Return the same as text."""
        return json.dumps(self.shown(), indent=2)

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True)
class PlannedCode:
    """What the request has to know of the code.

    Attributes:
        key: names its content; `names.CONTENT` where that is not known yet. "" if there is nothing to upload.
        archive: ``s3://`` URI of an archive that is there already; "" if the code is to be uploaded.
        has_code: whether there is code at all, and not the toolkit alone.
    """

    key: str = ""
    archive: str = ""
    has_code: bool = True


def settle(request: Mapping[str, Any], replacements: Mapping[str, str]) -> dict[str, Any]:
    """Return a request in which texts are replaced wherever they occur, in the order of the mapping."""
    settled = copy.deepcopy(dict(request))
    result: dict[str, Any] = _replaced(settled, replacements)
    return result


def _replaced(value: Any, replacements: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for old, new in replacements.items():
            if old in value:
                value = value.replace(old, new)
        return value
    if isinstance(value, dict):
        return {key: _replaced(item, replacements) for key, item in value.items()}
    return [_replaced(item, replacements) for item in value] if isinstance(value, list) else value
