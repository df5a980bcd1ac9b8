"""From a job to the request for its containers, which can be made in a dry run: it changes nothing."""

from __future__ import annotations

import fnmatch
import json
import os
import shlex
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from shunter.docker.command import Mount, environment_words
from shunter.docker.image_reference import image_problem
from shunter.errors import refuse
from shunter.limits import seconds_problem
from shunter.redaction import Redactor
from shunter.schedulers.docker_scheduler import labels
from shunter.schedulers.docker_scheduler.job import ContainerJob
from shunter.schedulers.docker_scheduler.options import DockerOpts
from shunter.schedulers.native_retries import BY_SHUNTER
from shunter.schedulers.supervision import check_supervision
from shunter.specs.app import NO_IMAGE, AppDef, Role, macros
from shunter.specs.mounts import BindMount, DeviceMount, VolumeMount
from shunter.specs.resources import Resource
from shunter.specs.retries import parse_retries, without_effect
from shunter.specs.training import (
    METADATA_KEY,
    grace_variables,
    local_path,
    script_of,
    specification,
)

#: Prefix of SageMaker's host names.
HOST_PREFIX = "algo-"
#: Where results are, in words, if not on this machine.
IN_CONTAINERS = "its containers, in /opt/ml, until it is deleted (docker cp)"
RANK0_ENV = "TORCHX_RANK0_HOST"
#: How many hosts of a job have addresses in one loopback network.
LOOPBACK_HOSTS = 250
IMAGE_ENV = "TORCHX_IMAGE"
STOP_SIGNAL = "SIGTERM"
#: Device files, by the names under which Kubernetes knows the devices.
_DEVICE_FILES = {
    "vpc.amazonaws.com/efa": "/dev/infiniband/uverbs{}",
    "aws.amazon.com/neurondevice": "/dev/neuron{}",
}


_PARTS = ("model", "output", "checkpoints", "input/config")
_DATA = "input/data"  # only with channels: images may bring their own data


@dataclass
class ReplicaRequest:
    """One container: what ``docker create`` is asked for."""

    name: str
    role: str
    replica: int
    image: str
    env: dict[str, str]
    #: Options of the command, without those that the other fields hold.
    options: list[str]
    mounts: list[Mount]
    #: Its names in the network of the job or of the options.
    aliases: list[str]
    #: Program and arguments.
    command: list[str]
    #: The script that its program reads, from the working directory; "" if that is not known.
    script: str = ""
    memory_mb: int = 0
    #: Ids of its GPUs, as in CUDA_VISIBLE_DEVICES.
    gpus: str = ""

    def words(self) -> list[str]:
        """Return the words of ``docker create``; the values of the environment are not among them."""
        entrypoint, *arguments = self.command
        mounts = [word for mount in self.mounts for word in ("--mount", mount.word())]
        aliases = [word for alias in self.aliases for word in ("--network-alias", alias)]
        options = [*self.options, *aliases, *mounts, *environment_words(self.env), "--entrypoint", entrypoint]
        return ["--name", self.name, *options, self.image, *arguments]


@dataclass
class DockerRequest:
    """All that is made for a job.

    ``network`` is the name of the network to be made for it, which is the job's id, or "" for none.
    """

    app_id: str
    containers: list[ReplicaRequest]
    network: str = ""
    platform: str | None = None
    #: Directories of this machine that results are sent to, to be made if they do not exist.
    folders: list[str] = field(default_factory=list)
    #: Whether the daemon sees the files of this machine, so that results are kept here.
    shares_files: bool = True
    #: Retry policy and number of retries by role, and rules for retries by class of failure.
    retries: dict[str, tuple[str, int]] = field(default_factory=dict)
    rules: dict[str, dict[str, int]] = field(default_factory=dict)
    timeout: float | None = None
    grace_period: float = 10.0
    fail_fast: bool = False
    hang_timeout: float | None = None
    on_hang: str = "report"
    #: Ports by role: their numbers in the containers by name.
    ports: dict[str, dict[str, int]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    #: The targets of notifications, and the secret that signs them.
    notify: list[str] = field(default_factory=list)
    notify_secret: str = ""

    def __str__(self) -> str:
        return json.dumps(self.shown(), indent=2)

    def shown(self) -> dict[str, Any]:
        """Return the request as JSON values for people, secrets masked."""
        redactor = Redactor()
        containers = []
        for container in self.containers:
            shown = redactor.json({**vars(container), "env": {}})
            shown["env"] = {name: redactor.named(name, value) for name, value in container.env.items()}
            masked = replace(container, env=shown["env"], options=shown["options"], command=shown["command"])
            shown["mounts"] = [redactor.text(mount.word()) for mount in container.mounts]
            shown["create"] = redactor.text(shlex.join(["docker", "create", *masked.words()]))
            containers.append(shown)
        told = [redactor.text(target) for target in self.notify]
        secret = redactor.named("notify_secret", self.notify_secret) if self.notify_secret else ""
        return {**vars(self), "containers": containers, "notify": told, "notify_secret": secret}

    def place_hosts(self, addresses: Iterator[str]) -> None:
        """Give the containers addresses in their network, and pass these to the hosts of a training job.

        The daemon resolves the name of a container only while it runs; the names added here always resolve.
        """
        known: dict[str, list[str]] = {}
        for container, address in zip(self.containers, addresses, strict=False):
            container.options += ["--ip", address]
            known.setdefault(container.role, []).extend(
                f"{alias}:{address}" for alias in container.aliases if alias.startswith(HOST_PREFIX)
            )
        for container in self.containers:
            container.options += [word for host in known[container.role] for word in ("--add-host", host)]


def make_request(
    app: AppDef, opts: DockerOpts, app_id: str, session: str, *, shares_files: bool = True
) -> DockerRequest:
    """Plan a job. ``shares_files`` says whether the daemon sees the files of this machine.

    Raises:
        ConfigError: an option is out of range, or a Docker daemon cannot provide something.
    """
    _check(app, opts)
    check_supervision(opts)
    return _Plan(app, opts, app_id, session, shares_files).request()


class _Plan:
    """What the containers of a job have in common."""

    def __init__(self, app: AppDef, opts: DockerOpts, app_id: str, session: str, shares_files: bool) -> None:
        self.app = app
        self.shares_files = shares_files
        self.opts = opts
        self.app_id = app_id
        self.job = ContainerJob.of(app_id)
        self.names = labels.container_names(app_id, [(role.name, role.num_replicas) for role in app.roles])
        self.own_network = app_id if len(self.names) > 1 and opts.network is None else ""
        self.network = self.own_network or opts.network or ""
        first = next(iter(self.names.values()))
        self.rank0 = "localhost" if opts.network in ("host", "none") else first
        self.common_env = _common_env(opts)
        self.labels = {
            labels.APP_ID: app_id,
            labels.APP_NAME: app.name,
            labels.SESSION: session,
            labels.OWNER: labels.owner(),
        }
        self.gpus = self._assign_gpus()
        self.unpublished = dict(opts.publish or {})
        self.ports: dict[str, dict[str, int]] = {}

    def request(self) -> DockerRequest:
        opts, roles = self.opts, self.app.roles
        rules = parse_retries(opts.retry)
        ignored = without_effect("local_docker", rules, BY_SHUNTER["local_docker"])
        return DockerRequest(
            app_id=self.app_id,
            containers=[self.replica(role, k) for role in roles for k in range(role.num_replicas)],
            network=self.own_network,
            platform=opts.platform,
            folders=folders_of(self.app) if self.shares_files else [],
            shares_files=self.shares_files,
            retries={role.name: (role.retry_policy.value, role.max_retries) for role in roles},
            rules={name: {**vars(rule)} for name, rule in rules.items()},
            timeout=opts.timeout,
            grace_period=opts.grace_period,
            fail_fast=opts.fail_fast,
            hang_timeout=opts.hang_timeout,
            on_hang=opts.on_hang,
            ports=self.ports,
            warnings=[*(warning for role in roles for warning in _ignored(role)), *ignored],
            notify=list(opts.notify or ()),
            notify_secret=opts.notify_secret or "",
        )

    def replica(self, role: Role, k: int) -> ReplicaRequest:
        name = self.names[role.name, k]
        values = macros.Values(img_root="", app_id=self.app_id, replica_id=str(k), rank0_env=RANK0_ENV)
        applied = values.apply(role)
        env = {
            **self.common_env,
            **applied.env,
            **grace_variables(applied.env, self.opts.grace_period),
            RANK0_ENV: self.rank0,
            IMAGE_ENV: role.image,
        }
        mounts = [_mount(mount) for mount in role.mounts if not isinstance(mount, DeviceMount)]
        if self.shares_files:
            mounts += mounts_of(role, self.job.base_dir(role.name, k))
        gpus = self.gpus.get((role.name, k), [])
        # ids, since all would get the same ones by a number; one replica alone may have any
        chosen = str(len(gpus)) if len(self.gpus) == 1 else f'"device={",".join(gpus)}"'
        return ReplicaRequest(
            name,
            role.name,
            k,
            role.image,
            env,
            [*self._options(role, k), *(["--gpus", chosen] if gpus else [])],
            mounts,
            self._aliases(role, k),
            [role.entrypoint, *applied.args],
            script_of(applied.args, role.metadata),
            max(0, role.resource.memMB),
            ",".join(gpus),
        )

    def _options(self, role: Role, k: int) -> list[str]:
        """Return the options of a container, but for its mounts, names, environment and GPUs."""
        held = {**self.labels, labels.ROLE: role.name, labels.REPLICA: str(k)}
        words = ["--init", "--stop-signal", STOP_SIGNAL]  # init passes signals on, and reaps
        words += [word for label, value in held.items() for word in ("--label", f"{label}={value}")]
        words += ["--platform", self.opts.platform] if self.opts.platform else []
        words += ["--privileged"] if self.opts.privileged else []
        words += ["--network", self.network] if self.network else []
        if METADATA_KEY in role.metadata:
            hosts = self._hosts_without_network(role).items()
            words += [word for host, address in hosts for word in ("--add-host", f"{host}:{address}")]
        if self.opts.network != "host":
            words += ["--hostname", self.names[role.name, k], *self._publish(role)]
        for device in _devices(role):
            words += ["--device", f"{device.src_path}:{device.dst_path}:{device.permissions}"]
        resource = role.resource
        if resource.memMB > 0:
            size = f"{resource.memMB}m"
            words += ["--memory", size, "--memory-swap", size, "--shm-size", size]
        if resource.cpu > 0:
            words += ["--cpus", f"{resource.cpu:g}"]
        return words

    def _aliases(self, role: Role, k: int) -> list[str]:
        """Return the names of a container in its network, if that serves names; SageMaker's too."""
        if self.network in ("", "host", "none", "bridge"):
            return []
        return [f"{role.name}-{k}", *([f"{HOST_PREFIX}{k + 1}"] if METADATA_KEY in role.metadata else [])]

    def _hosts_without_network(self, role: Role) -> dict[str, str]:
        """Return the addresses of a training role's hosts, if no network of their job serves their names.

        The only host of a role is 127.0.0.1; hosts on the machine's network get a part of its loopback
        network that depends on the job, so that two jobs can serve the same port on their ``algo-1``.
        """
        names = [f"{HOST_PREFIX}{k + 1}" for k in range(role.num_replicas)]
        if self.opts.network == "host":
            block = zlib.crc32(self.app_id.encode()) & 0x7FFF
            return {
                name: f"127.{128 | (number >> 8)}.{number & 255}.{1 + k % LOOPBACK_HOSTS}"
                for k, name in enumerate(names)
                for number in [(block + k // LOOPBACK_HOSTS) & 0x7FFF]
            }
        is_alone = len(names) == 1 and (self.opts.network is not None or not self.network)
        return {names[0]: "127.0.0.1"} if is_alone else {}

    def _assign_gpus(self) -> dict[tuple[str, int], list[str]]:
        """Return the ids of each replica's GPUs, for those that ask for some."""
        placed: dict[tuple[str, int], list[str]] = {}
        first = 0
        for role in self.app.roles:
            for k in range(role.num_replicas if role.resource.gpu > 0 else 0):
                placed[role.name, k] = [str(first + number) for number in range(role.resource.gpu)]
                first += role.resource.gpu
        return placed

    def _publish(self, role: Role) -> list[str]:
        """Publish a role's ports: at free ports of 127.0.0.1; the first replica's where asked for."""
        ports = dict(role.port_map)
        for name in list(self.unpublished):
            if name not in ports and name.isdecimal() and int(name) not in ports.values():
                ports[name] = int(name)
        words = []
        for name, port in ports.items():
            where = self.unpublished.pop(name, "") or self.unpublished.pop(str(port), "")
            address, _, number = where.rpartition(":")
            words += ["--publish", f"{address or '127.0.0.1'}:{number}:{port}"]
        if ports:
            self.ports.setdefault(role.name, {}).update(ports)
        return words


def _common_env(opts: DockerOpts) -> dict[str, str]:
    patterns = opts.copy_env or []
    copied = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    return {**copied, **(opts.env or {})}


def _mount(mount: BindMount | VolumeMount) -> Mount:
    if isinstance(mount, BindMount):
        source = os.path.abspath(os.path.expanduser(mount.src_path))
        return Mount("bind", source, mount.dst_path, mount.read_only)
    return Mount("volume", mount.src, mount.dst_path, mount.read_only)


def _devices(role: Role) -> list[DeviceMount]:
    mounts = [mount for mount in role.mounts if isinstance(mount, DeviceMount)]
    for name, count in role.resource.devices.items():
        if name in _DEVICE_FILES:
            paths = [_DEVICE_FILES[name].format(number) for number in range(count)]
            mounts += [DeviceMount(path, path) for path in paths]
    return mounts


def _ignored(role: Role) -> list[str]:
    """Return warnings about fields of a role that have no effect here."""
    ignored = [f"the device {name!r}" for name in role.resource.devices if name not in _DEVICE_FILES]
    return [f"role {role.name!r}: local_docker ignores {name}" for name in ignored]


def _check(app: AppDef, opts: DockerOpts) -> None:
    """Refuse what is wrong, as far as that can be known without asking the daemon."""
    durations = (
        seconds_problem("timeout", opts.timeout),
        seconds_problem("grace_period", opts.grace_period, may_be_zero=True),
    )
    problems = [problem for problem in durations if problem]
    problems += [f"role {role.name!r}: {problem}" for role in app.roles for problem in _role_problems(role)]
    problems += _publish_problems(app, opts)
    problems += [
        f"env: {name!r} is not a valid variable name" for name in opts.env or {} if not name or "=" in name
    ]
    total = sum(role.num_replicas for role in app.roles)
    if opts.network == "none" and total > 1:
        problems.append("network is none, but the job has several replicas, which must reach each other")
    refuse("the job cannot run on Docker", problems)


def _role_problems(role: Role) -> list[str]:
    problems = _image_problems(role.image)
    targets = [mount.dst_path for mount in role.mounts]
    problems += [
        f"two mounts have the destination {path}" for path in {t for t in targets if targets.count(t) > 1}
    ]
    problems += [
        f"the mount's destination {path!r} is not an absolute path" for path in targets if path[:1] != "/"
    ]
    for name, port in role.port_map.items():
        if not 0 < port < 65536:
            problems.append(f"port_map[{name!r}] is {port}; it must be a port number from 1 to 65535")
    resource: Resource = role.resource
    if 0 < resource.memMB < 6:
        problems.append(f"memMB is {resource.memMB}, Docker's minimum is 6")
    return problems


def _image_problems(image: str) -> list[str]:
    if not image.strip() or image == NO_IMAGE:
        return ["it has no image (--image python:3.12, or your project's)"]
    problem = "" if image.startswith("sha256:") else image_problem(image)
    return [problem] if problem else []


def _publish_problems(app: AppDef, opts: DockerOpts) -> list[str]:
    problems = []
    names = {name for role in app.roles for name in role.port_map}
    numbers = {str(port) for role in app.roles for port in role.port_map.values()}
    for name, where in (opts.publish or {}).items():
        if name not in names | numbers and not (name.isdecimal() and 0 < int(name) < 65536):
            known = ", ".join(sorted(names)) or "nothing"
            problems.append(f"publish: there is no port {name!r}; the port_map holds {known}")
        number = where.rpartition(":")[2]
        if not number.isdecimal() or not 0 < int(number) < 65536:
            problems.append(f"publish: {name}={where} does not end in a port number; an example: {name}=8080")
    if opts.publish and opts.network in ("host", "none"):
        problems.append(f"publish: with network={opts.network} nothing is published")
    return problems


# ---- results


def mounts_of(role: Role, own: str) -> list[Mount]:
    """Return the mounts that bring a replica's results to a directory of this machine.

    The user's own mounts have precedence.
    """
    spec = specification(role.metadata)
    if not spec:
        return []
    base = role.env.get("SAGEMAKER_BASE_DIR", "/opt/ml")
    parts = [*_PARTS, *([_DATA] if spec.get("channels") else [])]
    wanted = {os.path.join(base, part): os.path.join(own, part) for part in parts}
    taken = [mount.dst_path.rstrip("/") + "/" for mount in role.mounts]
    return [
        Mount("bind", source, target)
        for target, source in wanted.items()
        if not any(f"{target}/".startswith(path) for path in taken)
    ]


def folders_of(app: AppDef) -> list[str]:
    """Return the directories of this machine that results and checkpoints are sent to."""
    found = []
    for role in app.roles:
        spec = specification(role.metadata)
        sources = {getattr(mount, "src_path", None) for mount in role.mounts}
        for section in ("output", "checkpoints"):
            path = local_path((spec.get(section) or {}).get("uri") or "")
            if path in sources:
                found.append(path)
    return found
