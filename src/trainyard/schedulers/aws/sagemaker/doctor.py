"""Whether jobs could run on SageMaker: credentials, role, rights of both sides, buckets, logs, image."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from trainyard.errors import ConfigError
from trainyard.schedulers.aws.doctor import ECR_IMAGE, guarded, identity, image, partition_and_account
from trainyard.schedulers.aws.errors import AwsError, AwsForbiddenError
from trainyard.schedulers.aws.iam import Decision, find_role, simulate
from trainyard.schedulers.aws.s3 import find_bucket
from trainyard.schedulers.aws.sagemaker import names
from trainyard.schedulers.aws.sagemaker.options import AWSSageMakerOpts
from trainyard.schedulers.aws.sagemaker.permissions import (
    BUCKET_POLICY,
    Grant,
    Places,
    bucket_doubt,
    caller_grants,
    places_of,
    policy,
    role_grants,
    trust_problem,
)
from trainyard.schedulers.aws.sagemaker.queued_jobs import queue_problem
from trainyard.schedulers.aws.session import AwsSession
from trainyard.schedulers.base import Check

CALLER = "rights of the caller"
ROLE = "rights of the role"


def examine(session: AwsSession, region: str, cfg: Mapping[str, Any]) -> list[Check]:
    """Look at everything that jobs with these options need. Changes nothing.

    Args:
        session: with what credentials.
        region: where the jobs are to run; "" if none is known.
        cfg: options of the scheduler. What is not given is not looked at.
    """
    if not region:
        hint = "Give it with -cfg region=us-east-1, AWS_DEFAULT_REGION or the profile."
        return [Check("region", False, "no AWS region is given", hint)]
    credentials, who = identity(session)
    checks = [credentials, Check("region", True, region)]
    if not credentials.ok:
        return checks  # nothing else could be seen
    return [*checks, *_Looks(session, region, AWSSageMakerOpts(**{"role": "", **cfg}), who).all()]


class _Looks:
    """The looks at one configuration."""

    def __init__(self, session: AwsSession, region: str, opts: AWSSageMakerOpts, who: str) -> None:
        self.session = session
        self.opts = opts
        self.who = who
        self.role = ""
        self.region = region

    def all(self) -> Iterator[Check]:
        yield from guarded("SageMaker", self._service)
        yield from guarded("role", self._role)
        places = places_of(self.opts, self.region, self.who, self.role)
        caller, role = caller_grants(places), role_grants(places)
        yield from guarded(CALLER, lambda: self._caller(caller))
        yield from guarded(ROLE, lambda: self._rights(ROLE, self.role, role))
        yield from guarded("default bucket", lambda: self._default_bucket(places))
        for name, what in _buckets(places).items():
            yield from guarded(what, partial(self._bucket, name, what))
        if self.opts.batch_queue:
            yield from guarded("queue", self._queue)
        yield from guarded("log group", self._log_group)
        yield from guarded("image", lambda: image(self.session, self._repository()))
        yield _printed("policy of the caller", self.who, caller)
        yield _printed("policy of the role", self.role or "the jobs' role", role)

    # ---- the service and the role

    def _service(self) -> Iterator[Check]:
        self.session.call("sagemaker", "ListTrainingJobs", MaxResults=1)
        yield Check("SageMaker", True, f"answers in {self.region}")

    def _role(self) -> Iterator[Check]:
        given = self.opts.role
        if not given:
            yield Check("role", None, "not given: -cfg role=NAME")
            return
        is_arn = given.startswith("arn:")
        self.role = given if is_arn else ""
        role = find_role(self.session, given)
        if role is None:
            self.role = ""
            hint = "`aws iam list-roles` lists them; the policies that it needs stand below."
            yield Check("role", False, f"there is no role {given}", hint)
            return
        self.role = role["Arn"]
        if is_arn and self.role != given:
            yield Check("role", False, f"the role of this name is {self.role}, not {given}", "Give that ARN.")
            return
        chaining = {"EnableSessionTagChaining": bool(self.opts.enable_session_tag_chaining)}
        problem = trust_problem(role, {"SessionChainingConfig": chaining})
        if problem is not None:
            yield Check("role", False, *problem)
        else:
            yield Check("role", True, self.role)

    def _queue(self) -> Iterator[Check]:
        name = self.opts.batch_queue or ""
        problem = queue_problem(self.session, name)
        yield Check("queue", True, name) if problem is None else Check("queue", False, *problem)

    # ---- rights

    def _caller(self, grants: Sequence[Grant]) -> Iterator[Check]:
        kind = self.who.split(":")[5].partition("/")[0]
        if kind == "root":
            yield Check(
                CALLER, None, "this is the account's root user, whom no policy limits: better use another"
            )
            return
        principal = self.who
        if kind == "assumed-role":  # its ARN does not tell the role's path
            role = find_role(self.session, self.who.split("/")[1])
            principal = role["Arn"] if role is not None else ""
        elif kind != "user":
            principal = ""
        if not principal:
            yield Check(CALLER, None, f"cannot be looked at: {self.who} is no user or role of the account")
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
            try:
                decisions = self._simulated(principal, grant, samples)
            except AwsForbiddenError:
                raise
            except AwsError as error:
                yield Check(name, None, f"cannot be looked at: {error.message}")
                return
            count += len(grant.actions)
            denied = [decision for decision in decisions if not decision.allowed]
            if denied:
                failed = True
                yield self._denied(name, principal, grant, denied)
        if not failed:
            yield Check(name, True, f"{principal} may do all {count} things that jobs need")

    def _simulated(self, principal: str, grant: Grant, samples: Sequence[str]) -> list[Decision]:
        return simulate(
            self.session, principal, grant.actions, samples, dict([grant.context] if grant.context else [])
        )

    def _denied(self, name: str, principal: str, grant: Grant, denied: Sequence[Decision]) -> Check:
        """Return the finding of rights that are lacking. What something else may allow is a remark."""
        actions = ", ".join(dict.fromkeys(decision.action for decision in denied))
        resources = ", ".join(dict.fromkeys(decision.resource for decision in denied))
        text = f"{principal} may not {actions} on {resources}"
        hint = f"Its policy needs: {json.dumps(grant.statement)}"
        firm = [decision for decision in denied if not decision.missing]
        if not firm:
            keys = ", ".join(sorted({key for decision in denied for key in decision.missing}))
            return Check(name, None, f"{text}, as far as can be told without {keys}", hint)
        if any(decision.explicit for decision in firm):
            hint = f"Narrow the statement that denies it. {hint}"
            return Check(name, False, f"{text}: a statement denies it", hint)
        doubt = self._doubt(grant, firm)
        return (
            Check(name, None, f"{text}; {doubt} allow it", hint) if doubt else Check(name, False, text, hint)
        )

    def _doubt(self, grant: Grant, denied: Sequence[Decision]) -> str:
        """Return what may allow it all the same; "" if nothing can."""
        if grant.elsewhere != BUCKET_POLICY:
            return f"{grant.elsewhere} may" if grant.elsewhere else ""
        account = partition_and_account(self.who)[1]
        for bucket in {decision.resource.rpartition(":")[2].partition("/")[0] for decision in denied}:
            try:
                doubt = bucket_doubt(self.session, bucket, account)
            except ConfigError:  # there is none, and another look says so
                continue
            if doubt:
                return doubt
        return ""

    # ---- places

    def _default_bucket(self, places: Places) -> Iterator[Check]:
        name = places.default_bucket
        if not name:
            return
        try:
            found = find_bucket(self.session, name, places.account)
        except AwsForbiddenError:
            yield Check(
                "default bucket",
                False,
                f"{name} cannot be used: it is another account's, or s3:ListBucket is missing",
                "Name a bucket of yours: -cfg output_path=s3://BUCKET/PREFIX.",
            )
            return
        if found is None:
            yield Check("default bucket", None, f"{name} is not there yet: the first job makes it")
        else:
            yield Check("default bucket", True, name)

    def _bucket(self, name: str, what: str) -> Iterator[Check]:
        try:
            answer = find_bucket(self.session, name)
        except AwsForbiddenError:
            hint = "s3:ListBucket is missing in the policy of the caller, or the bucket's own policy."
            yield Check(what, False, f"the bucket {name} may not be looked at", hint)
            return
        if answer is None:
            hint = f"aws s3 mb s3://{name} --region {self.region}"
            yield Check(what, False, f"there is no bucket {name}", hint)
            return
        there = answer.get("BucketRegion") or self.region
        # API reference, S3DataSource: buckets have to be in the region of the job
        if there != self.region:
            hint = f"Use a bucket in {self.region}, or run the job there: -cfg region={there}."
            yield Check(what, False, f"the bucket {name} is in {there}, jobs in {self.region}", hint)
        else:
            yield Check(what, True, name)

    def _log_group(self) -> Iterator[Check]:
        group = names.LOG_GROUP
        try:
            self.session.call("logs", "DescribeLogStreams", logGroupName=group, limit=1)
        except AwsForbiddenError as error:
            hint = f"{error.hint} Jobs run without it, but `trainyard log` cannot show what they print."
            yield Check("log group", False, f"{group} cannot be read: {error.message}", hint)
        except AwsError as error:
            if error.code != "ResourceNotFoundException":
                raise
            yield Check("log group", None, f"{group} is not there yet: SageMaker makes it with the first job")
        else:
            yield Check("log group", True, group)

    def _repository(self) -> str | None:
        """Return the repository that images are pushed to, where it is in ECR."""
        name = self.opts.image_repo
        return name if name and ECR_IMAGE.fullmatch(name) else None


def _buckets(places: Places) -> dict[str, str]:
    """Return the buckets that are looked at, but for the default one: name -> what goes there."""
    found: dict[str, str] = {}
    for what, prefixes in (
        ("output bucket", places.results),
        ("checkpoint bucket", places.checkpoints),
        ("code bucket", places.uploads),
        ("data bucket", places.data),
    ):
        for prefix in prefixes:
            name = prefix.partition("/")[0]
            if name != places.default_bucket:
                found.setdefault(name, what)
    return found


def _printed(name: str, who: str, grants: Sequence[Grant]) -> Check:
    return Check(name, None, f"what {who} needs at least:\n{json.dumps(policy(grants), indent=2)}")
