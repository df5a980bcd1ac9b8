"""Checks before anything is sent: of the options, and of the sizes of objects.

They find in a dry run what the API server would say later. What an overlay adds is left to the server, which
checks all objects before code is pushed
(https://kubernetes.io/docs/concepts/overview/working-with-objects/names/).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from shunter.errors import did_you_mean, refuse
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.names import inner
from shunter.schedulers.kubernetes_scheduler.options import (
    JOB,
    KINDS,
    MOST_LOGGED_RESULTS,
    VOLCANO,
    KubernetesOpts,
)

#: The API server takes 3 MiB, but etcd no more than 1.5 MiB; a Secret has 1 MiB.
LARGEST_OBJECT = 1_500_000
LARGEST_SECRET = 1 << 20
#: Options that name objects.
_NAMES = ("service_account", "priority_class", "workload_priority", "queue", "local_queue")
_LISTS_OF_NAMES = ("image_pull_secrets", "exclude")
_LEAST = {
    "reserved_millicpu": 0,
    "reserved_memmb": 0,
    "efa_device_count": 0,
    "shm_size": 1,
    "timeout": 1,
    "grace_period": 0,
    "ttl": -1,
    "logged_results": 0,
}


def check_options(opts: KubernetesOpts) -> None:
    """Check what concerns the options alone.

    Raises:
        ConfigError: with all that is wrong.
    """
    refuse("the options of kubernetes", [*_wrong_values(opts), *_contradictions(opts)])


def _wrong_values(opts: KubernetesOpts) -> Iterator[str]:
    if opts.kind is not None and opts.kind not in KINDS:
        yield f"there is no kind {opts.kind!r}. {did_you_mean(opts.kind, KINDS)}"
    if names.DNS_LABEL.fullmatch(opts.namespace) is None:
        yield f"namespace {opts.namespace!r} must be at most 63 lower-case letters, digits and hyphens"
    named = [(option, getattr(opts, option)) for option in _NAMES]
    named += [(option, name) for option in _LISTS_OF_NAMES for name in getattr(opts, option) or []]
    for option, name in named:
        if name is not None and names.DNS_SUBDOMAIN.fullmatch(name) is None:
            yield f"{option}: {name!r} must be lower-case letters, digits, hyphens and dots"
    if "/" not in opts.gpu_resource or not names.is_label_key(opts.gpu_resource):
        yield f"gpu_resource {opts.gpu_resource!r} must be like nvidia.com/gpu"
    for option in ("labels", "node_selector"):
        for key, value in (getattr(opts, option) or {}).items():
            if not names.is_label_key(key):
                yield f"{option}: the key {key!r} must be [PREFIX/]NAME of letters, digits, '-', '_' and '.'"
            if not names.is_label_value(str(value)):
                yield f"{option}: the value {value!r} must be at most 63 letters, digits, '-', '_' and '.'"
    for key in opts.annotations or {}:
        if not names.is_label_key(key.lower()):
            yield f"annotations: {key!r} is not a valid key"
    for key in [*(opts.labels or {}), *(opts.annotations or {})]:
        if key.startswith("shunter/"):
            yield f"{key!r}: keys that begin with shunter/ are ours"
    for code in opts.final_exit_codes or []:
        if not 1 <= code <= 255:
            yield f"final_exit_codes: {code} is not from 1 to 255"
    if opts.logged_results > MOST_LOGGED_RESULTS:
        yield (
            f"logged_results: at most {MOST_LOGGED_RESULTS} MiB come back with logs; larger results need "
            "--output s3://... or a claim that is mounted"
        )
    for option, least in _LEAST.items():
        number = getattr(opts, option)
        if number is not None and not least <= number < 1 << 31:
            yield f"{option} must be at least {least}, and less than 2**31, not {number}"
    if opts.topology is not None:
        kind, colon, level = opts.topology.partition(":")
        is_valid = names.is_label_key(level) if kind in ("required", "preferred") else not colon
        if kind not in names.TOPOLOGY_NOTES or not is_valid:
            yield f"topology {opts.topology!r} must be required:LEVEL, preferred:LEVEL or unconstrained"


def _contradictions(opts: KubernetesOpts) -> Iterator[str]:
    is_volcano = opts.kind == VOLCANO or opts.queue
    if opts.queue and opts.local_queue:
        yield "queue is Volcano's and local_queue is Kueue's: give one of them"
    elif opts.queue and opts.kind not in (None, VOLCANO):
        yield f"queue is Volcano's, and kind={opts.kind}; Kueue's is local_queue=NAME"
    elif opts.local_queue and is_volcano:
        yield "local_queue is Kueue's; Volcano's is queue=NAME"
    for option in ("workload_priority", "topology"):
        if getattr(opts, option) is not None and not opts.local_queue:
            yield f"{option} is for Kueue: give local_queue too"
    if opts.gang and opts.kind not in (None, JOB):
        yield f"gang is for kind=job; {opts.kind} places the pods of a job together by itself"
    if opts.gang and (opts.queue or opts.local_queue):
        yield (
            "gang is for the cluster's own scheduler: leave out queue and local_queue, which place "
            "jobs as a whole"
        )
    if opts.final_exit_codes and is_volcano:
        yield "final_exit_codes: Volcano does not tell exit codes apart; use kind=jobset or kind=job"
    if opts.retry and is_volcano:
        yield "retry: Volcano restarts after any failure alike; use kind=job or kind=jobset"


def check_manifests(manifests: list[dict[str, Any]]) -> None:
    """Check the sizes of objects, and that an overlay's containers have images.

    Raises:
        ConfigError: with all that is wrong.
    """
    problems = [problem for each in manifests for problem in _object_problems(each)]
    refuse("Kubernetes would refuse the job", list(dict.fromkeys(problems)))


def _object_problems(manifest: Mapping[str, Any]) -> Iterator[str]:
    kind = manifest["kind"]
    size = len(json.dumps(manifest, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    most = LARGEST_SECRET if kind == "Secret" else LARGEST_OBJECT
    if size > most:
        yield (
            f"the {kind} has {size:,} bytes, at most {most:,} are allowed: arguments and variables "
            "are too large"
        )
    for where, pod in pod_templates(manifest):
        for container in [*inner(pod, "spec", "initContainers"), *inner(pod, "spec", "containers")]:
            if not container.get("image"):
                name = container.get("name")
                yield f"{where}: the container {name!r} has no image (the job's own is the first one)"


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
    for task in inner(manifest, "spec", "tasks"):
        yield task["name"], task["template"]
