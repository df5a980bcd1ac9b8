"""Checks before anything is sent: of options, and of what the published schemas of Kubernetes do not cover.

The schemas cover fields and types. The API server also checks names, quantities, enumerations and sizes;
these checks are repeated here, so that a dry run finds mistakes
(https://kubernetes.io/docs/concepts/overview/working-with-objects/names/).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from shunter.errors import did_you_mean, refuse
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.options import JOB, KINDS, VOLCANO, KubernetesOpts

_QUANTITY = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[EPTGMk]i?|Ki|[munE]|[eE][+-]?\d+)?")
_RESTARTS = ("Never", "OnFailure", "Always")
#: The API server takes 3 MiB, but etcd no more than 1.5 MiB; a Secret has 1 MiB.
LARGEST_OBJECT = 1_500_000
LARGEST_SECRET = 1 << 20
MOST_ANNOTATIONS = 256 << 10
MOST_COMPLETIONS = 100_000  # of an Indexed Job with backoffLimitPerIndex
_FIELD_PATHS = re.compile(
    r"metadata\.(?:name|namespace|uid)|metadata\.(?:labels|annotations)\['[^']+'\]|spec\.(?:nodeName|serviceAccountName)"
    r"|status\.(?:hostIPs?|podIPs?)"
)


def check_options(opts: KubernetesOpts) -> None:
    """Check what concerns the options alone.

    Raises:
        ConfigError: with all that is wrong.
    """
    refuse("the options of kubernetes", list(_option_problems(opts)))


def check_manifests(manifests: list[dict[str, Any]]) -> None:
    """Check the objects of a job against what the API server would refuse.

    Raises:
        ConfigError: with all that is wrong.
    """
    problems = [problem for each in manifests for problem in _object_problems(each)]
    refuse("Kubernetes would refuse the job", list(dict.fromkeys(problems)))


def _option_problems(opts: KubernetesOpts) -> Iterator[str]:
    if opts.kind is not None and opts.kind not in KINDS:
        yield f"there is no kind {opts.kind!r}. {did_you_mean(opts.kind, KINDS)}"
    if names.DNS_LABEL.fullmatch(opts.namespace) is None:
        yield f"namespace {opts.namespace!r} must be at most 63 lower-case letters, digits and hyphens"
    yield from _queue_problems(opts)
    for name in ("service_account", "priority_class", "workload_priority", "queue", "local_queue"):
        value = getattr(opts, name)
        if value is not None and names.DNS_SUBDOMAIN.fullmatch(value) is None:
            yield f"{name} {value!r} must be lower-case letters, digits, hyphens and dots"
    for name in opts.image_pull_secrets or []:
        if names.DNS_SUBDOMAIN.fullmatch(name) is None:
            yield f"image_pull_secrets: {name!r} is not the name of a secret"
    for name in opts.exclude or []:
        if names.DNS_SUBDOMAIN.fullmatch(name) is None:
            yield f"exclude: {name!r} is not the name of a node"
    if "/" not in opts.gpu_resource or not names.is_label_key(opts.gpu_resource):
        yield f"gpu_resource {opts.gpu_resource!r} must be like nvidia.com/gpu"
    yield from _label_problems("labels", opts.labels or {})
    yield from _label_problems("node_selector", opts.node_selector or {})
    for key in opts.annotations or {}:
        if not names.is_label_key(key.lower()):
            yield f"annotations: {key!r} is not a valid key"
    for key in [*(opts.labels or {}), *(opts.annotations or {})]:
        if key.startswith("shunter/"):
            yield f"{key!r}: keys that begin with shunter/ are ours"
    for code in opts.final_exit_codes or []:
        if not 1 <= code <= 255:
            yield f"final_exit_codes: {code} is not from 1 to 255"
    yield from _number_problems(opts)


def _queue_problems(opts: KubernetesOpts) -> Iterator[str]:
    if opts.queue and opts.local_queue:
        yield "queue is Volcano's and local_queue is Kueue's: give one of them"
    if opts.queue and opts.kind not in (None, VOLCANO):
        yield f"queue is Volcano's, and kind={opts.kind}; Kueue's is local_queue=NAME"
    if opts.local_queue and opts.kind == VOLCANO:
        yield "local_queue is Kueue's; Volcano's is queue=NAME"
    for name in ("workload_priority", "topology"):
        if getattr(opts, name) is not None and not opts.local_queue:
            yield f"{name} is for Kueue: give local_queue too"
    if opts.local_queue and not names.is_label_value(opts.local_queue):
        yield f"local_queue {opts.local_queue!r} is too long for a label"
    if opts.gang and opts.kind not in (None, JOB):
        yield f"gang is for kind=job; {opts.kind} places the pods of a job together by itself"
    if opts.gang and (opts.queue or opts.local_queue):
        yield (
            "gang is for the cluster's own scheduler: leave out queue and local_queue, which place "
            "jobs as a whole"
        )
    if opts.final_exit_codes and (opts.kind == VOLCANO or opts.queue):
        yield "final_exit_codes: Volcano does not tell exit codes apart; use kind=jobset or kind=job"
    if opts.retry and (opts.kind == VOLCANO or opts.queue):
        yield "retry: Volcano restarts after any failure alike; use kind=job or kind=jobset"
    if opts.topology is not None:
        kind, colon, level = opts.topology.partition(":")
        wanted = names.is_label_key(level) if kind in ("required", "preferred") else not colon
        if kind not in names.TOPOLOGY_NOTES or not wanted:
            yield f"topology {opts.topology!r} must be required:LEVEL, preferred:LEVEL or unconstrained"


def _number_problems(opts: KubernetesOpts) -> Iterator[str]:
    least = {
        "reserved_millicpu": 0,
        "reserved_memmb": 0,
        "efa_device_count": 0,
        "shm_size": 1,
        "timeout": 1,
        "grace_period": 0,
        "ttl": -1,
    }
    for name, bound in least.items():
        value = getattr(opts, name)
        if value is not None and not bound <= value < 1 << 31:
            yield f"{name} must be at least {bound}, and less than 2**31, not {value}"


def _label_problems(option: str, labels: Mapping[str, str]) -> Iterator[str]:
    for key, value in labels.items():
        if not names.is_label_key(key):
            yield f"{option}: the key {key!r} must be [PREFIX/]NAME with letters, digits, '-', '_' and '.'"
        if not names.is_label_value(str(value)):
            yield f"{option}: the value {value!r} must be at most 63 letters, digits, '-', '_' and '.'"


# ---- objects


def _object_problems(manifest: Mapping[str, Any]) -> Iterator[str]:
    kind = manifest["kind"]
    name = names.name_of(manifest)
    if names.DNS_LABEL.fullmatch(name) is None or (kind != "Secret" and not name[0].isalpha()):
        yield f"the name {name!r} of the {kind} must be at most 63 lower-case letters, digits and hyphens"
    yield from _metadata_problems(kind, manifest["metadata"])
    size = len(json.dumps(manifest, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    most = LARGEST_SECRET if kind == "Secret" else LARGEST_OBJECT
    if size > most:
        yield (
            f"the {kind} has {size:,} bytes, at most {most:,} are allowed: arguments and variables "
            "are too large"
        )
    for where, spec in job_specs(manifest):
        yield from _job_problems(where, spec)
    for where, pod in pod_templates(manifest):
        yield from _pod_problems(where, pod)


def job_specs(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the specs of Indexed Jobs in an object, each with the name that its pods' begin with."""
    name, spec = names.name_of(manifest), manifest.get("spec") or {}
    if manifest["kind"] == "JobSet":
        for each in spec["replicatedJobs"]:
            yield f"{name}-{each['name']}-0", each["template"]["spec"]
    elif manifest["apiVersion"] == "batch/v1":
        yield name, spec


def pod_templates(manifest: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the templates of pods in an object, each with what to call it."""
    for where, spec in job_specs(manifest):
        yield where, spec["template"]
    for task in (manifest.get("spec") or {}).get("tasks") or []:
        yield task["name"], task["template"]


def _metadata_problems(what: str, metadata: Mapping[str, Any]) -> Iterator[str]:
    yield from _label_problems(f"labels of the {what}", metadata.get("labels") or {})
    notes = metadata.get("annotations") or {}
    size = sum(
        len(str(key)) + len(str(value).encode("utf-8", "surrogatepass")) for key, value in notes.items()
    )
    if size > MOST_ANNOTATIONS:
        yield f"the annotations of the {what} have {size:,} bytes, at most {MOST_ANNOTATIONS:,} are allowed"
    for key, value in notes.items():
        if not isinstance(value, str):
            yield f"the annotation {key!r} of the {what} must be a string"


def _job_problems(where: str, spec: Mapping[str, Any]) -> Iterator[str]:
    count = spec["completions"]
    longest = f"{where}-{count - 1}"
    if len(longest) > names.MOST_NAME:
        yield f"the host name {longest!r} has more than {names.MOST_NAME} characters"
    if "backoffLimitPerIndex" in spec and count > MOST_COMPLETIONS:
        yield f"{count:,} replicas that restart one by one; at most {MOST_COMPLETIONS:,} are allowed"
    restart = (spec["template"].get("spec") or {}).get("restartPolicy")
    if restart != "Never":
        yield f"restartPolicy {restart!r}: pods of a Job with failure rules must have Never"


def _pod_problems(where: str, pod: Mapping[str, Any]) -> Iterator[str]:
    spec = pod.get("spec") or {}
    yield from _metadata_problems(f"pods of {where}", pod.get("metadata") or {})
    if spec.get("restartPolicy") not in _RESTARTS:
        yield f"{where}: restartPolicy {spec.get('restartPolicy')!r} must be one of {', '.join(_RESTARTS)}"
    volumes = [str(volume.get("name", "")) for volume in spec.get("volumes") or []]
    for name in volumes:
        if names.DNS_LABEL.fullmatch(name) is None or volumes.count(name) > 1:
            yield f"{where}: the name {name!r} of a volume is not valid, or not unique"
    for container in [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]:
        yield from _container_problems(where, container, volumes)


def _container_problems(where: str, container: Mapping[str, Any], volumes: list[str]) -> Iterator[str]:
    name = str(container.get("name", ""))
    if names.DNS_LABEL.fullmatch(name) is None:
        yield f"{where}: the name {name!r} of a container must be lower-case letters, digits and hyphens"
    if not container.get("image"):
        yield f"{where}: the container {name!r} has no image (the job's own is the first one)"
    needs = container.get("resources") or {}
    for part in ("limits", "requests"):
        for key, amount in (needs.get(part) or {}).items():
            if _QUANTITY.fullmatch(str(amount)) is None:
                yield f"{where}: {amount!r} is not a quantity of {key}, such as 500m or 2Gi"
    for point in container.get("volumeMounts") or []:
        if point.get("name") not in volumes:
            yield f"{where}: there is no volume {point.get('name')!r}"
    for variable in container.get("env") or []:
        path = ((variable.get("valueFrom") or {}).get("fieldRef") or {}).get("fieldPath")
        if path is not None and _FIELD_PATHS.fullmatch(path) is None:
            yield (
                f"{where}: the variable {variable['name']} cannot be the field {path!r} of a pod; "
                "some that it can: "
                "metadata.name, metadata.labels['KEY'], spec.nodeName, status.podIP, status.hostIP"
            )
