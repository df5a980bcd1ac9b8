"""What comes before a request: the role looked up, the bucket made, code and data uploaded."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard import system
from trainyard.errors import ConfigError, WorkspaceChangedError
from trainyard.schedulers.aws.errors import AwsError, AwsForbiddenError
from trainyard.schedulers.aws.iam import find_role
from trainyard.schedulers.aws.s3 import S3, ensure_bucket, split_uri
from trainyard.schedulers.aws.sagemaker import names, permissions
from trainyard.schedulers.aws.sagemaker.calls import pages_of
from trainyard.schedulers.aws.sagemaker.code_archive import CodePackage
from trainyard.schedulers.aws.sagemaker.datasets import read_dataset, upload_dataset
from trainyard.schedulers.aws.sagemaker.request import AWSSageMakerJob, Needs, settle
from trainyard.schedulers.aws.session import AwsSession

if TYPE_CHECKING:
    from trainyard.progress import Progress

#: How often code that is being written to is read anew.
ATTEMPTS = 3


def carry_out(
    job: AWSSageMakerJob, code: CodePackage | None, session: AwsSession, region: str, progress: Progress
) -> None:
    """Do what a job needs, and put what came of it into its request. Does nothing the second time.

    Args:
        job: the job.
        code: its code, if it has some.
        session: of the region and profile that the job is for.
        region: that region.
        progress: is told of the steps.

    Raises:
        ConfigError: the code or the data cannot be read, the role does not exist, or lacks rights that the
            job could not do without.
        AwsError: AWS refuses or cannot be reached.
    """
    needs = job.needs
    _look_at_queue(job, session)
    replacements = _look_at_role(job, session, progress)
    datasets = {upload.uri: read_dataset(upload.path) for upload in needs.uploads}
    if code is not None:
        code.resolve(progress)
        if needs.code_uri and names.CONTENT in needs.code_uri:
            replacements[names.CONTENT] = code.key
    bucket = ""
    if needs.default_bucket:
        account = account_of(session)
        replacements[names.ACCOUNT] = account
        bucket = names.default_bucket(region, account)
        ensure_bucket(session, bucket, region, account)
    settled = settle(job.job_def, replacements)
    output = settled["OutputDataConfig"]
    output_bucket = split_uri(output["S3OutputPath"])[0]
    s3 = S3(session, output.get("KmsKeyId"), output_bucket)
    if code is not None and needs.code_uri:
        uri = next(iter(settle({"uri": needs.code_uri}, replacements).values()))
        settled = settle(settled, {uri: upload_code(code, s3, uri, progress)})
    uploads = {
        uri: upload_dataset(data, f"s3://{output_bucket}/trainyard/data", s3, progress)
        for uri, data in datasets.items()
    }
    for entry in settled.get("InputDataConfig", []):
        source = entry["DataSource"].get("S3DataSource")
        if source is not None and source["S3Uri"] in uploads:
            source["S3Uri"] = uploads[source["S3Uri"]]
    if needs.extension:  # paid for, so it comes when nothing else can go wrong any more
        extend_plan(session, settled["ResourceConfig"]["TrainingPlanArn"], needs.extension, progress)
    job.job_def = settled
    job.needs = Needs()


def check_identity(job: AWSSageMakerJob, session: AwsSession, progress: Progress) -> None:
    """Look the role up as `carry_out` would, which then need not; without a role to look up, ask who we are.

    Raises:
        ConfigError: the role does not exist, or lacks rights that the job could not do without.
        AwsError: there are no credentials, or AWS refuses.
    """
    needs = job.needs
    _look_at_queue(job, session)
    if not (needs.role_name or needs.role_check or needs.checkpoint_check):
        account_of(session)
        return
    job.job_def = settle(job.job_def, _look_at_role(job, session, progress))
    job.needs = replace(needs, role_name="", role_check=False, checkpoint_check="")


def _look_at_queue(job: AWSSageMakerJob, session: AwsSession) -> None:
    if job.submission:
        from trainyard.schedulers.aws.sagemaker.queued_jobs import check_queue

        check_queue(session, job.submission["jobQueue"])


def _look_at_role(job: AWSSageMakerJob, session: AwsSession, progress: Progress) -> dict[str, str]:
    """Look the role up, and its rights where the job depends on them; returns what stood for its ARN."""
    needs, planned = job.needs, job.job_def["RoleArn"]
    arn = planned
    if needs.role_name:
        role = role_named(session, needs.role_name)
        permissions.check_trust(role, job.job_def)
        arn = role["Arn"]
    elif needs.role_check:
        permissions.look_at_trust(session, job.job_def, progress)
    if needs.checkpoint_check:
        permissions.look_at_checkpoints(session, arn, needs.checkpoint_check, progress)
    return {planned: arn} if needs.role_name else {}


def extend_plan(session: AwsSession, plan: str, offering: str, progress: Progress) -> None:
    """Buy an extension of a training plan, once: a plan that has it already is left as it is.

    Args:
        session: who buys.
        plan: ARN of the training plan.
        offering: id of the extension.
        progress: is told.

    Raises:
        AwsError: SageMaker refuses or cannot be reached.
    """
    if _has_extension(session, plan, offering):
        progress.done(f"the training plan has the extension {offering} already")
        return
    progress.step(f"buying the extension {offering} of the training plan")
    try:
        session.call(
            "sagemaker", "ExtendTrainingPlan", repeats=False, TrainingPlanExtensionOfferingId=offering
        )
    except AwsError as error:
        if not error.lost_answer or not _has_extension(session, plan, offering):
            raise
    progress.done(f"the training plan is extended by {offering}")


def _has_extension(session: AwsSession, plan: str, offering: str) -> bool:
    pages = pages_of(
        session, "DescribeTrainingPlanExtensionHistory", "TrainingPlanExtensions", TrainingPlanArn=plan
    )
    return any(
        each.get("TrainingPlanExtensionOfferingId") == offering and each.get("Status") != "Failed"
        for page in pages
        for each in page
    )


def role_named(session: AwsSession, name: str) -> dict[str, Any]:
    """Return what IAM says of a role.

    Raises:
        ConfigError: there is none of this name.
    """
    try:
        role = find_role(session, name)
    except AwsForbiddenError as error:
        raise AwsForbiddenError(
            f"the ARN of the role {name!r} cannot be looked up: {error.message}",
            hint="Give the role's ARN: -cfg role=arn:aws:iam::ACCOUNT:role/NAME.",
            operation=error.operation,
            code=error.code,
        ) from None
    if role is None:
        raise ConfigError(f"there is no IAM role {name!r}", hint="Give another name, or the role's ARN.")
    return role


def account_of(session: AwsSession) -> str:
    """Return the number of the account."""
    return str(session.call("sts", "GetCallerIdentity")["Account"])


def upload_code(code: CodePackage, s3: S3, uri: str, progress: Progress) -> str:
    """Upload the code unless it is there; returns the "directory" that it is in.

    It is another one than was planned if the files have been changed since.

    Raises:
        WorkspaceChangedError: they are changed again and again.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _upload(code, s3, uri, progress)
        except WorkspaceChangedError as error:
            planned = code.key
            if attempt == ATTEMPTS or not code.reread(error, progress):
                raise
            progress.step("the code has changed; reading it again")
            uri = uri.replace(planned, code.key)
        else:
            code.keep()
            return uri
    raise AssertionError("unreachable")


def _upload(code: CodePackage, s3: S3, uri: str, progress: Progress) -> None:
    missing = [name for name in code.file_names() if not s3.has(uri + name)]
    if not missing:
        progress.done(f"the code is in S3 already: {uri}")
        return
    progress.step(f"uploading the code to {uri}")
    for name in missing:
        # without a name in the file system it cannot be left behind, however this process ends
        with system.unnamed_file() as file:
            path = Path(system.path_of_open_file(file))
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
