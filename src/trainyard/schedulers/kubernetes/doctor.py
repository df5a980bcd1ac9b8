"""Whether jobs could run on a cluster: connection, permissions, namespace, queue, what it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trainyard.errors import TrainyardError
from trainyard.schedulers.kubernetes import names
from trainyard.schedulers.kubernetes.api_server import ApiServer, KubernetesError
from trainyard.schedulers.kubernetes.observe import GROUP_OF_KIND, KUEUE, VISIBILITY, core_path
from trainyard.schedulers.kubernetes.options import JOBSET, VOLCANO
from trainyard.schedulers.responses import Check

#: What the commands do with each kind of object: (group, resource, verbs).
NEEDED = (
    ("batch", "jobs", ("create", "get", "list", "watch", "patch", "deletecollection")),
    ("", "services", ("create", "get", "list", "patch", "delete")),
    ("", "secrets", ("create", "get", "list", "patch", "delete")),
    ("", "pods", ("get", "list", "watch")),
    ("", "pods/log", ("get",)),
)
#: What only some commands need, and only explanations.
WANTED = (("", "pods/exec", ("get", "create")), ("", "events", ("list",)))


def examine(server: ApiServer, cfg: Mapping[str, Any]) -> list[Check]:
    """Check everything that jobs with these options need. Changes nothing.

    Args:
        server: the cluster.
        cfg: options of the scheduler; missing ones are not checked.
    """
    try:
        version = server.get("/version", attempts=1)
    except TrainyardError as error:
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
