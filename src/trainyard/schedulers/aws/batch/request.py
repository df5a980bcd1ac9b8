"""From a job and options to the requests that Batch gets: a job definition, and a job made from it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trainyard.errors import ConfigError
from trainyard.schedulers.aws.batch import names
from trainyard.schedulers.aws.batch.commands import OF_THE_RUN, program
from trainyard.schedulers.aws.batch.containers import container
from trainyard.schedulers.aws.batch.definitions import named
from trainyard.schedulers.aws.batch.options import FARGATE, AWSBatchOpts
from trainyard.schedulers.aws.batch.retries import retry_strategy
from trainyard.schedulers.aws.batch.rules import check_options, check_requests
from trainyard.schedulers.aws.batch.shapes import ARRAY, MULTINODE, Group, layout
from trainyard.schedulers.ids import make_unique
from trainyard.specs.app import AppDef
from trainyard.specs.substitution import macros
from trainyard.system.identity import user_name

_NOT_IN_TAGS = re.compile(r"[^\w\s.:/=+\-@]")


@dataclass
class BatchJob:
    """The requests of a job.

    Args:
        name: name of the job; no other has it.
        queue: the queue, by name or ARN.
        share_id: the share identifier.
        job_def: parameters of ``RegisterJobDefinition``. It holds nothing that is different for every run,
            so that it can be used again.
        images_to_push: not used: images are shipped before. Kept for callers of the predecessor.
        submission: parameters of ``SubmitJob``.
        region: region that the job is for; None for that of the environment.
        profile: profile to submit it with; None for that of the environment.
    """

    name: str
    queue: str
    share_id: str | None
    job_def: dict[str, Any]
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict)
    submission: dict[str, Any] = field(default_factory=dict)
    region: str | None = None
    profile: str | None = None

    @property
    def app_id(self) -> str:
        """The job's app id."""
        return names.make_app_id(self.queue, self.name)

    def shown(self) -> dict[str, Any]:
        """Return both requests, by operation, without the secrets that commands and environments may hold."""
        return {"RegisterJobDefinition": _shown(self.job_def), "SubmitJob": _shown(self.submission)}

    def __str__(self) -> str:
        return json.dumps(self.shown(), indent=2, ensure_ascii=False)

    def __repr__(self) -> str:
        return str(self)


def make_request(app: AppDef, cfg: Mapping[str, Any], session: str) -> BatchJob:
    """Make a job's requests and check them offline. Leaves the job as it is.

    Args:
        app: the job.
        cfg: resolved options.
        session: the session of the job's handle.

    Raises:
        ConfigError: Batch cannot run the job, or would refuse a request. All that its rules find is
            reported at once.
    """
    opts = AWSBatchOpts(**cfg)
    check_options(opts)
    kind, groups = layout(app, opts.array)
    if kind == MULTINODE and opts.platform == FARGATE:
        raise ConfigError(
            "Fargate runs no multi-node jobs",
            hint="Leave platform=FARGATE out, or make independent replicas an array job: -cfg array=true.",
        )
    name = make_unique(f"{app.name}-{opts.share_id}" if opts.share_id else app.name)
    app_id = names.make_app_id(opts.queue, name)
    tags = _tags(app, opts)
    containers = [_containers(group, opts, app_id, name, session) for group in groups]
    job_def = named({**_definition(app, opts, kind, groups, containers), "tags": tags}, app.name)
    submission: dict[str, Any] = {
        "jobName": name,
        "jobQueue": opts.queue,
        "jobDefinition": job_def["jobDefinitionName"],
        "tags": tags,
        **_overrides(kind, groups, containers),
    }
    if kind == ARRAY:
        submission["arrayProperties"] = {"size": groups[0].count}
    if opts.share_id:
        submission["shareIdentifier"] = opts.share_id
    job = BatchJob(
        name,
        opts.queue,
        opts.share_id,
        job_def,
        submission=submission,
        region=opts.region or names.region_of_arn(opts.queue),
        profile=opts.profile,
    )
    check_requests(job.job_def, job.submission)
    return job


def _containers(
    group: Group, opts: AWSBatchOpts, app_id: str, name: str, session: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a group's container as the definition has it, and what this run has otherwise."""
    lasting = program(group, names.make_app_id(opts.queue, macros.app_id), macros.app_id, session)
    actual = program(group, app_id, name, session)
    env = {key: value for key, value in lasting.env.items() if key not in OF_THE_RUN}
    definition = {
        **container(group.role, opts, group.kind),
        "command": lasting.command,
        "environment": _pairs(env),
    }
    changed = {key: value for key, value in actual.env.items() if env.get(key) != value}
    override: dict[str, Any] = {"environment": _pairs(changed)}
    if actual.command != lasting.command:
        override["command"] = actual.command
    return definition, override


def _definition(
    app: AppDef,
    opts: AWSBatchOpts,
    kind: str,
    groups: list[Group],
    containers: list[tuple[dict[str, Any], dict[str, Any]]],
) -> dict[str, Any]:
    retries = max(role.max_retries for role in app.roles)
    found: dict[str, Any] = {
        "type": "multinode" if kind == MULTINODE else "container",
        "retryStrategy": retry_strategy(retries, opts.retry_on, opts.retry_rules),
    }
    if kind == MULTINODE:
        found["nodeProperties"] = {
            "numNodes": sum(group.count for group in groups),
            "mainNode": 0,
            "nodeRangeProperties": [
                {"targetNodes": group.target_nodes, "container": definition}
                for group, (definition, _) in zip(groups, containers, strict=True)
            ],
        }
    else:
        found["containerProperties"] = containers[0][0]
    if opts.platform == FARGATE:
        found["platformCapabilities"] = [FARGATE]
    if opts.timeout is not None:
        found["timeout"] = {"attemptDurationSeconds": opts.timeout}
    if opts.share_id:
        found["schedulingPriority"] = opts.priority or 0
    return found


def _overrides(
    kind: str, groups: list[Group], containers: list[tuple[dict[str, Any], dict[str, Any]]]
) -> dict[str, Any]:
    if kind != MULTINODE:
        return {"containerOverrides": containers[0][1]}
    return {
        "nodeOverrides": {
            "nodePropertyOverrides": [
                {"targetNodes": group.target_nodes, "containerOverrides": override}
                for group, (_, override) in zip(groups, containers, strict=True)
            ]
        }
    }


def _pairs(env: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": key, "value": env[key]} for key in sorted(env)]


def _tags(app: AppDef, opts: AWSBatchOpts) -> dict[str, str]:
    from trainyard import __version__

    return {
        **app.metadata,
        **(opts.tags or {}),
        names.TAG_VERSION: __version__,
        names.TAG_APP_NAME: _tag_value(app.name),
        names.TAG_USER: _tag_value(opts.user or user_name()),
    }


def _tag_value(text: str) -> str:
    return _NOT_IN_TAGS.sub("-", text)[:256]


def _shown(value: Any, key: str = "") -> Any:
    """Return the requests without the secrets that commands and environments may hold."""
    from trainyard.redaction import Redactor

    if key == "command":
        return Redactor().args(value)
    if key == "environment":
        return Redactor().json(value)
    if isinstance(value, dict):
        return {name: _shown(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    return value
