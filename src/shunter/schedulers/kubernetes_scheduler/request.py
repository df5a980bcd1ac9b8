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
from shunter._toolkit import race_lease
from shunter.errors import ConfigError
from shunter.redaction import Redactor
from shunter.schedulers.kubernetes_scheduler import names, result_containers
from shunter.schedulers.kubernetes_scheduler.code_objects import CodeObjects
from shunter.schedulers.kubernetes_scheduler.failure_policy import failure_rules, note_of, restarted_codes
from shunter.schedulers.kubernetes_scheduler.options import AUTO, JOB, JOBSET, VOLCANO, KubernetesOpts
from shunter.schedulers.kubernetes_scheduler.pods import (
    FIELD_PATH,
    PodPlace,
    SecretValues,
    pod_template,
)
from shunter.schedulers.kubernetes_scheduler.rules import check_manifests, check_options
from shunter.schedulers.native_retries import backend_retries
from shunter.schedulers.toolkit_supervision import (
    EndRules,
    check_roles,
    check_variables,
    secret_of,
    warnings_of,
    with_variables,
)
from shunter.specs.app import AppDef, RetryPolicy, Role
from shunter.specs.training import CALL_KEY, DOCUMENT, lost_results, specification
from shunter.system.identity import user_name
from shunter.workspace.toolkit_files import needs_toolkit

JOBSET_API = "jobset.x-k8s.io/v1alpha2"
VOLCANO_API = "batch.volcano.sh/v1alpha1"
#: Replaced at the submission by the version that the cluster has.
PODGROUP_API = "scheduling.k8s.io/v1beta1"
REDACTED = "<redacted>"
#: The variable with the number of a pod's attempt, and where the Job controller and JobSet's have it.
#: https://kubernetes.io/docs/reference/labels-annotations-taints/#batch-kubernetes-io-job-index-failure-count
ATTEMPT = "SHUNTER_ATTEMPT"
#: Policy of a Volcano job, before those of other failures.
_LOST_RACE = [{"exitCode": race_lease.LOST, "action": "TerminateJob"}]
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
        code: the code that travels in Secrets; None without code, or if it is in the images.
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
    code: CodeObjects | None = field(default=None, repr=False)
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

    def code_secrets(self) -> list[dict[str, Any]]:
        """Return the Secrets with the job's code, which are made before all other objects."""
        if self.code is None:
            return []
        labels = names.labels_of(self.resource)
        own = {
            key: value
            for key, value in labels.items()
            if key not in (names.QUEUE_LABEL, names.PRIORITY_LABEL)
        }
        return self.code.manifests({"name": self.name, "namespace": self.namespace, "labels": own})

    def shown(self) -> dict[str, Any]:
        """Return all objects as a list that kubectl reads, without the values of secrets."""
        manifests = [*self.code_secrets(), *self.manifests]
        return {"apiVersion": "v1", "kind": "List", "items": [_shown(each) for each in manifests]}

    def __str__(self) -> str:
        return json.dumps(self.shown(), indent=2, ensure_ascii=False)

    def __repr__(self) -> str:
        return str(self)


def _shown(manifest: dict[str, Any]) -> dict[str, Any]:
    if manifest["kind"] != "Secret":
        shown: dict[str, Any] = Redactor().json(manifest)
        return shown
    kind = "data" if "data" in manifest else "stringData"
    return {**manifest, kind: dict.fromkeys(manifest[kind], REDACTED)}


def make_request(
    app: AppDef,
    cfg: Mapping[str, Any],
    session: str,
    name: str = "",
    kind: str = "",
    code: CodeObjects | None = None,
) -> KubernetesJob:
    """Make a job's objects and check them offline, without changing the job.

    Args:
        app: the job.
        cfg: resolved options.
        session: the session of the job's handle.
        name: name of the job; a unique one by default.
        kind: what it becomes, instead of what the options say.
        code: the code that travels in Secrets.

    Raises:
        ConfigError: Kubernetes cannot run the job, or would refuse an object; all problems are reported.
    """
    opts = KubernetesOpts(**cfg)
    check_options(opts)
    kind = kind or _kind(app, opts)
    may_be_jobset = kind == AUTO and len(app.roles) > 1
    kind = JOB if kind == AUTO else kind
    return _ObjectPlan(app, opts, session, kind, name, may_be_jobset, code).request()


def _kind(app: AppDef, opts: KubernetesOpts) -> str:
    if opts.kind:
        return opts.kind
    if opts.queue:
        return VOLCANO
    # each Job is a workload to Kueue, which would admit one role without the other
    return JOBSET if opts.local_queue and len(app.roles) > 1 else JOB


class _RolePlan:
    """A role, and how its failures are treated.

    Args:
        index: index of the role.
        role: the role.
        part: what stands for it in names.
        opts: the options.
        kind: what the job becomes.
    """

    def __init__(self, index: int, role: Role, part: str, opts: KubernetesOpts, kind: str) -> None:
        self.index = index
        self.part = part
        self.retries = backend_retries("kubernetes", opts.retry, role.max_retries) if opts.retry else None
        self.role = replace(role, max_retries=self.retries.counted) if self.retries else role
        self.restarts_alone = role.retry_policy is RetryPolicy.REPLICA and role.num_replicas > 1
        # the only replica must know of its failures to notify of the last one; it is retried in the same way
        must_know = bool(opts.notify and self.role.max_retries and kind == JOB and role.num_replicas == 1)
        #: Whether failures are counted for each replica separately.
        self.per_replica = self.restarts_alone or must_know
        self.is_in_race = race_lease.VARIABLE in role.env
        #: Exit codes after which nothing is restarted.
        self.final_codes = [*(opts.final_exit_codes or ()), *([race_lease.LOST] if self.is_in_race else ())]
        #: The rules of a Job, each with the class of failures that it is for.
        self.rules = failure_rules(
            part, per_replica=self.per_replica, retries=self.retries, final_codes=self.final_codes
        )

    @property
    def notes(self) -> dict[str, str]:
        """The annotation by which a Job's status names the class that ended it."""
        return {names.NOTE_RETRY: note_of(self.rules)} if self.retries else {}

    def check(self, kind: str, role_count: int) -> None:
        """Refuse retries that the kind of job does not have."""
        role = self.role
        if not role.max_retries or role.retry_policy is RetryPolicy.REPLICA:
            return
        is_application = role.retry_policy is RetryPolicy.APPLICATION
        if role.num_replicas == 1 and not (role_count > 1 and is_application):
            return
        if kind == JOB:
            raise ConfigError(
                f"role {role.name!r}: a Kubernetes Job restarts replicas one by one, and max_retries="
                f"{role.max_retries} with retry_policy={role.retry_policy.value} restarts them together",
                hint="Use -cfg kind=jobset where the cluster has JobSet, or retry_policy=REPLICA.",
            )
        if not is_application and (role_count > 1 or kind == VOLCANO):
            raise ConfigError(
                f"role {role.name!r}: {kind} restarts the job as a whole, not a single role",
                hint="Use retry_policy=APPLICATION or REPLICA.",
            )


class _ObjectPlan:
    """What the objects of a job have in common."""

    def __init__(
        self,
        app: AppDef,
        opts: KubernetesOpts,
        session: str,
        kind: str,
        name: str,
        may_be_jobset: bool,
        code: CodeObjects | None,
    ) -> None:
        self.app = app
        self.opts = opts
        self.session = session
        self.kind = kind
        self.may_be_jobset = may_be_jobset
        self.code = code
        parts = names.role_parts([role.name for role in app.roles])
        counts = [role.num_replicas for role in app.roles]
        self.in_roles = len(app.roles) > 1 or kind != JOB
        self.is_group = sum(counts) > 1
        self.name = name or names.make_name(
            app.name,
            parts,
            counts,
            in_jobset=kind != JOB or may_be_jobset,  # whose names of pods are longer
            per_role=self.in_roles,
        )
        self.app_id = names.make_app_id(opts.namespace, self.name)
        self.roles = [
            _RolePlan(index, role, part, opts, kind)
            for index, (role, part) in enumerate(zip(app.roles, parts, strict=True))
        ]
        self.end_rules = EndRules(stopped="")
        if opts.notify or opts.hang_timeout is not None:
            self._have_it_supervised()
        self.secret = SecretValues()
        self.labels = self._labels()
        self.warnings: dict[str, None] = {}

    def request(self) -> KubernetesJob:
        """Make all objects."""
        for plan in self.roles:
            plan.check(self.kind, len(self.roles))
            self._warn_of_ignored(plan)
        running = {JOB: self._jobs, JOBSET: self._jobset, VOLCANO: self._volcano}[self.kind]()
        manifests = [*self._secret(), *self._service(), *self._pod_groups(), *running]
        check_manifests(manifests)
        is_signed = bool(secret_of(self.opts))
        supervised = warnings_of("kubernetes", self.opts, self.end_rules, hidden=True, is_signed=is_signed)
        return KubernetesJob(
            self.name,
            self.opts.namespace,
            self.kind,
            manifests,
            self.opts.context or "",
            self.opts.kubeconfig or "",
            self.may_be_jobset,
            [*self.warnings, *supervised],
            self.code,
        )

    def _warn_of_ignored(self, plan: _RolePlan) -> None:
        role = plan.role
        self.warnings |= dict.fromkeys(plan.retries.warnings if plan.retries else ())
        if self.kind != VOLCANO and not self.opts.gang and role.min_replicas not in (None, role.num_replicas):
            text = f"role {role.name!r}: min_replicas={role.min_replicas} is ignored: the job waits for all"
            self.warnings[f"{text} replicas; Volcano (queue=NAME) and gang=true honour it"] = None

    def _have_it_supervised(self) -> None:
        """Give the toolkit in the pods what it needs for notifications and hang detection."""
        opts, first = self.opts, self.roles[0]
        app = replace(self.app, roles=[plan.role for plan in self.roles])
        check_roles("kubernetes", app, opts, {role.name: DOCUMENT in role.env for role in app.roles})
        check_variables(opts, {**first.role.env, **(opts.secrets or {})})
        if opts.notify and first.role.max_retries:
            if self.kind == VOLCANO:
                raise ConfigError(
                    "notify: a pod of a Volcano job does not know whether it is the last attempt",
                    hint="Leave max_retries and retry out, or use another kind of job.",
                )
            path = _FAILURES_OF_INDEX if first.per_replica else _RESTARTS_OF_JOBSET
            codes = restarted_codes(rule for _, rule in first.rules)
            self.end_rules = EndRules(first.role.max_retries + 1, ATTEMPT, 0, codes, stopped="")
            env = {**first.role.env, ATTEMPT: f"{FIELD_PATH}{path}"}
            app = replace(app, roles=[replace(first.role, env=env), *app.roles[1:]])
        app = with_variables(app, opts, self.end_rules, secret_of(opts))
        for plan, role in zip(self.roles, app.roles, strict=True):
            plan.role = role

    def _labels(self) -> dict[str, str]:
        app_name, version = names.label_value(self.app.name), names.label_value(__version__)
        own = {
            names.LABEL_JOB: self.name,
            names.LABEL_KIND: self.kind,
            names.LABEL_APP_NAME: app_name,
            names.LABEL_USER: names.label_value(user_name()),
            names.LABEL_VERSION: version,
            names.LABEL_MANAGED_BY: names.MANAGED_BY,
            "app.kubernetes.io/name": app_name,
            "app.kubernetes.io/instance": self.name,
            "torchx.pytorch.org/version": version,
            "torchx.pytorch.org/app-name": app_name,
        }
        metadata = self.app.metadata.items()
        notes = {key: names.label_value(str(value)) for key, value in metadata if names.is_label_key(key)}
        return {**notes, **(self.opts.labels or {}), **own}

    def _metadata(self, name: str) -> dict[str, Any]:
        return {"name": name, "namespace": self.opts.namespace, "labels": dict(self.labels)}

    def _running(self, api: str, kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
        """Return an object that runs pods, with what `status` and Kueue read from it."""
        metadata = self._metadata(name)
        if self.opts.local_queue:
            metadata["labels"][names.QUEUE_LABEL] = self.opts.local_queue
            if self.opts.workload_priority:
                metadata["labels"][names.PRIORITY_LABEL] = self.opts.workload_priority
            spec["suspend"] = True  # Kueue resumes it
        layout = [[plan.role.name, plan.role.num_replicas] for plan in self.roles]
        notes = {names.NOTE_LAYOUT: json.dumps(layout), names.NOTE_SESSION: self.session}
        if self.app.metadata:
            notes[names.NOTE_METADATA] = json.dumps(dict(self.app.metadata), ensure_ascii=False)
        metadata["annotations"] = {**(self.opts.annotations or {}), **notes}
        return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}

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
                "metadata": self._metadata(self._job_name(plan)),
                "spec": {
                    "schedulingPolicy": {
                        "gang": {"minCount": plan.role.min_replicas or plan.role.num_replicas}
                    }
                },
            }
            for plan in self.roles
        ]

    # ---- pods

    def _job_name(self, plan: _RolePlan) -> str:
        return f"{self.name}-{plan.part}" if self.in_roles else self.name

    def _pod(self, plan: _RolePlan, replica: int | None = None) -> dict[str, Any]:
        """Return the template of a role's pods, or of one of its pods."""
        role, first = plan.role, self.roles[0]
        has_rank0 = plan.index == 0 and replica in (None, 0)
        is_shared = has_rank0 and replica is None and role.num_replicas > 1
        rank0 = "localhost"
        if self.is_group and (is_shared or not has_rank0):
            host = f"{self._job_name(first)}-0" if self.kind == JOB else f"{self.name}-{first.part}-0-0"
            rank0 = f"{host}.{self.name}"
        subdomain = self.name if self.kind == JOB and self.is_group else ""
        place = PodPlace(plan.index, plan.part, replica, rank0, is_shared, subdomain)
        pod = pod_template(role, place, self.opts, self.app_id, self.session, self.secret)
        mounted = (mount["mountPath"] for mount in pod["spec"]["containers"][0].get("volumeMounts", ()))
        lost = lost_results(specification(role.metadata), mounted)
        if lost and CALL_KEY not in role.metadata:  # what a function returns comes with the log
            text = (
                f"role {role.name!r}: a pod keeps no files, so what the script writes to {lost} is lost when"
            )
            most = max(1, self.opts.logged_results)
            text = f"{text} it ends, but for {most} MiB that come with its logs (shunter fetch)"
            hint = "name a place for results (--output s3://bucket/prefix), or mount a claim there"
            self.warnings[f"{text}: {hint}"] = None
        if self.code is not None and (self.code.has_workspace or needs_toolkit(role)):
            self.code.add_to(pod, self.name, with_base=needs_toolkit(role))
        results = result_containers.count_for(self.opts.logged_results)
        if results and (specification(role.metadata).get("output") or {}).get("log"):
            result_containers.add_to(pod, results)
        if self.opts.gang and self.kind == JOB:
            pod["spec"]["schedulingGroup"] = {"podGroupName": self._job_name(plan)}
        metadata = pod["metadata"]
        if self.opts.topology:
            kind, _, level = self.opts.topology.partition(":")
            metadata.setdefault("annotations", {})[names.TOPOLOGY_NOTES[kind]] = level or "true"
        labels = {
            **self.labels,
            names.LABEL_ROLE: names.label_value(role.name),
            names.LABEL_ROLE_INDEX: str(plan.index),
        }
        if replica is not None:
            labels[names.LABEL_REPLICA] = str(replica)
        labels |= {old: labels[ours] for old, ours in names.OLD_LABELS.items() if ours in labels}
        metadata["labels"] = {**(metadata.get("labels") or {}), **labels}
        return pod

    def _job_spec(self, plan: _RolePlan) -> dict[str, Any]:
        role, most = plan.role, self.opts.max_running
        if most is not None and (most < 1 or self.kind != JOB or not plan.per_replica or self.opts.gang):
            raise ConfigError(
                f"max_running={most} is not possible: it is for Jobs whose replicas start one by one",
                hint="Give the role the retry policy replica, and leave gang and other kinds out.",
            )
        spec: dict[str, Any] = {
            "completionMode": "Indexed",
            "completions": role.num_replicas,
            "parallelism": min(most or role.num_replicas, role.num_replicas),
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [rule for _, rule in plan.rules]},
        }
        if plan.per_replica:
            spec["backoffLimitPerIndex"] = role.max_retries
        else:  # a JobSet counts the restarts of all by itself
            spec["backoffLimit"] = role.max_retries if self.kind == JOB else 0
        if self.opts.timeout is not None:
            spec["activeDeadlineSeconds"] = self.opts.timeout
        # the only replica of a role need not ask for its index
        spec["template"] = self._pod(plan, 0 if role.num_replicas == 1 else None)
        return spec

    def _keeping(self) -> dict[str, int]:
        ttl = self.opts.ttl
        return {} if ttl is None or ttl < 0 else {"ttlSecondsAfterFinished": ttl}

    def _jobs(self) -> list[dict[str, Any]]:
        jobs = []
        for plan in self.roles:
            spec = {**self._job_spec(plan), **self._keeping()}
            jobs.append(self._running("batch/v1", "Job", self._job_name(plan), spec))
            jobs[-1]["metadata"]["annotations"] |= plan.notes
        return jobs

    def _jobset(self) -> list[dict[str, Any]]:
        replicated = []
        for plan in self.roles:
            metadata = {"labels": dict(self.labels), **({"annotations": plan.notes} if plan.notes else {})}
            template = {"metadata": metadata, "spec": self._job_spec(plan)}
            replicated.append({"name": plan.part, "replicas": 1, "template": template})
        restarts = max(0 if plan.restarts_alone else plan.role.max_retries for plan in self.roles)
        policy: dict[str, Any] = {"maxRestarts": restarts}
        if restarts and (self.opts.retry or any(plan.final_codes for plan in self.roles)):
            reasons = ["PodFailurePolicy"]
            rule = {"name": "finalExitCodes", "action": "FailJobSet", "onJobFailureReasons": reasons}
            policy["rules"] = [rule]
        spec = {
            "replicatedJobs": replicated,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": policy,
            **self._keeping(),
        }
        return [self._running(JOBSET_API, "JobSet", self.name, spec)]

    def _volcano(self) -> list[dict[str, Any]]:
        opts, roles = self.opts, [plan.role for plan in self.roles]
        tasks = [self._task(plan, k) for plan in self.roles for k in range(plan.role.num_replicas)]
        restarts_all = any(
            role.max_retries and role.retry_policy is not RetryPolicy.REPLICA for role in roles
        )
        spec: dict[str, Any] = {
            "schedulerName": "volcano",
            "queue": opts.queue or "default",
            "minAvailable": sum(task["minAvailable"] for task in tasks),
            # Volcano gives up when it has counted this many restarts, before making the last one
            "maxRetry": max(role.max_retries for role in roles) + 1,
            "plugins": {"svc": ["--publish-not-ready-addresses"], "env": []},
            "policies": [
                *(_LOST_RACE if any(plan.is_in_race for plan in self.roles) else ()),
                {"event": "PodEvicted", "action": "RestartJob"},
                {"event": "PodFailed", "action": "RestartJob" if restarts_all else "TerminateJob"},
            ],
            "tasks": tasks,
            **self._keeping(),
        }
        if opts.priority_class:
            spec["priorityClassName"] = opts.priority_class
        return [self._running(VOLCANO_API, "Job", self.name, spec)]

    def _task(self, plan: _RolePlan, replica: int) -> dict[str, Any]:
        role, pod = plan.role, self._pod(plan, replica)
        if self.opts.timeout is not None:
            pod["spec"]["activeDeadlineSeconds"] = self.opts.timeout
        needed = role.num_replicas if role.min_replicas is None else role.min_replicas
        task: dict[str, Any] = {
            "name": f"{plan.part}-{replica}",
            "replicas": 1,
            "minAvailable": int(replica < needed),
            "template": pod,
        }
        if role.retry_policy is RetryPolicy.REPLICA and role.max_retries:  # a task is one replica
            task["maxRetry"] = role.max_retries + 1
            lost = _LOST_RACE if plan.is_in_race else []
            task["policies"] = [*lost, {"event": "PodFailed", "action": "RestartTask"}]
        return task


def as_jobset(job: KubernetesJob, app: AppDef, cfg: Mapping[str, Any], session: str) -> KubernetesJob:
    """Return the same job as a JobSet, for a cluster that has it."""
    made = make_request(app, cfg, session, job.name, JOBSET, job.code)
    return replace(made, context=job.context, kubeconfig=job.kubeconfig)
