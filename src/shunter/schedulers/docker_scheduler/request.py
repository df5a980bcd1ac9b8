"""From a job to the request for its containers, which can be made in a dry run: it changes nothing."""

from __future__ import annotations

import fnmatch
import json
import os
import zlib
from typing import Any

from shunter.docker.image_reference import image_problem
from shunter.errors import refuse
from shunter.limits import seconds_problem
from shunter.schedulers.docker_scheduler.options import DockerOpts
from shunter.schedulers.exec.container import labels, submission
from shunter.schedulers.exec.container.inventory import results_dir
from shunter.schedulers.exec.container.logs import LOG_CONFIG
from shunter.schedulers.exec.container.submission import HOST_PREFIX, DockerRequest, ReplicaRequest
from shunter.schedulers.native_retries import BY_SHUNTER
from shunter.schedulers.supervision import check_supervision
from shunter.specs.app import NO_IMAGE, AppDef, Role
from shunter.specs.handles import make_app_handle
from shunter.specs.macro_substitution import macros
from shunter.specs.mounts import BindMount, DeviceMount, VolumeMount
from shunter.specs.resources import Resource
from shunter.specs.retries import parse_retries, without_effect
from shunter.specs.training import (
    METADATA_KEY,
    grace_variables,
    local_path,
    output_of,
    script_of,
    specification,
)

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
        self.names = labels.container_names(app_id, [(role.name, role.num_replicas) for role in app.roles])
        is_group = len(self.names) > 1
        rules = parse_retries(opts.retry)
        #: The rules for retries as the watcher takes them, and what of them has no effect.
        self.rules = {name: {**vars(rule)} for name, rule in rules.items()}
        self.ignored_rules = without_effect("local_docker", rules, BY_SHUNTER["local_docker"])
        asked = opts.timeout is not None or opts.hang_timeout is not None or opts.notify or self.rules
        self.watched = is_group or bool(asked)
        self.session = session
        self.own_network = app_id if is_group and opts.network is None else ""
        self.network = self.own_network or opts.network or ""
        first = next(iter(self.names.values()))
        self.rank0 = "localhost" if opts.network in ("host", "none") else first
        self.common_env = _common_env(opts)
        self.labels = self._labels()
        self.gpus = self._assign_gpus()
        self.published = dict(opts.publish or {})

    def request(self) -> DockerRequest:
        roles = self.app.roles
        return DockerRequest(
            app_id=self.app_id,
            containers=[self.replica(role, k) for role in roles for k in range(role.num_replicas)],
            network=self.own_network,
            platform=self.opts.platform,
            watched=self.watched,
            folders=folders_of(self.app) if self.shares_files else [],
            warnings=[*(warning for role in roles for warning in _ignored(role)), *self.ignored_rules],
            notify=list(self.opts.notify or ()),
            notify_secret=self.opts.notify_secret or "",
            handle=make_app_handle("local_docker", self.session, self.app_id),
            writes_stacks=self.opts.hang_timeout is not None,
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
        body: dict[str, Any] = {
            "Entrypoint": [role.entrypoint],
            "Cmd": applied.args,
            "StopSignal": STOP_SIGNAL,
            "Labels": {
                **self.labels,
                labels.ROLE: role.name,
                labels.REPLICA: str(k),
                labels.OLD_ROLE: role.name,
                labels.OLD_REPLICA: str(k),
            },
            "HostConfig": self._host_config(role, k),
        }
        if METADATA_KEY in role.metadata and (hosts := self._hosts_without_network(role)):
            body["HostConfig"]["ExtraHosts"] = [f"{host}:{address}" for host, address in hosts.items()]
        if self.opts.network != "host":
            body["Hostname"] = name
            self._add_ports(body, role)
        if self.network and self.opts.network not in ("host", "none", "bridge"):
            aliases = [f"{role.name}-{k}"]
            if METADATA_KEY in role.metadata:  # SageMaker's names of hosts
                aliases.append(f"{HOST_PREFIX}{k + 1}")
            body["NetworkingConfig"] = submission.on_network(self.network, aliases)
        script = script_of(applied.args, role.metadata)
        return ReplicaRequest(name, role.name, k, role.image, env, body, script)

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

    def _labels(self) -> dict[str, str]:
        hangs = {"hang_timeout": self.opts.hang_timeout, "on_hang": self.opts.on_hang}
        policy = {
            "watched": self.watched,
            "timeout": self.opts.timeout,
            "grace": self.opts.grace_period,
            "fail_fast": self.opts.fail_fast,
            **({"rules": self.rules} if self.rules else {}),
            **(hangs if self.opts.hang_timeout is not None else {}),
            "retries": {role.name: [role.retry_policy.value, role.max_retries] for role in self.app.roles},
        }
        layout = [[role.name, role.num_replicas] for role in self.app.roles]
        place = place_of(self.app, self.app_id, kept_here=self.shares_files)
        return {
            labels.APP_ID: self.app_id,
            labels.OLD_APP_ID: self.app_id,
            labels.APP_NAME: self.app.name,
            labels.SESSION: self.session,
            labels.REPLICAS: str(len(self.names)),
            labels.LAYOUT: json.dumps(layout),
            labels.POLICY: json.dumps(policy),
            labels.METADATA: json.dumps({key: str(value) for key, value in self.app.metadata.items()}),
            **({labels.RESULTS: place} if place else {}),
        }

    def _host_config(self, role: Role, k: int) -> dict[str, Any]:
        resource = role.resource
        config: dict[str, Any] = {
            "Init": True,  # passes signals on, and reaps what the program leaves behind
            "LogConfig": LOG_CONFIG,
            "Privileged": self.opts.privileged,
            "NetworkMode": self.network or "default",
            "Mounts": [
                *(_mount(mount) for mount in role.mounts if not isinstance(mount, DeviceMount)),
                *(mounts_of(role, k, self.app_id) if self.shares_files else ()),
            ],
            "Devices": _devices(role),
            "RestartPolicy": self._restart_policy(role),
        }
        if resource.memMB > 0:
            size = resource.memMB << 20
            config |= {"Memory": size, "MemorySwap": size, "ShmSize": size}
        if resource.cpu > 0:
            config["NanoCpus"] = int(resource.cpu * 1_000_000_000)
        if resource.gpu > 0:
            config["DeviceRequests"] = [self.gpus[role.name, k]]
        return config

    def _restart_policy(self, role: Role) -> dict[str, Any]:
        """Return what the daemon itself restarts: single replicas. The watcher restarts groups.

        If there are rules, the watcher restarts everything: the daemon does not know the class of a failure.
        """
        restarts_alone = role.retry_policy.value == "REPLICA" or len(self.names) == 1
        if role.max_retries and restarts_alone and not self.rules:
            return {"Name": "on-failure", "MaximumRetryCount": role.max_retries}
        return {"Name": "no"}

    def _assign_gpus(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return the request for each replica's GPUs, by ids: with a count, all would get the same ones."""
        wanted = {
            (role.name, k): role.resource.gpu
            for role in self.app.roles
            for k in range(role.num_replicas)
            if role.resource.gpu > 0
        }
        if len(wanted) == 1:
            return {key: submission.gpus(count) for key, count in wanted.items()}
        placed, first = {}, 0
        for key, count in wanted.items():
            ids = [str(number) for number in range(first, first + count)]
            placed[key] = submission.gpus(ids=ids)
            first += count
        return placed

    def _add_ports(self, body: dict[str, Any], role: Role) -> None:
        """Publish a role's ports: at free ports of 127.0.0.1; the first replica's where asked for."""
        bindings = {}
        ports = dict(role.port_map)
        for name in list(self.published):
            if name not in ports and name.isdecimal() and int(name) not in ports.values():
                ports[name] = int(name)
        for name, port in ports.items():
            where = self.published.pop(name, "") or self.published.pop(str(port), "")
            address, _, number = where.rpartition(":")
            bindings[f"{port}/tcp"] = [{"HostIp": address or "127.0.0.1", "HostPort": number}]
        if bindings:
            body["ExposedPorts"] = {port: {} for port in bindings}
            body["HostConfig"]["PortBindings"] = bindings
            body["Labels"][labels.PORTS] = json.dumps(ports)


def _common_env(opts: DockerOpts) -> dict[str, str]:
    patterns = opts.copy_env or []
    copied = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }
    return {**copied, **(opts.env or {})}


def _mount(mount: BindMount | VolumeMount) -> dict[str, Any]:
    if isinstance(mount, BindMount):
        source = os.path.abspath(os.path.expanduser(mount.src_path))
        return submission.bind(source, mount.dst_path, read_only=mount.read_only)
    return {"Type": "volume", "Source": mount.src, "Target": mount.dst_path, "ReadOnly": mount.read_only}


def _devices(role: Role) -> list[dict[str, str]]:
    mounts = [mount for mount in role.mounts if isinstance(mount, DeviceMount)]
    for name, count in role.resource.devices.items():
        if name in _DEVICE_FILES:
            paths = [_DEVICE_FILES[name].format(number) for number in range(count)]
            mounts += [DeviceMount(path, path) for path in paths]
    return [
        {
            "PathOnHost": mount.src_path,
            "PathInContainer": mount.dst_path,
            "CgroupPermissions": mount.permissions,
        }
        for mount in mounts
    ]


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


def place_of(app: AppDef, app_id: str, *, kept_here: bool) -> str:
    """Return where the results of a job will be, in words, or "" if it has none.

    ``kept_here`` says whether they are kept on this machine.
    """
    trained = [role for role in app.roles if specification(role.metadata)]
    if not trained:
        return ""
    sent = output_of(specification(trained[0].metadata), app_id)
    if sent:
        return sent
    if not kept_here:
        return submission.IN_CONTAINERS
    if len(trained) == trained[0].num_replicas == 1:
        return os.path.join(results_dir(app_id), f"{trained[0].name}-0")
    return results_dir(app_id)


def mounts_of(role: Role, replica: int, app_id: str) -> list[dict[str, Any]]:
    """Return the mounts that bring a replica's results to this machine; the user's own have precedence."""
    spec = specification(role.metadata)
    if not spec:
        return []
    base = role.env.get("SAGEMAKER_BASE_DIR", "/opt/ml")
    own = os.path.join(results_dir(app_id), f"{role.name}-{replica}")
    parts = [*_PARTS, *([_DATA] if spec.get("channels") else [])]
    wanted = {os.path.join(base, part): os.path.join(own, part) for part in parts}
    taken = [mount.dst_path.rstrip("/") + "/" for mount in role.mounts]
    return [
        submission.bind(source, target)
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
