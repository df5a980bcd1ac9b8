"""Creating a job's objects exactly once, and cleaning up if that fails.

Names are unique, so a request whose answer was lost is simply repeated: "AlreadyExists" then means that the
first one arrived. Secrets, the Service and the PodGroups come first, since pods wait for them; when the Jobs
exist, they become the owners, so that the cluster removes all of it together.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from shunter.errors import ConfigError, ShunterError
from shunter.schedulers.ids import random_id
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.api_server import ApiServer, KubernetesError
from shunter.schedulers.kubernetes_scheduler.jobs import GROUP_OF_KIND, KUEUE, quantity
from shunter.schedulers.kubernetes_scheduler.options import JOB, JOBSET, VOLCANO
from shunter.schedulers.kubernetes_scheduler.request import PODGROUP_API, KubernetesJob
from shunter.schedulers.kubernetes_scheduler.rules import pod_templates

_NEEDED = {JOBSET: "JobSet (https://jobset.sigs.k8s.io)", VOLCANO: "Volcano (https://volcano.sh)"}
_SCHEDULING = "scheduling.k8s.io"
_PODGROUP_VERSIONS = ("v1", "v1beta1", "v1alpha3", "v1alpha2")


def adapt(server: ApiServer, job: KubernetesJob) -> None:
    """Check that the cluster has what the job needs, and give its objects the versions that it serves.

    Raises:
        ConfigError: it lacks JobSet, Volcano, Kueue or PodGroups.
        KubernetesError: it cannot be asked.
    """
    needs_groups = any(each["kind"] == "PodGroup" for each in job.manifests)
    queued = any(names.QUEUE_LABEL in names.labels_of(each) for each in job.running())
    if job.kind == JOB and not needs_groups and not queued:
        return
    groups = server.groups()
    if job.kind in _NEEDED and GROUP_OF_KIND[job.kind] not in groups:
        raise ConfigError(
            f"the cluster {server.connection.server} has no {_NEEDED[job.kind]}; nothing was sent",
            hint="Leave out kind and queue: a plain Job needs no add-on.",
        )
    if queued and KUEUE not in groups:
        raise ConfigError(
            f"the cluster {server.connection.server} has no Kueue, and only Kueue starts jobs of a "
            "local_queue; nothing was sent",
            hint="Leave local_queue out.",
        )
    if needs_groups:
        version = _podgroup_version(server)
        for each in job.manifests:
            if each["kind"] == "PodGroup":
                each["apiVersion"] = f"{_SCHEDULING}/{version}"


def _podgroup_version(server: ApiServer) -> str:
    served = server.groups().get(_SCHEDULING) or []
    for version in _PODGROUP_VERSIONS:
        if version in served:
            kinds = (server.find(f"/apis/{_SCHEDULING}/{version}") or {}).get("resources") or []
            if any(each.get("name") == "podgroups" for each in kinds):
                return version
    raise ConfigError(
        f"gang=true needs the PodGroups of Kubernetes ({PODGROUP_API}), and {server.connection.server} does "
        "not serve them; nothing was sent",
        hint="They are off by default (feature gate GenericWorkload). Kueue (local_queue=NAME) and Volcano "
        "(queue=NAME) place jobs as a whole too.",
    )


def path_of(manifest: dict[str, Any]) -> str:
    """Return the path of the list that an object belongs to."""
    api, kind = manifest["apiVersion"], manifest["kind"]
    namespace = manifest["metadata"]["namespace"]
    root = "/api/v1" if api == "v1" else f"/apis/{api}"
    return f"{root}/namespaces/{namespace}/{kind.lower()}s"


def try_out(server: ApiServer, job: KubernetesJob) -> list[str]:
    """Have the API server check all objects, and a pod of each role, without making them.

    Quotas, PodSecurity, PriorityClasses and ServiceAccounts concern pods, not Jobs.

    Returns:
        What does not prevent the job, but delays it or could not be checked.

    Raises:
        KubernetesError: it would refuse one: permissions, quota, policies, unknown fields.
    """
    remarks: dict[str, None] = {}
    pods = [_pod_of(item, template) for item in job.manifests for _, template in pod_templates(item)]
    for manifest in [*job.code_secrets()[:1], *job.manifests, *pods]:  # the others are of the same kind
        try:
            server.create(path_of(manifest), manifest, dry_run=True)
        except KubernetesError as error:
            if "does not support dry run" in error.message:  # a webhook of the cluster may have side effects
                continue
            if manifest["kind"] != "Pod":
                raise
            if 'cannot create resource "pods"' in error.message:
                remarks[f"whether its pods would be admitted was not checked: {error.message}"] = None
            elif _is_used_up(error.message):
                remarks[f"its pods would wait until others end: {error.message}"] = None
            else:
                raise
    return list(remarks)


def _pod_of(item: Mapping[str, Any], template: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod as a controller would make it from a template of an object."""
    own = {"generateName": f"{names.name_of(item)}-", "namespace": item["metadata"]["namespace"]}
    metadata = {**(template.get("metadata") or {}), **own}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


_QUOTA = re.compile(r"exceeded quota: .*?requested: (\S+), used: \S+, limited: (\S+)")


def _is_used_up(message: str) -> bool:
    """Tell whether a quota refuses a pod only because others use it now."""
    match = _QUOTA.search(message)
    if match is None:
        return False
    parts = ([part.partition("=") for part in text.split(",")] for text in match.groups())
    asked, limits = ({name: amount for name, equals, amount in each if equals} for each in parts)
    return all(quantity(asked[name]) <= quantity(limit) for name, limit in limits.items() if name in asked)


def submit(server: ApiServer, job: KubernetesJob) -> None:
    """Create the objects of a job. After a failure they are deleted again, if the server can be reached.

    Raises:
        KubernetesError: the server refused one, or could not be reached.
    """
    token = random_id()
    made: list[dict[str, Any]] = []
    manifests = [*job.code_secrets(), *job.manifests]
    for number, manifest in enumerate(manifests):
        try:
            made.append(_create(server, manifest, token))
        except (ShunterError, KeyboardInterrupt) as error:
            statuses = (0, 500, 502, 503, 504)
            may_be_made = not isinstance(error, KubernetesError) or error.status in statuses
            for each in manifests[: number + may_be_made]:
                with suppress(KubernetesError):
                    server.delete(f"{path_of(each)}/{names.name_of(each)}")
            raise
    _own(server, made)


def _create(server: ApiServer, manifest: dict[str, Any], token: str) -> dict[str, Any]:
    notes = {**names.annotations_of(manifest), names.NOTE_SUBMISSION: token}
    marked = {**manifest, "metadata": {**manifest["metadata"], "annotations": notes}}
    path = path_of(manifest)
    try:
        created: dict[str, Any] = server.create(path, marked)
    except KubernetesError as error:
        if error.status != 409:
            raise
        existing = server.find(f"{path}/{names.name_of(manifest)}")
        if existing is None or names.annotations_of(existing).get(names.NOTE_SUBMISSION) != token:
            raise
        created = existing  # our own request, whose answer was lost
    return {"apiVersion": manifest["apiVersion"], "kind": manifest["kind"], **created}


def _own(server: ApiServer, made: list[dict[str, Any]]) -> None:
    """Make the objects that run pods own the rest. Without that permission, `delete` removes the rest."""
    running = [each for each in made if each["kind"] in ("Job", "JobSet")]
    owners = [
        {
            "apiVersion": each["apiVersion"],
            "kind": each["kind"],
            "name": names.name_of(each),
            "uid": each["metadata"].get("uid", ""),
        }
        for each in running
    ]
    for each in made:
        if each not in running:
            change = {"metadata": {"ownerReferences": owners}}
            try:
                server.merge(f"{path_of(each)}/{names.name_of(each)}", change)
            except KubernetesError as error:
                warnings.warn(
                    f"the {each['kind']} {names.name_of(each)} is not removed together with its job, only by "
                    f"`shunter delete` or `shunter gc`: {error.message}",
                    RuntimeWarning,
                    stacklevel=4,
                )
