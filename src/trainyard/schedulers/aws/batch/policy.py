"""The least that somebody may do who runs jobs on AWS Batch with trainyard, as an IAM policy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def minimal_policy(
    region: str,
    account: str,
    queue: str | None,
    roles: Iterable[str],
    log_group: str,
    repository: str | None = None,
    partition: str = "aws",
) -> dict[str, Any]:
    """Return the policy document.

    Args:
        region: region of the jobs.
        account: number of the account; ``*`` if it is not known.
        queue: name of the queue; None for any.
        roles: ARNs of the roles that jobs get.
        log_group: log group that jobs write to.
        repository: name of the ECR repository that images are pushed to; None for none.
        partition: ``aws``, ``aws-cn``, ....
    """
    batch = f"arn:{partition}:batch:{region}:{account}"
    statements = [
        # Batch takes no resource for these.
        _allow(
            "Look",
            [
                "DescribeComputeEnvironments",
                "DescribeJobDefinitions",
                "DescribeJobQueues",
                "DescribeJobs",
                "ListJobs",
            ],
            "*",
        ),
        _allow(
            "Submit",
            ["DeregisterJobDefinition", "RegisterJobDefinition", "SubmitJob", "TagResource", "TerminateJob"],
            [f"{batch}:job-queue/{queue or '*'}", f"{batch}:job-definition/*", f"{batch}:job/*"],
        ),
        {
            "Sid": "ReadLogs",
            "Effect": "Allow",
            "Action": [
                "logs:DeleteLogStream",
                "logs:DescribeLogStreams",
                "logs:GetLogEvents",
                "logs:StartLiveTail",
            ],
            "Resource": [
                f"arn:{partition}:logs:{region}:{account}:log-group:{log_group}",
                f"arn:{partition}:logs:{region}:{account}:log-group:{log_group}:*",
            ],
        },
    ]
    if arns := sorted(roles):
        passing = {"StringEquals": {"iam:PassedToService": "ecs-tasks.amazonaws.com"}}
        statements.append(
            {
                "Sid": "PassRoles",
                "Effect": "Allow",
                "Action": "iam:PassRole",
                "Resource": arns,
                "Condition": passing,
            }
        )
    if repository:
        statements += _pushing(f"arn:{partition}:ecr:{region}:{account}:repository/{repository}")
    return {"Version": "2012-10-17", "Statement": statements}


def _allow(sid: str, actions: list[str], resource: Any) -> dict[str, Any]:
    names = [f"batch:{action}" for action in actions]
    return {"Sid": sid, "Effect": "Allow", "Action": names, "Resource": resource}


def _pushing(repository: str) -> list[dict[str, Any]]:
    actions = [
        "BatchCheckLayerAvailability",
        "BatchGetImage",
        "CompleteLayerUpload",
        "GetDownloadUrlForLayer",
        "InitiateLayerUpload",
        "PutImage",
        "UploadLayerPart",
    ]
    return [
        {"Sid": "LogInToRegistry", "Effect": "Allow", "Action": "ecr:GetAuthorizationToken", "Resource": "*"},
        {
            "Sid": "PushImages",
            "Effect": "Allow",
            "Action": [f"ecr:{action}" for action in actions],
            "Resource": repository,
        },
    ]
