"""The pods of a role: container, command, variables, resources, mounts, placement.

The replicas of a role share one template. Its first variable is the index of the replica, from the annotation
that an Indexed Job gives each pod; where arguments or other variables contain the index, the kubelet puts it
in: ``$(TORCHX_REPLICA_IDX)``. So no shell is needed, and every other ``$(`` of the user is escaped
(https://kubernetes.io/docs/tasks/inject-data-application/define-command-argument-container/).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any

from shunter.docker.image_reference import image_problem
from shunter.errors import ConfigError
from shunter.redaction import Redactor
from shunter.schedulers.kubernetes_scheduler import names
from shunter.schedulers.kubernetes_scheduler.options import KubernetesOpts
from shunter.schedulers.kubernetes_scheduler.overlay import overlay_of
from shunter.schedulers.toolkit_supervision import SECRET_VARIABLES
from shunter.specs.app import NO_IMAGE, Role, macros
from shunter.specs.handles import make_app_handle
from shunter.specs.mounts import BindMount, DeviceMount, VolumeMount
from shunter.specs.named_resources_aws import EFA_DEVICE, INSTANCE_TYPE
from shunter.specs.overlays import apply_overlay
from shunter.specs.resources import Resource
from shunter.specs.training import DOCUMENT, grace_variables

JOB_ID = "TORCHX_JOB_ID"
ROLE_INDEX = "TORCHX_ROLE_IDX"
ROLE_NAME = "TORCHX_ROLE_NAME"
REPLICA_INDEX = "TORCHX_REPLICA_IDX"
RANK0_HOST = "TORCHX_RANK0_HOST"
IMAGE = "TORCHX_IMAGE"
#: Names the file in which the toolkit leaves the beginning of its failure report.
TERMINATION_MESSAGE = "SHUNTER_TERMINATION_MESSAGE"
TERMINATION_PATH = "/dev/termination-log"
FIELD_PATH = "[FIELD_PATH]"
NOT_FOR_ISTIO = {"sidecar.istio.io/inject": "false"}  # a sidecar would keep the pod from ending

# Placeholder of the index until the text is escaped, in private characters that users do not type.
_INDEX = "\ue000replica\ue001"
_ESCAPED = re.compile(r"\$(?=[$(]|\Z)")
_SHELLS = ("sh", "bash", "dash", "ash", "zsh")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,200}")
_FIELD_PATHS = re.compile(
    r"metadata\.(?:name|namespace|uid)|metadata\.(?:labels|annotations)\['[^']+'\]"
    r"|spec\.(?:nodeName|serviceAccountName)|status\.(?:hostIPs?|podIPs?)"
)
_VARIABLE = re.compile(r"[ -<>-~]+")


@dataclass
class SecretValues:
    """The values that go into the job's Secret, by key."""

    values: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: str) -> str:
        """Keep a value, and return its key."""
        usual = name if _KEY.fullmatch(name) else f"value-{len(self.values)}"
        key, number = usual, 1
        while self.values.get(key, value) != value:
            number += 1
            key = f"{usual}.{number}"
        self.values[key] = value
        return key


@dataclass(frozen=True)
class PodPlace:
    """Which pods a template is for.

    Args:
        role_index: index of their role.
        part: what stands for their role in names.
        replica: index of the only replica; None if Kubernetes tells each pod its index.
        rank0: host of the job's first replica.
        is_shared: whether the first replica has the same template as others.
        subdomain: the headless Service that we make for their names; "" without one.
    """

    role_index: int
    part: str
    replica: int | None
    rank0: str
    is_shared: bool
    subdomain: str


def pod_template(
    role: Role, place: PodPlace, opts: KubernetesOpts, app_id: str, session: str, secret: SecretValues
) -> dict[str, Any]:
    """Return metadata (without labels of the job) and spec of a role's pods.

    Args:
        role: the role.
        place: which of its pods.
        opts: the options.
        app_id: the job's app id.
        session: the session of the job's handle.
        secret: receives the values that must not be in the pod.

    Raises:
        ConfigError: the role asks for something that a pod cannot have.
    """
    try:
        return _pod(role, place, opts, app_id, session, secret)
    except ConfigError as error:
        if error.message.startswith("role "):
            raise
        raise ConfigError(f"role {role.name!r}: {error.message}", hint=error.hint) from None


def _pod(
    role: Role, place: PodPlace, opts: KubernetesOpts, app_id: str, session: str, secret: SecretValues
) -> dict[str, Any]:
    _check_image(role.image)
    name = names.split_app_id(app_id)[1]
    values = macros.Values(
        img_root="",
        app_id=name,
        replica_id=_INDEX if place.replica is None else str(place.replica),
        rank0_env=RANK0_HOST,
    )
    applied = values.apply(role)
    overlay = overlay_of(applied.metadata, role.name)
    args = _local_rank0(role.entrypoint, applied.args) if place.is_shared else applied.args
    env = _Environment(name, secret)
    if place.replica is None:
        path = f"metadata.annotations['{names.INDEX_LABEL}']"
        env.items.append({"name": REPLICA_INDEX, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    variables = {
        **applied.env,
        **grace_variables(applied.env, opts.grace_period),
        JOB_ID: make_app_handle("kubernetes", session, app_id),
        ROLE_INDEX: str(place.role_index),
        ROLE_NAME: role.name,
        RANK0_HOST: place.rank0,
        IMAGE: role.image,
    }
    if DOCUMENT in applied.env:
        variables[TERMINATION_MESSAGE] = TERMINATION_PATH
    variables.pop(REPLICA_INDEX, None)
    if place.replica is not None:
        variables[REPLICA_INDEX] = str(place.replica)
    env.add(variables)
    env.add_references(opts.secrets or {}, variables)
    container: dict[str, Any] = {
        "name": place.part,
        "image": role.image,
        "command": [_text(role.entrypoint)],
        "args": env.arguments(args),
        "env": env.items,
        "resources": resources(role.resource, opts),
        "terminationMessagePath": TERMINATION_PATH,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    ports = [{"containerPort": port} for port in dict.fromkeys(role.port_map.values()) if port > 0]
    if ports:
        container["ports"] = ports
    volumes, mounts, has_devices = _mounts(role, opts)
    container["volumeMounts"] = mounts
    if opts.privileged or has_devices:
        container["securityContext"] = {"privileged": True}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": opts.grace_period,
        "containers": [container],
        "volumes": volumes,
        **_placement(role.resource, opts),
    }
    if place.subdomain:
        spec["subdomain"] = place.subdomain
    pod = {"metadata": {"annotations": {**NOT_FOR_ISTIO, **(opts.annotations or {})}}, "spec": spec}
    return apply_overlay(pod, overlay)


def _check_image(image: str) -> None:
    if image in ("", NO_IMAGE):
        raise ConfigError(
            "it has no image",
            hint="Kubernetes runs containers: name an image that its nodes can pull, as with --image.",
        )
    problem = image_problem(image)
    if problem:
        raise ConfigError(problem)


def _local_rank0(entrypoint: str, args: list[str]) -> list[str]:
    """Have a shell script in the first replica use localhost as that replica's host, as DNS lags behind."""
    is_script = os.path.basename(entrypoint) in _SHELLS and len(args) > 1 and re.fullmatch(r"-\w*c", args[0])
    if not is_script or RANK0_HOST not in args[1]:
        return args
    return [args[0], f'[ "${REPLICA_INDEX}" != 0 ] || export {RANK0_HOST}=localhost; {args[1]}', *args[2:]]


def _text(text: str) -> str:
    """Return a text as the kubelet gives it back: escaped, with its own name of the index."""
    pieces = [_ESCAPED.sub("$$", piece) for piece in text.split(_INDEX)]
    return f"$({REPLICA_INDEX})".join(pieces)


_EXPANDED = re.compile(r"\$\$|\$\(([^)]*)\)")


def original_text(text: str) -> str:
    """Return what `_text` made an argument or value of a pod from."""

    def back(match: re.Match[str]) -> str:
        if match[1] is None:
            return "$"
        return macros.replica_id if match[1] == REPLICA_INDEX else match[0]

    return _EXPANDED.sub(back, text)


class _Environment:
    """The variables of a container. Those with secrets refer to the job's Secret."""

    def __init__(self, secret_name: str, secret: SecretValues) -> None:
        self.items: list[dict[str, Any]] = []
        self._secret_name = secret_name
        self._secret = secret
        self._redactor = Redactor()

    def add(self, variables: dict[str, str]) -> None:
        """Add variables, in order of their names."""
        for name in sorted(variables):
            value = variables[name]
            if _VARIABLE.fullmatch(name) is None:
                raise ConfigError(f"Kubernetes accepts no variable named {name!r}", hint="Use ASCII only.")
            if value.startswith(FIELD_PATH):
                path = value.removeprefix(FIELD_PATH).strip()
                if _FIELD_PATHS.fullmatch(path) is None:
                    raise ConfigError(
                        f"the variable {name} cannot be the field {path!r} of a pod",
                        hint="Some that it can: metadata.name, spec.nodeName, status.podIP, status.hostIP.",
                    )
                self.items.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
            elif name in SECRET_VARIABLES or self._redactor.named(name, value) != value:
                self._add_secret(name, value)
            else:
                self.items.append({"name": name, "value": _text(value)})

    def add_references(self, references: dict[str, str], variables: dict[str, str]) -> None:
        """Add variables that come from secrets of the namespace, each written as ``SECRET/KEY``."""
        for name, reference in sorted(references.items()):
            secret, slash, key = reference.partition("/")
            if not slash or names.DNS_SUBDOMAIN.fullmatch(secret) is None or _KEY.fullmatch(key) is None:
                # not shown, since it may be the secret itself
                raise ConfigError(f"the secret {name!r} is not a reference", hint="Write NAME=SECRET/KEY.")
            if name in variables:
                raise ConfigError(f"the variable {name!r} is both a secret and a variable of the job")
            self.items.append(_reference(name, secret, key))

    def arguments(self, args: list[str]) -> list[str]:
        """Return the arguments; those with secrets become variables from the Secret."""
        arguments = []
        for number, (arg, shown) in enumerate(zip(args, self._redactor.words(args), strict=True)):
            if arg == shown:
                arguments.append(_text(arg))
            else:
                name = f"SHUNTER_ARGUMENT_{number}"
                self._add_secret(name, arg)
                arguments.append(f"$({name})")
        return arguments

    def _add_secret(self, name: str, value: str) -> None:
        if _INDEX in value:
            raise ConfigError(
                f"{name} holds a secret and the macro replica_id, but all replicas share one Secret",
                hint=f"Let the program read the variable {REPLICA_INDEX} instead.",
            )
        self.items.append(_reference(name, self._secret_name, self._secret.add(name, value)))


def _reference(variable: str, secret: str, key: str) -> dict[str, Any]:
    return {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def resources(resource: Resource, opts: KubernetesOpts) -> dict[str, dict[str, str]]:
    """Return limits and requests; of CPU and memory a little less is requested, see the options."""
    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    if resource.cpu > 0:
        milli = int(resource.cpu * 1000)
        limits["cpu"] = f"{milli}m"
        requests["cpu"] = f"{max(milli - opts.reserved_millicpu, milli // 2, 1)}m"
    if resource.memMB > 0:
        limits["memory"] = f"{resource.memMB}Mi"
        requests["memory"] = f"{max(resource.memMB - opts.reserved_memmb, resource.memMB // 2, 1)}Mi"
    devices = dict(resource.devices)
    if opts.efa_device_count is not None:
        devices[EFA_DEVICE] = opts.efa_device_count
    if resource.gpu > 0:
        devices[opts.gpu_resource] = devices.get(opts.gpu_resource, 0) + resource.gpu
    for name, count in sorted(devices.items()):
        if "/" not in name or not names.is_label_key(name):
            raise ConfigError(
                f"{name!r} is not the name of a device of Kubernetes",
                hint="They have a domain, such as nvidia.com/gpu; a device's file is mounted: "
                "type=device,src=/dev/...",
            )
        if count > 0:  # what is not CPU or memory is requested as it is limited
            limits[name] = str(count)
    return {"limits": limits, "requests": requests} if limits else {}


def _mounts(role: Role, opts: KubernetesOpts) -> tuple[list[dict[str, Any]], list[dict[str, Any]], bool]:
    volumes: list[dict[str, Any]] = []
    points: list[dict[str, Any]] = []
    places: set[str] = set()
    has_devices = False
    if not any(mount.dst_path.rstrip("/") == "/dev/shm" for mount in role.mounts):
        # data loaders share memory, for which the runtime's 64 MiB do not suffice
        shm: dict[str, Any] = {"medium": "Memory"}
        if opts.shm_size is not None:
            shm["sizeLimit"] = f"{opts.shm_size}Mi"
        volumes.append({"name": "dshm", "emptyDir": shm})
        points.append({"name": "dshm", "mountPath": "/dev/shm"})
    for index, mount in enumerate(role.mounts):
        name = f"mount-{index}"
        if mount.dst_path in places:
            raise ConfigError(f"two mounts go to {mount.dst_path}")
        places.add(mount.dst_path)
        _check_path(mount.dst_path, in_container=True)
        point: dict[str, Any] = {"name": name, "mountPath": mount.dst_path}
        if isinstance(mount, VolumeMount):
            if names.DNS_SUBDOMAIN.fullmatch(mount.src) is None:
                raise ConfigError(
                    f"the volume {mount.src!r} is not the name of a PersistentVolumeClaim",
                    hint="A directory of the nodes is type=bind.",
                )
            claim: dict[str, Any] = {"claimName": mount.src}
            if mount.read_only:
                claim["readOnly"] = True
            volumes.append({"name": name, "persistentVolumeClaim": claim})
        else:
            _check_path(mount.src_path, in_container=False)
            volumes.append({"name": name, "hostPath": _host_path(mount)})
        if isinstance(mount, DeviceMount):
            has_devices = True
            if set(mount.permissions) != set("rwm"):
                raise ConfigError(
                    f"the device {mount.src_path} with permissions {mount.permissions!r}: Kubernetes "
                    "cannot limit them",
                    hint="Leave perm= out, or ask for the device by name, through its device plugin.",
                )
        elif mount.read_only:
            point["readOnly"] = True
        points.append(point)
    return volumes, points, has_devices


def _host_path(mount: BindMount | DeviceMount) -> dict[str, str]:
    """Return the volume of a node's path.

    Without the type, the runtime makes an empty directory in place of a missing one.

    A name with a suffix may be that of a file or socket, which the type would refuse.
    """
    is_folder = isinstance(mount, BindMount) and not os.path.splitext(mount.src_path)[1]
    return {"path": mount.src_path, **({"type": "Directory"} if is_folder else {})}


def _check_path(path: str, *, in_container: bool) -> None:
    parts = path.split("/")
    if not path.startswith("/") or (in_container and ":" in path) or (not in_container and ".." in parts):
        where = "in the container" if in_container else "on the nodes"
        raise ConfigError(f"the path {path!r} of a mount must be absolute, without '..' and ':', {where}")


def _placement(resource: Resource, opts: KubernetesOpts) -> dict[str, Any]:
    """Return where the pods may run, and as whom."""
    spec: dict[str, Any] = {}
    selector = dict(opts.node_selector or {})
    instance_type = resource.capabilities.get(INSTANCE_TYPE)
    if instance_type:
        selector[INSTANCE_TYPE] = str(instance_type)
    if selector:
        spec["nodeSelector"] = selector
    if opts.exclude:
        # A field's requirement takes a single value.
        # https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/#node-affinity
        others = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in opts.exclude]
        required = {"nodeSelectorTerms": [{"matchFields": others}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    if opts.tolerations:
        spec["tolerations"] = [toleration(text) for text in opts.tolerations]
    if opts.service_account:
        spec["serviceAccountName"] = opts.service_account
    if opts.priority_class:
        spec["priorityClassName"] = opts.priority_class
    if opts.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in opts.image_pull_secrets]
    return spec


_TOLERATION = re.compile(
    r"(?P<key>[^=:]+)(?P<equals>=(?P<value>[^:]*))?(?::(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?"
)


def toleration(text: str) -> dict[str, str]:
    """Read a toleration: ``KEY=VALUE:EFFECT``, parts of it, or ``*`` for every taint."""
    match = _TOLERATION.fullmatch(text.strip())
    if match is None or not (match["key"] == "*" or names.is_label_key(match["key"])):
        raise ConfigError(
            f"cannot read the toleration {text!r}",
            hint="Write KEY=VALUE:EFFECT, KEY:EFFECT, KEY or *; the effect is NoSchedule, PreferNoSchedule or"
            " NoExecute.",
        )
    toleration = {"operator": "Equal" if match["equals"] else "Exists"}
    if match["key"] != "*":
        toleration["key"] = match["key"]
    if match["equals"]:
        toleration["value"] = match["value"]
    if match["effect"]:
        toleration["effect"] = match["effect"]
    return toleration
