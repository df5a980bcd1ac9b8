"""Whether jobs could run on SageMaker: credentials, role, permissions, buckets, logs, image."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from shunter.schedulers.api import Check
from shunter.schedulers.aws.aws_errors import REGION_HINT, AwsError, AwsForbiddenError
from shunter.schedulers.aws.batch_jobs import queue_problem
from shunter.schedulers.aws.doctor import ECR_IMAGE, guarded, identity, image
from shunter.schedulers.aws.iam import Denial, denied, find_role, policy
from shunter.schedulers.aws.s3 import find_bucket
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_sagemaker_scheduler import names, role_checks
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.permissions import Policies

Statement = Mapping[str, Any]

CALLER = "permissions of the caller"
ROLE = "permissions of the role"
_DEFAULT = "default bucket"
#: Ends of the ARNs of statements that are for any role, image or key.
_ANY = (":role/*", ":repository/*", ":key/*")
#: Services whose resources have policies of their own.
_WITH_POLICIES = ("s3:", "kms:", "ecr:")


def examine(session: AwsSession, region: str, cfg: Mapping[str, Any]) -> list[Check]:
    """Check everything that jobs with these options need. Changes nothing."""
    if not region:
        return [Check("region", False, "no AWS region is given", REGION_HINT)]
    credentials, who = identity(session)
    checks = [credentials, Check("region", True, region)]
    if not credentials.ok:
        return checks  # nothing else could be checked
    return [*checks, *_Examination(session, region, AWSSageMakerOpts(**{"role": "", **cfg}), who).all()]


class _Examination:
    """The checks of one configuration."""

    def __init__(self, session: AwsSession, region: str, opts: AWSSageMakerOpts, who: str) -> None:
        self.session, self.region, self.opts, self.who = session, region, opts, who
        self.role = ""

    def all(self) -> Iterator[Check]:
        yield from guarded("SageMaker", self._service)
        yield from guarded("role", self._role)
        policies = Policies(self.opts, self.region, self.who, self.role)
        caller, role = policies.of_caller(), policies.of_role()
        yield from guarded(CALLER, lambda: self._caller(caller))
        yield from guarded(ROLE, lambda: self._rights(ROLE, self.role, role))
        for name, what in _buckets(policies).items():
            yield from guarded(what, partial(self._bucket, name, what))
        if self.opts.batch_queue:
            yield from guarded("queue", self._queue)
        yield from guarded("log group", self._log_group)
        repository = self.opts.image_repo or ""
        yield from guarded(
            "image", lambda: image(self.session, repository if ECR_IMAGE.fullmatch(repository) else None)
        )
        yield _printed("policy of the caller", self.who, caller)
        yield _printed("policy of the role", self.role or "the jobs' role", role)

    # ---- service, role and queue

    def _service(self) -> Iterator[Check]:
        self.session.call("sagemaker", "ListTrainingJobs", MaxResults=1)
        yield Check("SageMaker", True, f"answers in {self.region}")

    def _role(self) -> Iterator[Check]:
        given = self.opts.role
        if not given:
            yield Check("role", None, "not given: -cfg role=NAME")
            return
        is_arn = given.startswith("arn:")
        self.role = given if is_arn else ""  # what counts if it may not be looked up
        role = find_role(self.session, given)
        self.role = role["Arn"] if role is not None else ""
        problem = role_checks.problem_of(
            role, given, tag_chaining=bool(self.opts.enable_session_tag_chaining)
        )
        yield Check("role", True, self.role) if problem is None else Check("role", False, *problem)

    def _queue(self) -> Iterator[Check]:
        name = self.opts.batch_queue or ""
        problem = queue_problem(self.session, name, training=True)
        yield Check("queue", True, name) if problem is None else Check("queue", False, *problem)

    # ---- permissions

    def _caller(self, statements: Sequence[Statement]) -> Iterator[Check]:
        kind = self.who.split(":")[5].partition("/")[0]
        if kind == "root":
            text = "this is the account's root user, which no policy restricts: use another identity"
            yield Check(CALLER, None, text)
            return
        principal = self.who if kind == "user" else ""
        if kind == "assumed-role":  # its ARN does not contain the role's path
            role = find_role(self.session, self.who.split("/")[1])
            principal = role["Arn"] if role is not None else ""
        if not principal:
            text = f"cannot be checked: {self.who} is neither a user nor a role of the account"
            yield Check(CALLER, None, text)
            return
        yield from self._rights(CALLER, principal, statements)

    def _rights(self, name: str, principal: str, statements: Sequence[Statement]) -> Iterator[Check]:
        if not principal:
            return
        failed = False
        for statement in statements:
            # what may be any role, image or key cannot be simulated
            samples = [self._sample(each) for each in statement["Resource"] if not each.endswith(_ANY)]
            if not samples:
                continue
            context = statement.get("Condition", {}).get("StringEquals", {})
            try:
                denials = denied(self.session, principal, statement["Action"], samples, context)
            except AwsForbiddenError:
                raise
            except AwsError as error:
                yield Check(name, None, f"cannot be checked: {error.message}")
                return
            if denials:
                failed = True
                yield _denied(name, principal, statement, denials)
        if not failed:
            yield Check(name, True, f"{principal} may do all that jobs need")

    def _sample(self, resource: str) -> str:
        """Return an ARN as a real request may have it, for the ARN or pattern of a statement."""
        job = names.make_job_name(self.opts.base_job_name or "job")
        return re.sub(r"([^/:])\*$", r"\1/*", resource.replace("training-job/*", f"training-job/{job}"))

    # ---- buckets and logs

    def _bucket(self, name: str, what: str) -> Iterator[Check]:
        try:
            owner = self.who.split(":")[4] if what == _DEFAULT else ""
            answer = find_bucket(self.session, name, owner)
        except AwsForbiddenError:
            hint = (
                "It is another account's, or the policy of the caller or of the bucket lacks s3:ListBucket."
            )
            yield Check(what, False, f"access to the bucket {name} is denied", hint)
            return
        if answer is None and what == _DEFAULT:
            yield Check(what, None, f"{name} does not exist yet: the first job makes it")
            return
        if answer is None:
            hint = f"aws s3 mb s3://{name} --region {self.region}"
            yield Check(what, False, f"there is no bucket {name}", hint)
            return
        region = answer.get("BucketRegion") or self.region
        # API reference, S3DataSource: buckets have to be in the region of the job
        if region != self.region:
            hint = f"Use a bucket in {self.region}, or run the job there: -cfg region={region}."
            yield Check(what, False, f"the bucket {name} is in {region}, jobs in {self.region}", hint)
        else:
            yield Check(what, True, name)

    def _log_group(self) -> Iterator[Check]:
        group = names.LOG_GROUP
        try:
            self.session.call("logs", "DescribeLogStreams", logGroupName=group, limit=1)
        except AwsForbiddenError as error:
            hint = f"{error.hint} Jobs run without it, but `shunter log` cannot show what they print."
            yield Check("log group", False, f"{group} cannot be read: {error.message}", hint)
        except AwsError as error:
            if error.code != "ResourceNotFoundException":
                raise
            text = f"{group} does not exist yet: SageMaker makes it with the first job"
            yield Check("log group", None, text)
        else:
            yield Check("log group", True, group)


def _denied(name: str, principal: str, statement: Statement, denials: Sequence[Denial]) -> Check:
    """Return the finding about missing permissions; a remark, if something else may allow the actions."""
    actions = ", ".join(dict.fromkeys(denial.action for denial in denials))
    resources = ", ".join(dict.fromkeys(denial.resource for denial in denials))
    text = f"{principal} may not {actions} on {resources}"
    hint = f"Its policy needs: {json.dumps(statement)}"
    if any(denial.explicit for denial in denials):
        hint = f"Narrow the statement that denies it. {hint}"
        return Check(name, False, f"{text}: a statement denies it", hint)
    if keys := sorted({key for denial in denials for key in denial.missing}):
        return Check(name, None, f"{text}, as far as can be determined without {', '.join(keys)}", hint)
    if all(denial.action.startswith(_WITH_POLICIES) for denial in denials):
        return Check(
            name, None, f"{text}, unless the policy of the bucket, key or repository allows it", hint
        )
    return Check(name, False, text, hint)


def _buckets(policies: Policies) -> dict[str, str]:
    """Return the buckets that are checked: name -> what it is for."""
    found = {policies.default_bucket: _DEFAULT} if policies.default_bucket else {}
    for kind, prefixes in policies.places.items():
        for prefix in prefixes:
            found.setdefault(prefix.partition("/")[0], f"{kind} bucket")
    return found


def _printed(name: str, who: str, statements: Sequence[Statement]) -> Check:
    return Check(name, None, f"what {who} needs at least:\n{json.dumps(policy(statements), indent=2)}")
