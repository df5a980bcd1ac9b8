"""Choose cluster and credentials: from kubeconfig files, credential plug-ins, or the pod's own account.

Files are found as kubectl finds them: the option, ``$KUBECONFIG`` (several files are merged: what comes first
wins), ``~/.kube/config``; without any, the service account of the pod that we run in
(https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/). TLS and tokens are
lightkube's. Credential plug-ins are started here, since lightkube knows neither their version v1 nor their
expiry
(https://kubernetes.io/docs/reference/access-authn-authz/authentication/#client-go-credential-plugins).
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
from typing import Any, NamedTuple
from urllib.parse import quote

from shunter.errors import AccessError, ConfigError, did_you_mean
from shunter.paths import read_regular_file
from shunter.schedulers.kubernetes_scheduler.reasons import seconds

DEFAULT_FILE = "~/.kube/config"
#: Seconds that a plug-in may take: some open a browser.
PLUGIN_LIMIT = 180.0
_EARLY = 30.0  # seconds before a credential's end at which a new one is fetched
#: Members of a kubeconfig that are paths, relative to their file.
_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")


class ClusterConnection(NamedTuple):
    """A client of the API server, and what to call it in messages."""

    client: Any  # httpx2.Client
    server: str
    context: str
    #: When its client certificate ends, which a credential plug-in gave, in seconds since the epoch.
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
    import httpx2
    from lightkube.config.client_adapter import ConnectionParams
    from lightkube.core.exceptions import ConfigError as LightkubeError

    found = _load(context, kubeconfig)
    config, plugin = found.config, found.plugin
    try:
        patience = httpx2.Timeout(timeout, connect=10.0)
        proxy = str(found.cluster.get("proxy-url") or "") or None
        params = ConnectionParams(timeout=patience, proxy=proxy).httpx_params(config)
    except (LightkubeError, OSError, ValueError) as error:
        raise ConfigError(f"the kubeconfig's context {config.context_name} cannot be used: {error}") from None
    if plugin is not None:
        params["auth"] = _auth(plugin)
    server_name = found.cluster.get("tls-server-name")
    if server_name:

        def expect(request: Any) -> None:
            request.extensions["sni_hostname"] = str(server_name)

        params["event_hooks"] = {"request": [expect]}
    # each log that is followed is a connection
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=20)
    client = httpx2.Client(**params, limits=limits, headers=_impersonation(found.user))
    ends = plugin.certificate_ends if plugin is not None else None
    name = config.context_name if found.cluster else ""  # a pod's own account has no context
    return ClusterConnection(client, config.cluster.server, name, ends)


def _impersonation(user: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the headers by which a user acts as another one (``as`` of a kubeconfig).

    https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/
    """
    found = [("Impersonate-User", str(user["as"]))] if user.get("as") else []
    if user.get("as-uid"):
        found.append(("Impersonate-Uid", str(user["as-uid"])))
    found += [("Impersonate-Group", str(group)) for group in user.get("as-groups") or []]
    for key, values in (user.get("as-user-extra") or {}).items():
        found += [(f"Impersonate-Extra-{quote(str(key), safe='')}", str(value)) for value in values]
    return found


class _Loaded(NamedTuple):
    """A context of a kubeconfig: lightkube's view of it, its credential plug-in, cluster and user."""

    config: Any
    plugin: CredentialPlugin | None
    cluster: dict[str, Any]
    user: dict[str, Any]


def _load(context: str, kubeconfig: str) -> _Loaded:
    """Read a context, and start its credential plug-in."""
    from lightkube.config.kubeconfig import KubeConfig
    from lightkube.core.exceptions import ConfigError as LightkubeError

    paths = _files(kubeconfig)
    if not paths:
        if context:
            raise ConfigError(f"there is no kubeconfig, so there is no context {context!r}", hint=_NO_FILE)
        try:
            return _Loaded(KubeConfig.from_service_account().get(), None, {}, {})
        except (LightkubeError, KeyError):
            raise ConfigError("there is no kubeconfig", hint=_NO_FILE) from None
    merged = _merged([_read(path) for path in paths])
    shown = ", ".join(paths)
    name = context or merged["current-context"]
    contexts = {each["name"]: each.get("context") or {} for each in merged["contexts"]}
    if not name:
        raise ConfigError(
            f"{shown} has no current context",
            hint="Choose one: -cfg context=NAME, or kubectl config use-context.",
        )
    if name not in contexts:
        raise ConfigError(f"{shown} has no context {name!r}", hint=did_you_mean(name, contexts))
    for kind in ("cluster", "user"):
        wanted = contexts[name].get(kind)
        if wanted and wanted not in {each["name"] for each in merged[f"{kind}s"]}:
            raise ConfigError(
                f"the context {name!r} of {shown} names the {kind} {wanted!r}, which is missing there"
            )
    if not contexts[name].get("cluster"):
        raise ConfigError(f"the context {name!r} of {shown} names no cluster")
    user = _user(merged, contexts[name])
    clusters = {each["name"]: each.get("cluster") or {} for each in merged["clusters"]}
    cluster = clusters[contexts[name]["cluster"]]
    plugin = None
    if user.get("exec"):
        plugin = CredentialPlugin(user["exec"], cluster)
        user.update(plugin.first())
        del user["exec"]
    try:
        return _Loaded(KubeConfig.from_dict(merged).get(name), plugin, cluster, user)
    except (LightkubeError, KeyError, TypeError, ValueError) as error:  # msgspec's are ValueErrors
        raise ConfigError(f"{shown} cannot be read: {type(error).__name__}: {error}") from None


def _user(merged: dict[str, Any], context: dict[str, Any]) -> dict[str, Any]:
    """Return the user of a context; one without credentials if it names none."""
    for each in merged["users"]:
        each["user"] = each.get("user") or {}
    if not context.get("user"):
        context["user"] = "nobody (shunter)"
        merged["users"].append({"name": context["user"], "user": {}})
    found: dict[str, Any] = next(each["user"] for each in merged["users"] if each["name"] == context["user"])
    return found


_NO_FILE = "Give one: -cfg kubeconfig=PATH, or KUBECONFIG; `kubectl config view` shows what kubectl uses."


def _files(kubeconfig: str) -> list[str]:
    if kubeconfig:
        return [os.path.expanduser(kubeconfig)]
    named = [path for path in os.environ.get("KUBECONFIG", "").split(os.pathsep) if path]
    if named:
        there = [path for path in named if os.path.exists(path)]
        if not there:
            raise ConfigError(f"KUBECONFIG names {', '.join(named)}, which does not exist", hint=_NO_FILE)
        return there
    default = os.path.expanduser(DEFAULT_FILE)
    return [default] if os.path.exists(default) else []


def _read(path: str) -> dict[str, Any]:
    import yaml

    try:
        # a shell's <(...) is a pipe, /dev/fd/N or /proc/self/fd/N; another FIFO might have no writer
        content = yaml.safe_load(read_regular_file(path, special="/fd/" in path))
    except OSError as error:
        raise ConfigError(f"cannot read the kubeconfig {path}: {error.strerror}", hint=_NO_FILE) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"the kubeconfig {path} is not YAML: {error}") from None
    except RecursionError:
        raise ConfigError(f"the kubeconfig {path} is nested too deeply") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a kubeconfig")
    for section in ("clusters", "contexts", "users"):
        each = content.get(section) or []
        if not isinstance(each, list) or not all(isinstance(item, dict) and "name" in item for item in each):
            raise ConfigError(f"{path} is not a kubeconfig: {section} is not a list of named entries")
        bodies = [item.get(section[:-1]) for item in each]
        if not all(body is None or isinstance(body, dict) for body in bodies):
            raise ConfigError(f"{path} is not a kubeconfig: {section[:-1]} is not a mapping")
    folder = os.path.dirname(os.path.abspath(path))
    for section, key in (("clusters", "cluster"), ("users", "user")):
        for each in content.get(section) or []:
            body = each.get(key) or {}
            for name in _PATHS:
                if body.get(name):
                    body[name] = os.path.join(folder, body[name])
            plugin = body.get("exec") or {}
            if os.sep in str(plugin.get("command") or ""):  # otherwise it is sought in PATH
                plugin["command"] = os.path.join(folder, plugin["command"])
    return content


def _merged(contents: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {"clusters": [], "contexts": [], "users": [], "current-context": ""}
    for content in contents:
        merged["current-context"] = merged["current-context"] or content.get("current-context") or ""
        for section in ("clusters", "contexts", "users"):
            known = {each["name"] for each in merged[section]}
            merged[section] += [each for each in content.get(section) or [] if each.get("name") not in known]
    return merged


class CredentialPlugin:
    """A program that prints credentials, ``user.exec`` of a kubeconfig.

    Args:
        settings: what the kubeconfig says of it.
        cluster: what the kubeconfig says of the cluster, for plug-ins that want to know.
    """

    def __init__(self, settings: dict[str, Any], cluster: dict[str, Any] | None = None) -> None:
        self._settings = settings
        self._cluster = cluster or {}
        self._command = [str(settings.get("command", "")), *map(str, settings.get("args") or [])]
        self._token = ""
        self._ends: float | None = None
        self._lock = threading.Lock()
        #: When the client certificate that it returned expires; None without one, or if it does not say.
        self.certificate_ends: float | None = None

    def first(self) -> dict[str, str]:
        """Run it, and return the client certificate that it may give, as a kubeconfig holds one."""
        status = self._run()
        found = {}
        for given, name in (
            ("clientCertificateData", "client-certificate-data"),
            ("clientKeyData", "client-key-data"),
        ):
            if status.get(given):
                found[name] = base64.b64encode(status[given].encode()).decode()
        if found:
            self.certificate_ends = self._ends
        return found

    def token(self, refused: str = "") -> str:
        """Return a token that is valid now, "" without one; another one than ``refused`` if possible."""
        with self._lock:
            ends = self._ends if self._token else None  # a certificate's end concerns the connection
            if (refused and self._token == refused) or (ends and time.time() > ends - _EARLY):
                self._run()
            return self._token

    def _info(self, interactive: bool) -> dict[str, Any]:
        """Return what the plug-in gets in KUBERNETES_EXEC_INFO."""
        spec: dict[str, Any] = {"interactive": interactive}
        if self._settings.get("provideClusterInfo"):
            known = self._cluster
            wanted = (
                "server",
                "tls-server-name",
                "insecure-skip-tls-verify",
                "certificate-authority-data",
                "proxy-url",
            )
            cluster = {name: known[name] for name in wanted if known.get(name)}
            if "certificate-authority" in known and "certificate-authority-data" not in cluster:
                with open(known["certificate-authority"], "rb") as file:
                    cluster["certificate-authority-data"] = base64.b64encode(file.read()).decode()
            for each in known.get("extensions") or []:
                if each.get("name") == "client.authentication.k8s.io/exec":
                    cluster["config"] = each.get("extension")
            spec["cluster"] = cluster
        version = self._settings.get("apiVersion", "client.authentication.k8s.io/v1")
        return {"apiVersion": version, "kind": "ExecCredential", "spec": spec}

    def _run(self) -> dict[str, Any]:
        name = os.path.basename(self._command[0])
        mode = self._settings.get("interactiveMode") or "IfAvailable"
        interactive = mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if mode == "Always" and not interactive:
            raise AccessError(
                f"the credential plug-in {name} asks questions, and there is no terminal",
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
                f"the kubeconfig's credential plug-in {name} cannot be started: {error.strerror}",
                hint=str(self._settings.get("installHint") or f"Install {name}.").strip(),
            ) from None
        except subprocess.TimeoutExpired:
            raise AccessError(
                f"the credential plug-in {name} gave no answer in {PLUGIN_LIMIT:.0f} s"
            ) from None
        if done.returncode:
            said = (done.stderr or b"").decode("utf-8", "replace").strip()
            said = said or ("see above" if interactive else "it says nothing")
            raise AccessError(
                f"the credential plug-in {name} ended with {done.returncode}: {said[-1000:]}",
                hint="Log in again with the tool that made the kubeconfig.",
            )
        try:
            status: dict[str, Any] = json.loads(done.stdout)["status"]
        except (ValueError, KeyError, TypeError):
            raise AccessError(f"the credential plug-in {name} printed no ExecCredential") from None
        self._token = str(status.get("token") or "")
        self._ends = seconds(status.get("expirationTimestamp"))
        return status


def _auth(plugin: CredentialPlugin) -> Any:
    """Return an authentication of httpx2 that takes its tokens from a plug-in."""
    import httpx2

    class PluginAuth(httpx2.Auth):
        def auth_flow(self, request: Any) -> Generator[Any, Any, None]:
            token = plugin.token()
            if token:
                request.headers["Authorization"] = f"Bearer {token}"
            response = yield request
            if response.status_code == 401 and token:
                newer = plugin.token(refused=token)
                if newer != token:
                    request.headers["Authorization"] = f"Bearer {newer}"
                    yield request

    return PluginAuth()
