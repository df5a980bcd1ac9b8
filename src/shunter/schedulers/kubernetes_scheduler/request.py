"""Make the objects of a job as plain data. Pure: the cluster is not asked, and no client is imported.

- **job** (default): an Indexed Job for each role, and a headless Service by which the pods find each other.
- **jobset**: one JobSet (``jobset.x-k8s.io``), which fails, restarts and is queued as a whole.
- **volcano**: one Volcano job, with a task for each replica, as TorchX makes it.

Retries: a Job restarts failed pods one by one, so a plain Job can repeat single replicas; what must be
restarted together needs JobSet or Volcano. Pods that the cluster takes away are replaced and not counted
(https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shunter import __version__
from shunter.errors import ConfigError
from shunter.redaction import Redactor
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.failure_policy import failure_rules, note_of, restarted_codes
from shunter.schedulers.kubernetes_scheduler.options import AUTO, JOB, JOBSET, VOLCANO, KubernetesOpts
from shunter.schedulers.kubernetes_scheduler.pods import (
    FIELD_PATH,
    PodPlace,
    SecretValues,
    pod_template,
    with_labels,
)
from shunter.schedulers.kubernetes_scheduler.rules import check_manifests, check_options
from shunter.schedulers.native_retries import BackendRetries, backend_retries
from shunter.schedulers.toolkit_supervision import (
    EndRules,
    check_roles,
    check_variables,
    secret_of,
    warnings_of,
    with_variables,
)
from shunter.specs.app import AppDef, RetryPolicy, Role
from shunter.specs.training import DOCUMENT, lost_results, specification
from shunter.system.identity import user_name

JOBSET_API = "jobset.x-k8s.io/v1alpha2"
VOLCANO_API = "batch.volcano.sh/v1alpha1"
#: Replaced at the submission by the version that the cluster has.
PODGROUP_API = "scheduling.k8s.io/v1beta1"
REDACTED = "<redacted>"
#: The variable with the number of a pod's attempt, and where the Job controller and JobSet's have it.
#: https://kubernetes.io/docs/reference/labels-annotations-taints/#batch-kubernetes-io-job-index-failure-count
ATTEMPT = "SHUNTER_ATTEMPT"
_FAILURES_OF_INDEX = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"
_RESTARTS_OF_JOBSET = "metadata.labels['jobset.sigs.k8s.io/restart-attempt']"


@dataclass
class KubernetesJob:
    """The objects of a job.

    Args:
        name: unique name of the job.
        namespace: its namespace.
        kind: job, jobset or volcano.
        manifests: the objects, in the order in which they are made; those that run pods come last.
        context: context of the kubeconfig; "" for its current one.
        kubeconfig: the kubeconfig; "" for the usual one.
        may_be_jobset: whether the cluster decides if it becomes a JobSet.
        warnings: what is ignored.
        images_to_push: unused; kept for callers of TorchX.
    """

    name: str
    namespace: str
    kind: str
    manifests: list[dict[str, Any]]
    context: str = ""
    kubeconfig: str = ""
    may_be_jobset: bool = False
    warnings: list[str] = field(default_factory=list)
    images_to_push: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def app_id(self) -> str:
        """The job's app id."""
        return names.make_app_id(self.namespace, self.name)

    @property
    def resource(self) -> dict[str, Any]:
        """The object that runs the pods; the first of them, if there is one for each role."""
        return self.running()[0]

    def running(self) -> list[dict[str, Any]]:
        """Return the objects that run pods."""
        return [each for each in self.manifests if each["kind"] in ("Job", "JobSet")]

    def shown(self) -> dict[str, Any]:
        """Return all objects as a list that kubectl reads, without the values of secrets."""
        return {"apiVersion": "v1", "kind": "List", "items": [_shown(each) for each in self.manifests]}

    def __str__(self) -> str:
        return json.dumps(self.shown(), indent=2, ensure_ascii=False)

    def __repr__(self) -> str:
        return str(self)


def _shown(manifest: dict[str, Any]) -> dict[str, Any]:
    if manifest["kind"] != "Secret":
        shown: dict[str, Any] = Redactor().json(manifest)
        return shown
    return {**manifest, "stringData": dict.fromkeys(manifest["stringData"], REDACTED)}


def make_request(
    app: AppDef, cfg: Mapping[str, Any], session: str, name: str = "", kind: str = ""
) -> KubernetesJob:
    """Make a job's objects and check them offline, without changing the job.

    Args:
        app: the job.
        cfg: resolved options.
        session: the session of the job's handle.
        name: name of the job; a unique one by default.
        kind: what it becomes, instead of what the options say.

    Raises:
        ConfigError: Kubernetes cannot run the job, or would refuse an object; all problems are reported.
    """
    opts = KubernetesOpts(**cfg)
    check_options(opts)
    asked = kind or _kind(app, opts)
    return _ObjectPlan(app, opts, session, JOB if asked == AUTO else asked, name, asked == AUTO).request()


def _kind(app: AppDef, opts: KubernetesOpts) -> str:
    if opts.kind:
        return opts.kind
    if opts.queue:
        return VOLCANO
    # each Job is a workload to Kueue, which would admit one role without the other
    return JOBSET if opts.local_queue and len(app.roles) > 1 else JOB


class _ObjectPlan:
    """What the objects of a job have in common."""

    def __init__(
        self, app: AppDef, opts: KubernetesOpts, session: str, kind: str, name: str, may_be_jobset: bool
    ) -> None:
        self.retries = _retries_of(app, opts)
        self.app = _with_retries(app, self.retries)
        self.opts = opts
        self.session = session
        self.kind = kind
        self.parts = names.role_parts([role.name for role in app.roles])
        self.counts = [role.num_replicas for role in app.roles]
        self.in_roles = len(app.roles) > 1 or kind != JOB
        self.may_be_jobset = may_be_jobset and len(app.roles) > 1
        self.name = name or names.make_name(
            app.name,
            self.parts,
            self.counts,
            in_jobset=kind != JOB or self.may_be_jobset,  # whose names of pods are longer
            per_role=self.in_roles,
        )
        self.app_id = names.make_app_id(opts.namespace, self.name)
        self.is_group = sum(self.counts) > 1
        self.end_rules = EndRules(stopped="")
        if opts.notify or opts.hang_timeout is not None:
            self._have_it_supervised()
        self.secret = SecretValues()
        self.labels, self.notes = self._labels(), self._notes()
        #: Per role, where its script leaves results that are lost.
        self.lost: dict[str, str] = {}

    def request(self) -> KubernetesJob:
        """Make all objects."""
        _check_retries(self.app, self.kind)
        running = {JOB: self._jobs, JOBSET: self._jobset, VOLCANO: self._volcano}[self.kind]()
        manifests = [*self._secret(), *self._service(), *self._pod_groups(), *running]
        check_manifests(manifests)
        return KubernetesJob(
            self.name,
            self.opts.namespace,
            self.kind,
            manifests,
            self.opts.context or "",
            self.opts.kubeconfig or "",
            self.may_be_jobset,
            [
                *(warning for role in self.app.roles for warning in _ignored(role, self.kind)),
                *(
                    f"role {name!r}: a pod keeps no files, so what the script writes to {place} is lost when "
                    "it ends: name a place for results (--output s3://bucket/prefix), or mount a claim there"
                    for name, place in self.lost.items()
                ),
                *dict.fromkeys(text for each in self.retries if each for text in each.warnings),
                *warnings_of(
                    "kubernetes", self.opts, self.end_rules, hidden=True, is_signed=bool(secret_of(self.opts))
                ),
            ],
        )

    def _have_it_supervised(self) -> None:
        """Give the toolkit in the pods what it needs for notifications and hang detection."""
        app, opts = self.app, self.opts
        check_roles("kubernetes", app, opts, {role.name: DOCUMENT in role.env for role in app.roles})
        role = app.roles[0]
        check_variables(opts, {**role.env, **(opts.secrets or {})})
        if opts.notify and role.max_retries:
            if self.kind == VOLCANO:
                raise ConfigError(
                    "notify: a pod of a Volcano job does not know whether it is the last attempt",
                    hint="Leave max_retries and retry out, or use another kind of job.",
                )
            of_index = self._counts_by_index(role)
            path = _FAILURES_OF_INDEX if of_index else _RESTARTS_OF_JOBSET
            codes = restarted_codes(rule for _, rule in self._failure_rules(0))
            self.end_rules = EndRules(role.max_retries + 1, ATTEMPT, 0, codes, stopped="")
            role = replace(role, env={**role.env, ATTEMPT: f"{FIELD_PATH}{path}"})
            app = replace(app, roles=[role, *app.roles[1:]])
        self.app = with_variables(app, opts, self.end_rules, secret_of(opts))

    def _counts_by_index(self, role: Role) -> bool:
        """Tell whether failures are counted for each replica separately.

        A single replica's failures are also counted like that if it must know of them; its job is retried in
        the same way.
        """
        wants_to_know = bool(self.opts.notify and role.max_retries and self.kind == JOB)
        return _is_alone(role) or (wants_to_know and role.num_replicas == 1)

    def _labels(self) -> dict[str, str]:
        own = {
            names.LABEL_JOB: self.name,
            names.LABEL_KIND: self.kind,
            names.LABEL_APP_NAME: names.label_value(self.app.name),
            names.LABEL_USER: names.label_value(user_name()),
            names.LABEL_VERSION: names.label_value(__version__),
            names.LABEL_MANAGED_BY: names.MANAGED_BY,
            "app.kubernetes.io/name": names.label_value(self.app.name),
            "app.kubernetes.io/instance": self.name,
            "torchx.pytorch.org/version": names.label_value(__version__),
            "torchx.pytorch.org/app-name": names.label_value(self.app.name),
        }
        notes = {
            key: names.label_value(str(value))
            for key, value in self.app.metadata.items()
            if names.is_label_key(key)
        }
        return {**notes, **(self.opts.labels or {}), **own}

    def _notes(self) -> dict[str, str]:
        layout = [[role.name, role.num_replicas] for role in self.app.roles]
        notes = {names.NOTE_LAYOUT: json.dumps(layout), names.NOTE_SESSION: self.session}
        if self.app.metadata:
            notes[names.NOTE_METADATA] = json.dumps(dict(self.app.metadata), ensure_ascii=False)
        return {**(self.opts.annotations or {}), **notes}

    def _metadata(self, name: str, *, queued: bool = False) -> dict[str, Any]:
        labels = dict(self.labels)
        if queued and self.opts.local_queue:
            labels[names.QUEUE_LABEL] = self.opts.local_queue
            if self.opts.workload_priority:
                labels[names.PRIORITY_LABEL] = self.opts.workload_priority
        found: dict[str, Any] = {"name": name, "namespace": self.opts.namespace, "labels": labels}
        if queued:
            found["annotations"] = dict(self.notes)
        return found

    # ---- beside the pods

    def _secret(self) -> list[dict[str, Any]]:
        if not self.secret.values:
            return []
        body = {"type": "Opaque", "immutable": True, "stringData": self.secret.values}
        return [{"apiVersion": "v1", "kind": "Secret", "metadata": self._metadata(self.name), **body}]

    def _service(self) -> list[dict[str, Any]]:
        if self.kind != JOB or not self.is_group:  # JobSet and Volcano make theirs
            return []
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # replicas look for each other before they are ready
            "selector": {names.LABEL_JOB: self.name},
        }
        metadata = self._metadata(self.name)
        return [{"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}]

    def _pod_groups(self) -> list[dict[str, Any]]:
        """Return Kubernetes' own pod groups, each of which is placed as a whole."""
        if not self.opts.gang or self.kind != JOB:
            return []
        return [
            {
                "apiVersion": PODGROUP_API,
                "kind": "PodGroup",
                "metadata": self._metadata(self._job_name(part)),
                "spec": {"schedulingPolicy": {"gang": {"minCount": role.min_replicas or role.num_replicas}}},
            }
            for role, part in zip(self.app.roles, self.parts, strict=True)
        ]

    # ---- pods

    def _job_name(self, part: str) -> str:
        return f"{self.name}-{part}" if self.in_roles else self.name

    def _rank0(self) -> str:
        if not self.is_group:
            return "localhost"
        host = {JOB: self._job_name(self.parts[0]) + "-0"}.get(self.kind, f"{self.name}-{self.parts[0]}-0-0")
        return f"{host}.{self.name}"

    def _pod(self, index: int, replica: int | None = None) -> dict[str, Any]:
        role, part = self.app.roles[index], self.parts[index]
        has_rank0 = index == 0 and replica in (None, 0)
        is_shared = has_rank0 and replica is None and role.num_replicas > 1
        rank0 = "localhost" if has_rank0 and not is_shared else self._rank0()
        subdomain = self.name if self.kind == JOB and self.is_group else ""
        place = PodPlace(index, part, replica, rank0, is_shared, subdomain)
        pod = pod_template(role, place, self.opts, self.app_id, self.session, self.secret)
        mounted = (mount["mountPath"] for mount in pod["spec"]["containers"][0].get("volumeMounts", ()))
        if lost := lost_results(specification(role.metadata), mounted):
            self.lost[role.name] = lost
        labels = {
            **self.labels,
            names.LABEL_ROLE: names.label_value(role.name),
            names.LABEL_ROLE_INDEX: str(index),
        }
        if replica is not None:
            labels[names.LABEL_REPLICA] = str(replica)
        for old, ours in names.OLD_LABELS.items():
            if ours in labels:
                labels[old] = labels[ours]
        if self.opts.gang and self.kind == JOB:
            pod["spec"]["schedulingGroup"] = {"podGroupName": self._job_name(part)}
        if self.opts.topology:
            kind, _, level = self.opts.topology.partition(":")
            notes = pod["metadata"].setdefault("annotations", {})
            notes[names.TOPOLOGY_NOTES[kind]] = level or "true"
        return with_labels(pod, labels)

    def _job_spec(self, index: int) -> dict[str, Any]:
        role = self.app.roles[index]
        per_replica = self._counts_by_index(role)
        most = self.opts.max_running
        if most is not None and (most < 1 or self.kind != JOB or not per_replica or self.opts.gang):
            raise ConfigError(
                f"max_running={most} is not possible: it is for Jobs whose replicas start one by one",
                hint="Give the role the retry policy replica, and leave gang and other kinds out.",
            )
        spec: dict[str, Any] = {
            "completionMode": "Indexed",
            "completions": role.num_replicas,
            "parallelism": min(most or role.num_replicas, role.num_replicas),
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [rule for _, rule in self._failure_rules(index)]},
        }
        if per_replica:
            spec["backoffLimitPerIndex"] = role.max_retries
        else:  # a JobSet counts the restarts of all by itself
            spec["backoffLimit"] = role.max_retries if self.kind == JOB else 0
        if self.opts.timeout is not None:
            spec["activeDeadlineSeconds"] = self.opts.timeout
        # the only replica of a role need not ask for its index
        spec["template"] = self._pod(index, 0 if role.num_replicas == 1 else None)
        return spec

    def _failure_rules(self, index: int) -> list[tuple[str, dict[str, Any]]]:
        return failure_rules(
            self.parts[index],
            per_replica=self._counts_by_index(self.app.roles[index]),
            retries=self.retries[index],
            final_codes=self.opts.final_exit_codes,
        )

    def _note_of_rules(self, index: int) -> dict[str, str]:
        """Return the annotation by which a Job's status names the class that ended it."""
        if self.retries[index] is None:
            return {}
        return {names.NOTE_RETRY: note_of(self._failure_rules(index))}

    def _keeping(self) -> dict[str, int]:
        ttl = self.opts.ttl
        return {} if ttl is None or ttl < 0 else {"ttlSecondsAfterFinished": ttl}

    def _waiting(self) -> dict[str, bool]:
        return {"suspend": True} if self.opts.local_queue else {}  # Kueue resumes it

    def _jobs(self) -> list[dict[str, Any]]:
        jobs = []
        for index, part in enumerate(self.parts):
            metadata = self._metadata(self._job_name(part), queued=True)
            metadata["annotations"] |= self._note_of_rules(index)
            spec = {**self._job_spec(index), **self._keeping(), **self._waiting()}
            jobs.append({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec})
        return jobs

    def _jobset(self) -> list[dict[str, Any]]:
        replicated = []
        for index, part in enumerate(self.parts):
            labelled: dict[str, Any] = {"labels": dict(self.labels)}
            if note := self._note_of_rules(index):
                labelled["annotations"] = note
            template = {"metadata": labelled, "spec": self._job_spec(index)}
            replicated.append({"name": part, "replicas": 1, "template": template})
        restarts = max(0 if _is_alone(role) else role.max_retries for role in self.app.roles)
        policy: dict[str, Any] = {"maxRestarts": restarts}
        if restarts and (self.opts.final_exit_codes or self.opts.retry):
            reasons = ["PodFailurePolicy"]
            rule = {"name": "finalExitCodes", "action": "FailJobSet", "onJobFailureReasons": reasons}
            policy["rules"] = [rule]
        spec = {
            "replicatedJobs": replicated,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": policy,
            **self._keeping(),
            **self._waiting(),
        }
        metadata = self._metadata(self.name, queued=True)
        return [{"apiVersion": JOBSET_API, "kind": "JobSet", "metadata": metadata, "spec": spec}]

    def _volcano(self) -> list[dict[str, Any]]:
        opts = self.opts
        tasks = [
            self._task(index, replica) for index, count in enumerate(self.counts) for replica in range(count)
        ]
        together = [
            role.max_retries for role in self.app.roles if role.retry_policy is not RetryPolicy.REPLICA
        ]
        retries = max(together, default=0)
        failed = "RestartJob" if retries else "TerminateJob"
        spec: dict[str, Any] = {
            "schedulerName": "volcano",
            "queue": opts.queue or "default",
            "minAvailable": sum(task["minAvailable"] for task in tasks),
            # Volcano gives up when it has counted this many restarts, before making the last one
            "maxRetry": max(role.max_retries for role in self.app.roles) + 1,
            "plugins": {"svc": ["--publish-not-ready-addresses"], "env": []},
            "policies": [
                {"event": "PodEvicted", "action": "RestartJob"},
                {"event": "PodFailed", "action": failed},
            ],
            "tasks": tasks,
            **self._keeping(),
        }
        if opts.priority_class:
            spec["priorityClassName"] = opts.priority_class
        metadata = self._metadata(self.name, queued=True)
        return [{"apiVersion": VOLCANO_API, "kind": "Job", "metadata": metadata, "spec": spec}]

    def _task(self, index: int, replica: int) -> dict[str, Any]:
        role = self.app.roles[index]
        pod = self._pod(index, replica)
        if self.opts.timeout is not None:
            pod["spec"]["activeDeadlineSeconds"] = self.opts.timeout
        needed = role.num_replicas if role.min_replicas is None else role.min_replicas
        task: dict[str, Any] = {
            "name": f"{self.parts[index]}-{replica}",
            "replicas": 1,
            "minAvailable": int(replica < needed),
            "template": pod,
        }
        if role.retry_policy is RetryPolicy.REPLICA and role.max_retries:  # a task is one replica
            task["maxRetry"] = role.max_retries + 1
            task["policies"] = [{"event": "PodFailed", "action": "RestartTask"}]
        return task


def _retries_of(app: AppDef, opts: KubernetesOpts) -> list[BackendRetries | None]:
    """Return by role what is asked for by class of failure."""
    if not opts.retry:
        return [None] * len(app.roles)
    return [backend_retries("kubernetes", opts.retry, role.max_retries) for role in app.roles]


def _with_retries(app: AppDef, retries: list[BackendRetries | None]) -> AppDef:
    """Return a job whose roles are retried as often as their classes are."""
    roles = [
        role if each is None else replace(role, max_retries=each.counted)
        for role, each in zip(app.roles, retries, strict=True)
    ]
    return replace(app, roles=roles)


def _is_alone(role: Role) -> bool:
    """Tell whether each replica of a role restarts on its own."""
    return role.retry_policy is RetryPolicy.REPLICA and role.num_replicas > 1


def _check_retries(app: AppDef, kind: str) -> None:
    """Refuse retries that the kind of job does not have."""
    for role in app.roles:
        if not role.max_retries or role.retry_policy is RetryPolicy.REPLICA:
            continue
        others = len(app.roles) > 1
        together = role.num_replicas > 1 or (others and role.retry_policy is RetryPolicy.APPLICATION)
        if kind == JOB and together:
            raise ConfigError(
                f"role {role.name!r}: a Kubernetes Job restarts replicas one by one, and max_retries="
                f"{role.max_retries} with retry_policy={role.retry_policy.value} restarts them together",
                hint="Use -cfg kind=jobset where the cluster has JobSet, or retry_policy=REPLICA.",
            )
        if kind != JOB and role.retry_policy is RetryPolicy.ROLE and (others or kind == VOLCANO) and together:
            raise ConfigError(
                f"role {role.name!r}: {kind} restarts the job as a whole, not a single role",
                hint="Use retry_policy=APPLICATION or REPLICA.",
            )


def _ignored(role: Role, kind: str) -> list[str]:
    """Return warnings about settings that have no effect on Kubernetes."""
    if kind == VOLCANO or role.min_replicas in (None, role.num_replicas):
        return []
    text = f"role {role.name!r}: min_replicas={role.min_replicas} is ignored: the job waits for all replicas"
    return [f"{text}; Volcano (queue=NAME) and gang=true honour it"]


def as_jobset(job: KubernetesJob, app: AppDef, cfg: Mapping[str, Any], session: str) -> KubernetesJob:
    """Return the same job as a JobSet, for a cluster that has it."""
    made = make_request(app, cfg, session, job.name, JOBSET)
    return replace(made, context=job.context, kubeconfig=job.kubeconfig)
