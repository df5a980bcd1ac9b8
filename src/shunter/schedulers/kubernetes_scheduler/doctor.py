"""Check whether a cluster could run jobs: connection, permissions, namespace, queue, add-ons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shunter.errors import ShunterError
from shunter.schedulers.job_images import check_images
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.api_server import ApiServer, KubernetesError
from shunter.schedulers.kubernetes_scheduler.jobs import (
    GROUP_OF_KIND,
    KUEUE,
    VISIBILITY,
    core_path,
    quantity,
)
from shunter.schedulers.kubernetes_scheduler.names import inner
from shunter.schedulers.kubernetes_scheduler.options import JOBSET, VOLCANO
from shunter.schedulers.kubernetes_scheduler.request import KubernetesJob
from shunter.schedulers.kubernetes_scheduler.rules import pod_templates
from shunter.schedulers.responses import Check
from shunter.specs.dryrun_info import AppDryRunInfo

ADD_ONS = {
    "JobSet": GROUP_OF_KIND[JOBSET],
    "Kueue": KUEUE,
    "Kueue's visibility API": VISIBILITY,
    "Volcano": GROUP_OF_KIND[VOLCANO],
}
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
        nodes = server.items("/api/v1/nodes")
    except KubernetesError as error:
        unknown = Check("nodes", None, f"cannot be compared with the job: {error.message}")
        return [unknown, *check_images(info)]
    may_grow = AUTOSCALER in server.groups()
    platforms: set[str] = set()
    checks: dict[str, Check] = {}
    for _, pod in (template for item in info.request.manifests for template in pod_templates(item)):
        lacking = {
            names.name_of(node): list(_lacks(node, pod["spec"], info.cfg.get("exclude") or ()))
            for node in nodes
        }
        fitting = [node for node in nodes if not lacking[names.name_of(node)]]
        if fitting:
            platforms |= {_platform_of(node) for node in fitting}
            text = f"{len(fitting)} of {len(nodes)} could hold a pod, if empty"
            checks[text] = Check("nodes", True, text)
            continue
        why = "; ".join(f"{name}: {', '.join(each)}" for name, each in list(lacking.items())[:MOST_NODES])
        text = f"none of {len(nodes)} could hold a pod" + (f" ({why})" if why else "")
        hint = (
            "Karpenter may add one that can."
            if may_grow
            else "Ask for less, unless nodes are added when needed."
        )
        checks[text] = Check("nodes", None if may_grow else False, text, hint)
    return [*checks.values(), *check_images(info, platforms)]


def _lacks(node: Mapping[str, Any], pod: Mapping[str, Any], excluded: Sequence[str]) -> Iterator[str]:
    """Yield why a node could not hold a pod, even without others; affinity of an overlay is not looked at."""
    if names.name_of(node) in excluded:
        yield "excluded"
    if inner(node, "spec", "unschedulable"):
        yield "it takes no pods"
    for name, value in inner(pod, "nodeSelector").items():
        if names.labels_of(node).get(name) != value:
            yield f"its label {name} is not {value}"
    for taint in inner(node, "spec", "taints"):
        if taint.get("effect") != "PreferNoSchedule" and not _tolerates(pod, taint):
            yield f"taint {taint['key']}"
    capacity = inner(node, "status", "allocatable")
    for name, amount in _needs(pod).items():
        if amount > quantity(capacity.get(name, 0)):
            yield f"it has {capacity.get(name, 'no')} {name}"


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


def _needs(pod: Mapping[str, Any]) -> dict[str, float]:
    """Return what the containers of a pod ask for together, by resource."""
    total: dict[str, float] = {}
    for container in pod["containers"]:
        limits = inner(container, "resources", "limits")
        for name, amount in {**limits, **inner(container, "resources", "requests")}.items():
            total[name] = total.get(name, 0.0) + quantity(amount)
    return total


def _platform_of(node: Mapping[str, Any]) -> str:
    facts = inner(node, "status", "nodeInfo")
    return f"{facts.get('operatingSystem', 'linux')}/{facts.get('architecture', 'amd64')}"


def _namespace_of(cfg: Mapping[str, Any]) -> str:
    return str(cfg.get("namespace") or names.DEFAULT_NAMESPACE)


def _namespace(server: ApiServer, cfg: Mapping[str, Any]) -> Iterator[Check]:
    name = _namespace_of(cfg)
    try:
        namespace = server.find(f"/api/v1/namespaces/{name}")
    except KubernetesError as error:
        if error.status != 403:
            raise
        yield Check("namespace", None, f"{name} cannot be read: {error.message}")
        return
    if namespace is None:
        yield Check("namespace", False, f"there is no namespace {name}", "Choose one: -cfg namespace=NAME.")
        return
    yield Check("namespace", True, name)
    account = cfg.get("service_account")
    if account:
        exists = server.find(core_path("serviceaccounts", name, str(account)))
        yield Check("service account", exists is not None, f"{account}{'' if exists else ' does not exist'}")


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
    attributes = {"namespace": namespace, "group": group, "resource": name, "verb": verb}
    if part:
        attributes["subresource"] = part
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    answer = server.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool((answer.get("status") or {}).get("allowed"))


def _kinds(server: ApiServer, cfg: Mapping[str, Any]) -> Iterator[Check]:
    groups = server.groups()
    served = [f"{name} ({', '.join(groups[group])})" for name, group in ADD_ONS.items() if group in groups]
    text = f"the cluster has {', '.join(served)}" if served else "no JobSet, Kueue or Volcano"
    yield Check("queues", None, text)


def _queue(server: ApiServer, cfg: Mapping[str, Any]) -> Iterator[Check]:
    groups = server.groups()
    places = {
        "local_queue": ("Kueue", KUEUE, f"/namespaces/{_namespace_of(cfg)}/localqueues"),
        "queue": ("Volcano", "scheduling.volcano.sh", "/queues"),
    }
    for option, (add_on, group, path) in places.items():
        name = cfg.get(option)
        if name and group not in groups:
            yield Check(option, False, f"the cluster has no {add_on}", f"Leave {option} out.")
        elif name:
            exists = server.find(f"/apis/{group}/{groups[group][0]}{path}/{name}") is not None
            hint = "" if exists else f"`kubectl get {path.rpartition('/')[2]} -A` lists them."
            yield Check(option, exists, f"{name}{'' if exists else ' does not exist'}", hint)
