"""Jobs that go through a Batch queue (``batch_queue``): the SubmitServiceJob request, and its rules.

Batch keeps the CreateTrainingJob request as a text, and sends it when the queue's turn comes: each attempt is
a training job whose name Batch makes of the request's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainyard.schedulers.aws.sagemaker.options import AWSSageMakerOpts
from trainyard.specs.app import AppDef

SERVICE_JOB = "SAGEMAKER_TRAINING"
#: API reference, ServiceJobRetryStrategy, ServiceJobEvaluateOnExit, SubmitServiceJob.
MOST_ATTEMPTS = 10
MOST_RULES = 5
LONGEST_PATTERN = 512
HIGHEST_PRIORITY = 9999
SHORTEST_TIMEOUT = 60
_QUEUE = re.compile(
    r"(?:arn:[a-z0-9-]+:batch:(?P<region>[a-z0-9-]+):\d{12}:job-queue/)?[A-Za-z0-9][A-Za-z0-9_-]{0,127}"
)
_SHARE = re.compile(r"[A-Za-z0-9]{1,255}\*?")
_ACTIONS = {"retry": "RETRY", "final": "EXIT"}
#: The options that say how a job waits in its queue.
OPTIONS = (
    "batch_share_identifier",
    "batch_quota_share",
    "batch_priority",
    "batch_attempts",
    "batch_retry_rules",
    "batch_timeout",
    "batch_preemption_retries",
)


def queue_name(queue: str) -> str:
    """Return the name of a queue that is given by name or ARN."""
    return queue.rpartition("/")[2]


def submission_of(
    app: AppDef, opts: AWSSageMakerOpts, job_name: str, tags: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    """Return the SubmitServiceJob request without its payload, which is the training job's own request.

    Args:
        app: the job.
        opts: its options, which name a queue.
        job_name: the job's name; nobody else has it, so it makes a repeated submission the same one too.
        tags: the training job's tags.
    """
    attempts = _attempts(app, opts)
    retries = [_rule(text) for text in opts.batch_retry_rules or []]
    optional: dict[str, Any] = {
        "shareIdentifier": opts.batch_share_identifier,
        "quotaShareName": opts.batch_quota_share,
        "schedulingPriority": opts.batch_priority,
        "timeoutConfig": opts.batch_timeout and {"attemptDurationSeconds": opts.batch_timeout},
        "retryStrategy": {"attempts": attempts, **({"evaluateOnExit": retries} if retries else {})},
    }
    if opts.batch_preemption_retries is not None:
        optional["preemptionConfiguration"] = {
            "preemptionRetriesBeforeTermination": opts.batch_preemption_retries
        }
    return {
        "jobName": job_name,
        "jobQueue": opts.batch_queue,
        "serviceJobType": SERVICE_JOB,
        **{key: value for key, value in optional.items() if value is not None},
        "tags": {tag["Key"]: tag["Value"] for tag in tags},
        "clientToken": job_name,
    }


def _attempts(app: AppDef, opts: AWSSageMakerOpts) -> int:
    """Return how often the job is started at most: as the option says, or by the roles' retries."""
    if opts.batch_attempts is not None:
        return opts.batch_attempts
    return 1 + max(role.max_retries for role in app.roles)


def _rule(text: str) -> dict[str, str]:
    pattern, _, action = text.strip().rpartition(":")
    return {"action": _ACTIONS[action], "onStatusReason": pattern}


def problems_of(app: AppDef, opts: AWSSageMakerOpts, region: str) -> Iterator[str]:
    """Find what is wrong with the options of a queue."""
    queue = opts.batch_queue
    if not queue:
        for option in OPTIONS:
            if getattr(opts, option) is not None:
                yield f"{option} is given without batch_queue, the queue that it is for"
        return
    match = _QUEUE.fullmatch(queue)
    if match is None:
        yield f"batch_queue is {queue!r}, which is neither the name nor the ARN of a job queue"
    elif match["region"] and region and match["region"] != region:
        yield f"batch_queue is in {match['region']}, and the job is for {region}"
    yield from _share_problems(opts)
    yield from _retry_problems(app, opts)
    if opts.batch_timeout is not None and opts.batch_timeout < SHORTEST_TIMEOUT:
        yield f"batch_timeout is {opts.batch_timeout}, it must be at least {SHORTEST_TIMEOUT} seconds"


def _share_problems(opts: AWSSageMakerOpts) -> Iterator[str]:
    if opts.batch_share_identifier and opts.batch_quota_share:
        yield (
            "batch_share_identifier and batch_quota_share are both given: a queue has fair shares, or quota "
            "shares"
        )
    share = opts.batch_share_identifier
    if share is not None and not _SHARE.fullmatch(share):
        yield f"batch_share_identifier is {share!r}, it may have letters and digits, and a * at its end"
    quota = opts.batch_quota_share
    if quota is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,128}", quota):
        yield f"batch_quota_share is {quota!r}, it may have letters, digits, - and _, 128 of them"
    priority = opts.batch_priority
    if priority is not None and not 0 <= priority <= HIGHEST_PRIORITY:
        yield f"batch_priority is {priority}, it must be from 0 to {HIGHEST_PRIORITY}"
    retries = opts.batch_preemption_retries
    if retries is not None and not opts.batch_quota_share:
        yield "batch_preemption_retries is given without batch_quota_share: only its jobs are preempted"
    if retries is not None and retries < 0:
        yield f"batch_preemption_retries is {retries}, it must be at least 0"


def _retry_problems(app: AppDef, opts: AWSSageMakerOpts) -> Iterator[str]:
    attempts, rules = _attempts(app, opts), opts.batch_retry_rules or []
    if not 1 <= attempts <= MOST_ATTEMPTS:
        said = "batch_attempts is" if opts.batch_attempts is not None else "max_retries makes"
        yield f"{said} {attempts} attempts, AWS Batch makes from 1 to {MOST_ATTEMPTS}"
    if rules and attempts == 1:
        yield "batch_retry_rules are given, but the job has one attempt: give max_retries or batch_attempts"
    if len(rules) > MOST_RULES:
        yield f"batch_retry_rules has {len(rules)} rules, AWS Batch takes {MOST_RULES}"
    for text in rules:
        pattern, _, action = text.strip().rpartition(":")
        if not pattern or action not in _ACTIONS:
            yield (
                f"batch_retry_rules: cannot read {text!r}; a rule is PATTERN:retry or PATTERN:final, such as "
                "'Received status from SageMaker: InternalServerError*:retry'"
            )
        elif "*" in pattern[:-1] or len(pattern) > LONGEST_PATTERN:
            yield (
                f"batch_retry_rules: {pattern!r} is no pattern: a * stands at the end only, and there are at "
                f"most {LONGEST_PATTERN} characters"
            )
