"""Whether jobs could run on SageMaker: credentials, role, permissions, buckets, logs, image."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from shunter.errors import ConfigError
from shunter.schedulers.api import Check
from shunter.schedulers.aws.aws_errors import REGION_HINT, AwsError, AwsForbiddenError
from shunter.schedulers.aws.doctor import ECR_IMAGE, guarded, identity, image, partition_and_account
from shunter.schedulers.aws.iam import PolicyDecision, find_role, simulate
from shunter.schedulers.aws.s3 import find_bucket
from shunter.schedulers.aws.session import AwsSession
from shunter.schedulers.aws_sagemaker_scheduler import names
from shunter.schedulers.aws_sagemaker_scheduler.options import AWSSageMakerOpts
from shunter.schedulers.aws_sagemaker_scheduler.permissions import (
    BUCKET_POLICY,
    Grant,
    UsedResources,
    bucket_doubt,
    caller_grants,
    policy,
    role_grants,
    trust_problem,
    used_by,
)
from shunter.schedulers.aws_sagemaker_scheduler.submission import queue_problem

CALLER = "permissions of the caller"
ROLE = "permissions of the role"


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
        used = used_by(self.opts, self.region, self.who, self.role)
        caller, role = caller_grants(used), role_grants(used)
        yield from guarded(CALLER, lambda: self._caller(caller))
        yield from guarded(ROLE, lambda: self._rights(ROLE, self.role, role))
        yield from guarded("default bucket", lambda: self._default_bucket(used))
        for name, what in _buckets(used).items():
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
        if role is None:
            self.role = ""
            hint = "`aws iam list-roles` lists them; the policies that it needs are shown below."
            yield Check("role", False, f"there is no role {given}", hint)
            return
        self.role = role["Arn"]
        if is_arn and self.role != given:
            yield Check("role", False, f"the role of this name is {self.role}, not {given}", "Give that ARN.")
            return
        chaining = {"EnableSessionTagChaining": bool(self.opts.enable_session_tag_chaining)}
        problem = trust_problem(role, {"SessionChainingConfig": chaining})
        yield Check("role", True, self.role) if problem is None else Check("role", False, *problem)

    def _queue(self) -> Iterator[Check]:
        name = self.opts.batch_queue or ""
        problem = queue_problem(self.session, name)
        yield Check("queue", True, name) if problem is None else Check("queue", False, *problem)

    # ---- permissions

    def _caller(self, grants: Sequence[Grant]) -> Iterator[Check]:
        kind = self.who.split(":")[5].partition("/")[0]
        if kind == "root":
            text = "this is the account's root user, which no policy restricts: use another identity"
            yield Check(CALLER, None, text)
            return
        principal = self.who
        if kind == "assumed-role":  # its ARN does not contain the role's path
            role = find_role(self.session, self.who.split("/")[1])
            principal = role["Arn"] if role is not None else ""
        elif kind != "user":
            principal = ""
        if not principal:
            text = f"cannot be checked: {self.who} is neither a user nor a role of the account"
            yield Check(CALLER, None, text)
            return
        yield from self._rights(CALLER, principal, grants)

    def _rights(self, name: str, principal: str, grants: Sequence[Grant]) -> Iterator[Check]:
        if not principal:
            return
        failed, count = False, 0
        for grant in grants:
            samples = grant.resources if grant.samples is None else grant.samples
            if not samples:
                continue
            context = dict([grant.context] if grant.context else [])
            try:
                decisions = simulate(self.session, principal, grant.actions, samples, context)
            except AwsForbiddenError:
                raise
            except AwsError as error:
                yield Check(name, None, f"cannot be checked: {error.message}")
                return
            count += len(grant.actions)
            denied = [decision for decision in decisions if not decision.allowed]
            if denied:
                failed = True
                yield self._denied(name, principal, grant, denied)
        if not failed:
            yield Check(name, True, f"{principal} may do all {count} actions that jobs need")

    def _denied(self, name: str, principal: str, grant: Grant, denied: Sequence[PolicyDecision]) -> Check:
        """Return the finding about missing permissions; a remark, if something else may allow the actions."""
        actions = ", ".join(dict.fromkeys(decision.action for decision in denied))
        resources = ", ".join(dict.fromkeys(decision.resource for decision in denied))
        text = f"{principal} may not {actions} on {resources}"
        hint = f"Its policy needs: {json.dumps(grant.statement)}"
        firm = [decision for decision in denied if not decision.missing]
        if not firm:
            keys = ", ".join(sorted({key for decision in denied for key in decision.missing}))
            return Check(name, None, f"{text}, as far as can be determined without {keys}", hint)
        if any(decision.explicit for decision in firm):
            hint = f"Narrow the statement that denies it. {hint}"
            return Check(name, False, f"{text}: a statement denies it", hint)
        doubt = self._doubt(grant, firm)
        if doubt:
            return Check(name, None, f"{text}; {doubt} allow it", hint)
        return Check(name, False, text, hint)

    def _doubt(self, grant: Grant, denied: Sequence[PolicyDecision]) -> str:
        """Return what may allow it nevertheless; "" if nothing can."""
        if grant.elsewhere != BUCKET_POLICY:
            return f"{grant.elsewhere} may" if grant.elsewhere else ""
        account = partition_and_account(self.who)[1]
        for bucket in {decision.resource.rpartition(":")[2].partition("/")[0] for decision in denied}:
            try:
                doubt = bucket_doubt(self.session, bucket, account)
            except ConfigError:  # it does not exist, which another check reports
                continue
            if doubt:
                return doubt
        return ""

    # ---- buckets and logs

    def _default_bucket(self, used: UsedResources) -> Iterator[Check]:
        name = used.default_bucket
        if not name:
            return
        try:
            found = find_bucket(self.session, name, used.account)
        except AwsForbiddenError:
            yield Check(
                "default bucket",
                False,
                f"{name} cannot be used: it is another account's, or s3:ListBucket is missing",
                "Name a bucket of yours: -cfg output_path=s3://BUCKET/PREFIX.",
            )
            return
        if found is None:
            yield Check("default bucket", None, f"{name} does not exist yet: the first job makes it")
        else:
            yield Check("default bucket", True, name)

    def _bucket(self, name: str, what: str) -> Iterator[Check]:
        try:
            answer = find_bucket(self.session, name)
        except AwsForbiddenError:
            hint = "s3:ListBucket is missing in the policy of the caller, or in the bucket's policy."
            yield Check(what, False, f"access to the bucket {name} is denied", hint)
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


def _buckets(used: UsedResources) -> dict[str, str]:
    """Return the buckets that are checked, without the default one: name -> what it is for."""
    found: dict[str, str] = {}
    kinds = {"output": used.results, "checkpoint": used.checkpoints, "code": used.uploads, "data": used.data}
    for kind, prefixes in kinds.items():
        for prefix in prefixes:
            name = prefix.partition("/")[0]
            if name != used.default_bucket:
                found.setdefault(name, f"{kind} bucket")
    return found


def _printed(name: str, who: str, grants: Sequence[Grant]) -> Check:
    return Check(name, None, f"what {who} needs at least:\n{json.dumps(policy(grants), indent=2)}")
