"""Check whether a cluster could run jobs: connection, permissions, namespace, queue, add-ons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shunter.errors import ShunterError
from shunter.schedulers.job_images import check_images
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.client import ApiServer, KubernetesError
from shunter.schedulers.kubernetes_scheduler.jobs import (
    GROUP_OF_KIND,
    KUEUE,
    VISIBILITY,
    core_path,
    quantity,
)
from shunter.schedulers.kubernetes_scheduler.options import JOBSET, VOLCANO
from shunter.schedulers.kubernetes_scheduler.request import KubernetesJob
from shunter.schedulers.kubernetes_scheduler.rules import pod_templates
from shunter.schedulers.responses import Check
from shunter.specs.dryrun_info import AppDryRunInfo

#: The group of a cluster that makes nodes as pods need them.
AUTOSCALER = "karpenter.sh"
#: For how many nodes the report says why they cannot run a pod.
MOST_NODES = 4

#: What the commands do with each kind of object: (group, resource, verbs).
NEEDED = (
    ("batch", "jobs", ("create", "get", "list", "watch", "patch", "deletecollection")),
    ("", "services", ("create", "get", "list", "patch", "delete")),
    ("", "secrets", ("create", "get", "list", "patch", "delete")),
    ("", "pods", ("get", "list", "watch")),
    ("", "pods/log", ("get",)),
)
#: What only some commands, or only explanations, need. Pods are only tried out (a dry run).
WANTED = (("", "pods/exec", ("get", "create")), ("", "events", ("list",)), ("", "pods", ("create",)))


def examine(server: ApiServer, cfg: Mapping[str, Any]) -> list[Check]:
    """Check everything that jobs with these options need. Changes nothing.

    Args:
        server: the cluster.
        cfg: options of the scheduler; missing ones are not checked.
    """
    try:
        version = server.get("/version", attempts=1)
    except ShunterError as error:
        return [Check("API server", False, error.message, error.hint)]
    connection = server.connection
    git = str(version.get("gitVersion", "of an unknown version"))
    checks = [
        Check("API server", True, f"{connection.server} (context {connection.context}), Kubernetes {git}")
    ]
    for look in (_namespace, _permissions, _kinds, _queue):
        try:
            checks += look(server, cfg)
        except KubernetesError as error:
            checks.append(Check(look.__name__.strip("_"), None, error.message, error.hint))
    return checks


def examine_job(server: ApiServer, info: AppDryRunInfo[KubernetesJob]) -> list[Check]:
    """Check whether a node could hold each of the job's pods, and whether its images are there."""
    try:
        nodes = server.get("/api/v1/nodes")["items"]
    except KubernetesError as error:
        unknown = Check("nodes", None, f"cannot be compared with the job: {error.message}")
        return [unknown, *check_images(info)]
    may_grow = AUTOSCALER in server.groups()
    platforms: set[str] = set()
    checks = []
    excluded = info.cfg.get("exclude") or ()
    for pod in (each["spec"] for item in info.request.manifests for _, each in pod_templates(item)):
        lacking = {str(node["metadata"]["name"]): list(_lacks(node, pod)) for node in nodes}
        for name in lacking.keys() & set(excluded):
            lacking[name].insert(0, "excluded")
        fitting = [node for node in nodes if not lacking[str(node["metadata"]["name"])]]
        platforms |= {_platform_of(node) for node in fitting}
        if fitting:
            checks.append(Check("nodes", True, f"{len(fitting)} of {len(nodes)} could hold a pod, if empty"))
            continue
        why = "; ".join(f"{name}: {', '.join(each)}" for name, each in list(lacking.items())[:MOST_NODES])
        text = f"none of {len(nodes)} could hold a pod" + (f" ({why})" if why else "")
        if may_grow:
            checks.append(Check("nodes", None, text, "Karpenter may add one that can."))
        else:
            hint = "Ask for less, unless nodes are added when needed."
            checks.append(Check("nodes", False, text, hint))
    unique = {(check.text, check.ok): check for check in checks}
    return [*unique.values(), *check_images(info, platforms)]


def _lacks(node: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    """Yield why a node could not hold a pod, even without others; affinity of an overlay is not looked at."""
    spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    if spec.get("unschedulable"):
        yield "it takes no pods"
    for name, value in (pod.get("nodeSelector") or {}).items():
        if labels.get(name) != value:
            yield f"its label {name} is not {value}"
    for taint in spec.get("taints") or ():
        if taint.get("effect") != "PreferNoSchedule" and not _tolerates(pod, taint):
            yield f"taint {taint['key']}"
    has = (node.get("status") or {}).get("allocatable") or {}
    for name, asked in _asked(pod).items():
        if asked > quantity(has.get(name, 0)):
            yield f"it has {has.get(name, 'no')} {name}"


def _tolerates(pod: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    """Tell whether a pod tolerates a taint.

    https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
    """
    for item in pod.get("tolerations") or ():
        is_any = item.get("operator") == "Exists"
        fits_effect = item.get("effect") in (None, "", taint.get("effect"))
        fits_key = item.get("key", "") == taint["key"] or (is_any and not item.get("key", ""))
        if fits_effect and fits_key and (is_any or item.get("value", "") == taint.get("value", "")):
            return True
    return False


def _asked(pod: Mapping[str, Any]) -> dict[str, float]:
    """Return what the containers of a pod ask for together, by resource."""
    total: dict[str, float] = {}
    for container in pod["containers"]:
        resources = container.get("resources") or {}
        for name, amount in {**(resources.get("limits") or {}), **(resources.get("requests") or {})}.items():
            total[name] = total.get(name, 0.0) + quantity(amount)
    return total


def _platform_of(node: Mapping[str, Any]) -> str:
    facts = (node.get("status") or {}).get("nodeInfo") or {}
    return f"{facts.get('operatingSystem', 'linux')}/{facts.get('architecture', 'amd64')}"


def _namespace_of(cfg: Mapping[str, Any]) -> str:
    return str(cfg.get("namespace") or names.DEFAULT_NAMESPACE)


def _namespace(server: ApiServer, cfg: Mapping[str, Any]) -> Iterator[Check]:
    name = _namespace_of(cfg)
    try:
        there = server.find(f"/api/v1/namespaces/{name}")
    except KubernetesError as error:
        if error.status != 403:
            raise
        yield Check("namespace", None, f"{name} cannot be read: {error.message}")
        return
    if there is None:
        yield Check("namespace", False, f"there is no namespace {name}", "Choose one: -cfg namespace=NAME.")
        return
    yield Check("namespace", True, name)
    account = cfg.get("service_account")
    if account:
        found = server.find(core_path("serviceaccounts", name, str(account)))
        yield Check("service account", found is not None, f"{account}{'' if found else ' does not exist'}")


def _permissions(server: ApiServer, cfg: Mapping[str, Any]) -> Iterator[Check]:
    namespace = _namespace_of(cfg)
    for needs, required in ((NEEDED, True), (WANTED, False)):
        missing = [
            f"{verb} {resource}"
            for group, resource, verbs in needs
            for verb in verbs
            if not _may(server, namespace, group, resource, verb)
        ]
        if missing:
            hint = "docs/schedulers/kubernetes.md has the Role."
            yield Check("permissions", False if required else None, f"missing: {', '.join(missing)}", hint)
        elif required:
            yield Check("permissions", True, f"all that jobs need in {namespace}")


def _may(server: ApiServer, namespace: str, group: str, resource: str, verb: str) -> bool:
    name, _, part = resource.partition("/")
    wanted = {"namespace": namespace, "group": group, "resource": name, "verb": verb}
    if part:
        wanted["subresource"] = part
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": wanted},
    }
    answer = server.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool((answer.get("status") or {}).get("allowed"))


def _kinds(server: ApiServer, cfg: Mapping[str, Any]) -> Iterator[Check]:
    groups = server.groups()
    parts = {
        "JobSet": GROUP_OF_KIND[JOBSET],
        "Kueue": KUEUE,
        "Kueue's visibility API": VISIBILITY,
        "Volcano": GROUP_OF_KIND[VOLCANO],
    }
    there = [f"{name} ({', '.join(groups[group])})" for name, group in parts.items() if group in groups]
    yield Check(
        "queues", None, f"the cluster has {', '.join(there)}" if there else "no JobSet, Kueue or Volcano"
    )


def _queue(server: ApiServer, cfg: Mapping[str, Any]) -> Iterator[Check]:
    namespace, groups = _namespace_of(cfg), server.groups()
    if cfg.get("local_queue"):
        name = cfg["local_queue"]
        if KUEUE not in groups:
            yield Check("local_queue", False, "the cluster has no Kueue", "Leave local_queue out.")
            return
        path = f"/apis/{KUEUE}/{groups[KUEUE][0]}/namespaces/{namespace}/localqueues"
        found = server.find(f"{path}/{name}")
        hint = "" if found else f"`kubectl get localqueues -n {namespace}` lists them."
        yield Check("local_queue", found is not None, f"{name}{'' if found else ' does not exist'}", hint)
    if cfg.get("queue"):
        name, group = cfg["queue"], "scheduling.volcano.sh"
        if group not in groups:
            yield Check("queue", False, "the cluster has no Volcano", "Kueue's queues are local_queue=NAME.")
            return
        found = server.find(f"/apis/{group}/{groups[group][0]}/queues/{name}")
        yield Check("queue", found is not None, f"{name}{'' if found else ' does not exist'}")
