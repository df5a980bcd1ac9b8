"""Submits jobs: looks up the role, makes the bucket, uploads code and data, and creates the training job."""

from __future__ import annotations

import itertools
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from shunter.errors import ConfigError, WorkspaceChangedError
from shunter.progress import Progress
from shunter.schedulers.aws.batch_jobs import check_queue, find_by_name, send_once
from shunter.schedulers.aws.s3 import S3, ensure_bucket, split_uri
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_sagemaker_scheduler import names, role_checks
from shunter.schedulers.aws_sagemaker_scheduler.code_archive import CodePackage
from shunter.schedulers.aws_sagemaker_scheduler.datasets import read_dataset, upload_dataset
from shunter.schedulers.aws_sagemaker_scheduler.observe import describe_job, with_member
from shunter.schedulers.aws_sagemaker_scheduler.request import AWSSageMakerJob, Needs, settle

#: How often code that changes while it is packed is read again.
CODE_ATTEMPTS = 3


def prepare(
    job: AWSSageMakerJob, code: CodePackage | None, session: AwsSession, region: str, progress: Progress
) -> None:
    """Do what a job needs, and put the results into its request. Does nothing the second time."""
    needs = job.needs
    if job.submission:
        check_queue(session, job.submission["jobQueue"], training=True)
    replacements = _check_role(job, session, progress)
    datasets = {upload.uri: read_dataset(upload.path) for upload in needs.uploads}
    if code is not None:
        code.resolve(progress)
        if needs.code_uri and names.CONTENT in needs.code_uri:
            replacements[names.CONTENT] = code.key
    if needs.default_bucket:
        account = _account(session)
        replacements[names.ACCOUNT] = account
        ensure_bucket(session, names.default_bucket(region, account), region, account)
    settled = settle(job.job_def, replacements)
    output = settled["OutputDataConfig"]
    output_bucket = split_uri(output["S3OutputPath"])[0]
    s3 = S3(session, output.get("KmsKeyId"), output_bucket)
    if code is not None and needs.code_uri:
        uri = settle({"uri": needs.code_uri}, replacements)["uri"]
        settled = settle(settled, {uri: upload_code(code, s3, uri, progress)})
    uploads = {
        uri: upload_dataset(data, f"s3://{output_bucket}/shunter/data", s3, progress)
        for uri, data in datasets.items()
    }
    for entry in settled.get("InputDataConfig", []):
        source = entry["DataSource"].get("S3DataSource")
        if source is not None and source["S3Uri"] in uploads:
            source["S3Uri"] = uploads[source["S3Uri"]]
    job.job_def = settled
    job.needs = Needs()


def check_identity(job: AWSSageMakerJob, session: AwsSession, progress: Progress) -> None:
    """Check the role now, so that `prepare` need not; if there is no role to check, the credentials."""
    needs = job.needs
    if job.submission:
        check_queue(session, job.submission["jobQueue"], training=True)
    if not (needs.role_name or needs.role_check or needs.checkpoint_check):
        _account(session)
        return
    job.job_def = settle(job.job_def, _check_role(job, session, progress))
    job.needs = replace(needs, role_name="", role_check=False, checkpoint_check="")


def submit(session: AwsSession, job: AWSSageMakerJob) -> str:
    """Submit a job once, and return its ARN: the service job's if it goes through a queue.

    Its name can be used once only, and the client token makes Batch refuse the same request a second time.
    So where an answer was lost the job is looked for first, and the request is sent again if it is not found.

    Raises:
        AwsError: AWS refused it, or could not be reached.
    """
    if not job.submission:
        made = send_once(
            lambda: with_member(
                session.call("sagemaker", "CreateTrainingJob", repeats=False, **job.job_def),
                "CreateTrainingJob",
                "TrainingJobArn",
            ),
            lambda: describe_job(session, job.job_name),
        )
        return str(made["TrainingJobArn"])
    request = {**job.submission, "serviceRequestPayload": json.dumps(job.job_def)}

    def find() -> dict[str, Any] | None:
        found = find_by_name(session, "ListServiceJobs", request["jobQueue"], job.job_name)
        return found[0] if found else None

    made = send_once(lambda: session.call("batch", "SubmitServiceJob", repeats=False, **request), find)
    return str(made.get("jobArn") or made["jobId"])


# ---- the role


def _check_role(job: AWSSageMakerJob, session: AwsSession, progress: Progress) -> dict[str, str]:
    """Look up the role, and its permissions if the job depends on them; return its ARN by placeholder."""
    needs, planned = job.needs, job.job_def["RoleArn"]
    arn = planned
    if needs.role_name or needs.role_check:
        arn = role_checks.checked_arn(session, needs.role_name or planned, job.job_def, progress)
    if needs.checkpoint_check:
        role_checks.check_checkpoints(session, arn, needs.checkpoint_check, progress)
    return {planned: arn} if needs.role_name else {}


def _account(session: AwsSession) -> str:
    return str(session.call("sts", "GetCallerIdentity")["Account"])


# ---- code


def upload_code(code: CodePackage, s3: S3, uri: str, progress: Progress) -> str:
    """Upload the code unless it is there; returns the "directory" that it is in.

    It differs from the planned one if the files have changed since.
    """
    for attempt in itertools.count(1):
        try:
            _upload(code, s3, uri, progress)
            break
        except WorkspaceChangedError:
            planned = code.key
            if attempt == CODE_ATTEMPTS or not code.reread():
                raise
            progress.step("the code has changed; reading it again")
            uri = uri.replace(planned, code.key)
    code.keep()
    return uri


def _upload(code: CodePackage, s3: S3, uri: str, progress: Progress) -> None:
    missing = [name for name in code.file_names() if not s3.has(uri + name)]
    if not missing:
        progress.done(f"the code is in S3 already: {uri}")
        return
    progress.step(f"uploading the code to {uri}")
    for name in missing:
        with tempfile.NamedTemporaryFile(prefix="shunter-") as file:
            path = Path(file.name)
            try:
                code.write_file(name, path)
            except OSError as error:
                raise ConfigError(
                    f"cannot pack the code into a file of {tempfile.gettempdir()}: {error.strerror or error}",
                    hint="Free space there, or name another directory for temporary files: TMPDIR.",
                ) from error
            s3.put(path, uri + name, progress, name)
    for warning in code.report.warnings():
        progress.done(warning)
