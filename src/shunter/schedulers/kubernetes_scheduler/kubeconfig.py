"""Choose cluster and credentials: from kubeconfig files, credential plug-ins, or the pod's own account.

Files are found as kubectl finds them: the option, ``$KUBECONFIG`` (several files are merged: what comes first
wins), ``~/.kube/config``; without any, the service account of the pod that we run in
(https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/). TLS and tokens are
lightkube's. Credential plug-ins are started here, since lightkube knows neither their version v1 nor their
expiry
(https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins).

This module imports the client; it is imported when a cluster is first needed.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml
from lightkube.config.client_adapter import ConnectionParams
from lightkube.config.kubeconfig import KubeConfig
from lightkube.core.exceptions import ConfigError as LightkubeError

from shunter.errors import AccessError, ConfigError, did_you_mean
from shunter.paths import read_regular_file
from shunter.schedulers.kubernetes_scheduler.names import seconds

DEFAULT_FILE = "~/.kube/config"
#: Seconds that a plug-in may take: some open a browser.
PLUGIN_LIMIT = 180.0
_EARLY = 30.0  # seconds before a credential's end at which a new one is fetched
#: Members of a kubeconfig that are paths, relative to their file.
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
#: What a plug-in may learn about its cluster.
_CLUSTER_FACTS = (
    "server",
    "tls-server-name",
    "insecure-skip-tls-verify",
    "certificate-authority-data",
    "proxy-url",
)
_NO_FILE = "Give one: -cfg kubeconfig=PATH, or KUBECONFIG; `kubectl config view` shows what kubectl uses."


@dataclass(frozen=True)
class ClusterConnection:
    """A client of the API server, and what to call it in messages.

    Args:
        client: the client.
        server: address of the API server.
        context: the context; "" for the account of a pod.
        ends: when its client certificate ends, which a credential plug-in gave, in seconds since the epoch.
    """

    client: httpx2.Client
    server: str
    context: str
    ends: float | None = None

    @property
    def is_outdated(self) -> bool:
        """Whether a new client is needed: its client certificate is about to expire."""
        return self.ends is not None and time.time() > self.ends - _EARLY


def connect(context: str, kubeconfig: str, timeout: float) -> ClusterConnection:
    """Make a client of the API server. Nothing is asked yet, apart from a credential plug-in.

    Args:
        context: context of the kubeconfig; "" for its current one.
        kubeconfig: path of the file; "" for the usual places.
        timeout: seconds that the API server may be silent.

    Raises:
        ConfigError: there is no kubeconfig, or it does not hold what is needed.
        AccessError: the credential plug-in fails.
    """
    config, cluster, user, plugin = _load(context, kubeconfig)
    proxy = str(cluster.get("proxy-url") or "") or None
    patience = httpx2.Timeout(timeout, connect=10.0)
    try:
        params = ConnectionParams(timeout=patience, proxy=proxy).httpx_params(config)
    except (LightkubeError, OSError, ValueError) as error:
        raise ConfigError(f"the kubeconfig's context {config.context_name} cannot be used: {error}") from None
    if plugin is not None:
        params["auth"] = plugin
    server_name = cluster.get("tls-server-name")
    if server_name:

        def expect(request: httpx2.Request) -> None:
            request.extensions["sni_hostname"] = str(server_name)

        params["event_hooks"] = {"request": [expect]}
    # each log that is followed is a connection
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
    client = httpx2.Client(**params, limits=limits, headers=_impersonation(user))
    ends = plugin.certificate_ends if plugin is not None else None
    name = config.context_name if cluster else ""
    return ClusterConnection(client, config.cluster.server, name, ends)


def _load(
    context: str, kubeconfig: str
) -> tuple[Any, dict[str, Any], dict[str, Any], CredentialPlugin | None]:
    """Return a context as lightkube has it, its cluster and its user, and the plug-in that was started."""
    paths = _files(kubeconfig)
    if not paths and context:
        raise ConfigError(f"there is no kubeconfig, so there is no context {context!r}", hint=_NO_FILE)
    if not paths:
        try:
            return KubeConfig.from_service_account().get(), {}, {}, None
        except (LightkubeError, KeyError):
            raise ConfigError("there is no kubeconfig", hint=_NO_FILE) from None
    shown = ", ".join(paths)
    try:
        merged = _merged([_read(path) for path in paths])
        name = _context_name(merged, context, shown)
        chosen = merged["contexts"][name]
        cluster, user = merged["clusters"][chosen["cluster"]], merged["users"].get(chosen.get("user"), {})
        plugin = None
        if user.get("exec"):
            plugin = CredentialPlugin(user.pop("exec"), cluster)
            user.update(plugin.first())
        content = {
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": user}],
            "contexts": [{"name": name, "context": {"cluster": "it", "user": "it"}}],
        }
        return KubeConfig.from_dict(content).get(name), cluster, user, plugin
    except ConfigError:
        raise
    except (LightkubeError, AttributeError, KeyError, TypeError, ValueError) as error:  # not of this form
        raise ConfigError(f"{shown} is not a kubeconfig: {type(error).__name__}: {error}") from None


def _impersonation(user: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the headers by which a user acts as another one (``as`` of a kubeconfig).

    https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/
    """
    headers = [("Impersonate-User", str(user["as"]))] if user.get("as") else []
    headers += [("Impersonate-Group", str(group)) for group in user.get("as-groups") or []]
    return headers


# ---- files


def _files(kubeconfig: str) -> list[str]:
    if kubeconfig:
        return [os.path.expanduser(kubeconfig)]
    named = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    existing = [path for path in named or [os.path.expanduser(DEFAULT_FILE)] if os.path.exists(path)]
    if named and not existing:
        raise ConfigError(f"KUBECONFIG names {', '.join(named)}, which does not exist", hint=_NO_FILE)
    return existing


def _read(path: str) -> dict[str, Any]:
    try:
        # a shell's <(...) is a pipe, /dev/fd/N or /proc/self/fd/N; another FIFO might have no writer
        content = yaml.safe_load(read_regular_file(path, special="/fd/" in path))
    except OSError as error:
        raise ConfigError(f"cannot read the kubeconfig {path}: {error.strerror}", hint=_NO_FILE) from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"the kubeconfig {path} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a kubeconfig")
    folder = os.path.dirname(os.path.abspath(path))
    read: dict[str, Any] = {"current-context": content.get("current-context")}
    for section in ("clusters", "contexts", "users"):
        read[section] = {each["name"]: each.get(section[:-1]) or {} for each in content.get(section) or []}
        for body in read[section].values():
            body.update({key: os.path.join(folder, body[key]) for key in _PATHS if body.get(key)})
            plugin = body.get("exec") or {}
            if os.sep in str(plugin.get("command") or ""):  # otherwise it is sought in PATH
                plugin["command"] = os.path.join(folder, plugin["command"])
    return read


def _merged(contents: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {"clusters": {}, "contexts": {}, "users": {}, "current-context": ""}
    for content in contents:
        merged["current-context"] = merged["current-context"] or content["current-context"]
        for section in ("clusters", "contexts", "users"):
            merged[section] = {**content[section], **merged[section]}
    return merged


def _context_name(merged: dict[str, Any], context: str, shown: str) -> str:
    """Return the name of the context that is used, which names a cluster and a user that are there."""
    name = str(context or merged["current-context"] or "")
    if not name:
        raise ConfigError(
            f"{shown} has no current context",
            hint="Choose one: -cfg context=NAME, or kubectl config use-context.",
        )
    if name not in merged["contexts"]:
        raise ConfigError(f"{shown} has no context {name!r}", hint=did_you_mean(name, merged["contexts"]))
    chosen = merged["contexts"][name]
    if not chosen.get("cluster"):
        raise ConfigError(f"the context {name!r} of {shown} names no cluster")
    for kind in ("cluster", "user"):
        if chosen.get(kind) and chosen[kind] not in merged[f"{kind}s"]:
            raise ConfigError(
                f"the context {name!r} of {shown} names the {kind} {chosen[kind]!r}, which is missing there"
            )
    return name


# ---- credential plug-ins


class CredentialPlugin(httpx2.Auth):
    """A program that prints credentials, ``user.exec`` of a kubeconfig; requests take their tokens from it.

    Args:
        settings: what the kubeconfig says of it.
        cluster: what the kubeconfig says of the cluster, for plug-ins that want to know.
    """

    def __init__(self, settings: dict[str, Any], cluster: dict[str, Any]) -> None:
        self._settings = settings
        self._cluster = cluster
        self._command = [str(settings.get("command", "")), *map(str, settings.get("args") or [])]
        self._name = os.path.basename(self._command[0])
        self._token = ""
        self._ends: float | None = None
        self._lock = threading.Lock()
        #: When the client certificate that it returned expires; None without one, or if it does not say.
        self.certificate_ends: float | None = None

    def first(self) -> dict[str, str]:
        """Run it, and return the client certificate that it may give, as a kubeconfig holds one."""
        status = self._run()
        if not (status.get("clientCertificateData") and status.get("clientKeyData")):
            return {}
        self.certificate_ends = self._ends
        return {
            "client-certificate-data": base64.b64encode(status["clientCertificateData"].encode()).decode(),
            "client-key-data": base64.b64encode(status["clientKeyData"].encode()).decode(),
        }

    def token(self, refused: str = "") -> str:
        """Return a token that is valid now, "" without one; another one than ``refused`` if possible."""
        with self._lock:
            ends = self._ends if self._token else None  # a certificate's end concerns the connection
            if (refused and self._token == refused) or (ends and time.time() > ends - _EARLY):
                self._run()
            return self._token

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Send a request with the token, and again with a newer one if that is refused."""
        token = self.token()
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        response = yield request
        if response.status_code == 401 and token:
            newer = self.token(refused=token)
            if newer != token:
                request.headers["Authorization"] = f"Bearer {newer}"
                yield request

    def _info(self, interactive: bool) -> dict[str, Any]:
        """Return what the plug-in gets in KUBERNETES_EXEC_INFO."""
        spec: dict[str, Any] = {"interactive": interactive}
        if self._settings.get("provideClusterInfo"):
            cluster = {name: self._cluster[name] for name in _CLUSTER_FACTS if self._cluster.get(name)}
            if self._cluster.get("certificate-authority"):
                content = Path(self._cluster["certificate-authority"]).read_bytes()
                cluster.setdefault("certificate-authority-data", base64.b64encode(content).decode())
            for each in self._cluster.get("extensions") or []:
                if each.get("name") == "client.authentication.k8s.io/exec":
                    cluster["config"] = each.get("extension")
            spec["cluster"] = cluster
        version = self._settings.get("apiVersion", "client.authentication.k8s.io/v1")
        return {"apiVersion": version, "kind": "ExecCredential", "spec": spec}

    def _run(self) -> dict[str, Any]:
        mode = self._settings.get("interactiveMode") or "IfAvailable"
        interactive = mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not interactive:
            raise AccessError(
                f"the credential plug-in {self._name} asks questions, and there is no terminal",
                hint="Log in on a terminal first, with the tool that made the kubeconfig.",
            )
        try:
            environ = {**os.environ, "KUBERNETES_EXEC_INFO": json.dumps(self._info(interactive))}
            environ |= {each["name"]: str(each["value"]) for each in self._settings.get("env") or []}
            done = subprocess.run(
                self._command,
                env=environ,
                stdin=None if interactive else subprocess.DEVNULL,  # input may be meant for our own command
                stdout=subprocess.PIPE,
                stderr=None if interactive else subprocess.PIPE,  # it may say where to log in
                timeout=PLUGIN_LIMIT,
            )
        except OSError as error:
            raise ConfigError(
                f"the kubeconfig's credential plug-in {self._name} cannot be started: {error.strerror}",
                hint=str(self._settings.get("installHint") or f"Install {self._name}.").strip(),
            ) from None
        except subprocess.TimeoutExpired:
            raise AccessError(
                f"the credential plug-in {self._name} gave no answer in {PLUGIN_LIMIT:.0f} s"
            ) from None
        if done.returncode:
            message = (done.stderr or b"").decode("utf-8", "replace").strip()
            message = message or ("see above" if interactive else "it says nothing")
            raise AccessError(
                f"the credential plug-in {self._name} ended with {done.returncode}: {message[-1000:]}",
                hint="Log in again with the tool that made the kubeconfig.",
            )
        try:
            status: dict[str, Any] = json.loads(done.stdout)["status"]
        except (ValueError, KeyError, TypeError):
            raise AccessError(f"the credential plug-in {self._name} printed no ExecCredential") from None
        self._token = str(status.get("token") or "")
        self._ends = seconds(status.get("expirationTimestamp"))
        return status
