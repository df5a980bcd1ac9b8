"""The API server's requests, watches and errors, and what kubeconfigs say."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from shunter.backoff import Clock
from shunter.errors import AccessError, ConfigError
from shunter.schedulers.kubernetes_scheduler.api_server import ApiServer, KubernetesError, Watches
from shunter.schedulers.kubernetes_scheduler.kubeconfig import connect
from tests.backends import need
from tests.kubernetes.certificates import Authority
from tests.kubernetes.stub import Stub, failure

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(autouse=True)
def client() -> None:
    need("lightkube")


class Quick(Clock):
    """Does not wait, and remembers how long it was asked to."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self.slept.append(seconds)
        return event.wait(0)


@pytest.fixture
def clock() -> Quick:
    return Quick()


@pytest.fixture
def server(stub: Stub, tmp_path: Path, clock: Quick) -> Any:
    with closing(ApiServer("", stub.kubeconfig(tmp_path / "kubeconfig"), clock)) as made:
        yield made


def pod(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "status": {"phase": "Pending"}}


# ---- requests


def test_pages(server: ApiServer, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shunter.schedulers.kubernetes_scheduler.api_server.PAGE_SIZE", 2)
    for number in range(5):
        stub.put("pods", pod(f"pod-{number}"))
    items = server.items(PODS)
    assert [each["metadata"]["name"] for each in items] == [f"pod-{number}" for number in range(5)]
    assert len(stub.requests) == 3


def test_errors_of_the_server_are_repeated_and_then_raised(
    server: ApiServer, stub: Stub, clock: Quick
) -> None:
    stub.faults = lambda *request: (503, failure(503, "InternalError", "etcdserver: leader changed"), {})
    with pytest.raises(KubernetesError, match="leader changed") as caught:
        server.get(PODS)
    assert caught.value.exit_code == 4
    assert len(clock.slept) == 3


@pytest.mark.parametrize(
    ("status", "message", "hint"),
    [
        (
            403,
            'jobs.batch "a" is forbidden: exceeded quota: gpus, requested: 8, used: 8, limited: 8',
            "quota",
        ),
        (403, 'admission webhook "validate.kyverno.svc-fail" denied the request: no team label', "policy"),
        (403, 'pods "a" is forbidden: violates PodSecurity "baseline:latest": privileged', "privileged"),
        (403, 'pods "a" is forbidden: no PriorityClass with name x was found', "priorityclasses"),
        (400, 'strict decoding error: unknown field "spec.template.spec.schedulingGroup"', "older"),
        (422, 'Job.batch "a" is invalid: spec.template.spec.containers[0].image: Required value', ""),
    ],
)
def test_refusals_keep_the_servers_words(
    server: ApiServer, stub: Stub, status: int, message: str, hint: str
) -> None:
    stub.faults = lambda *request: (status, failure(status, "Forbidden", message), {})
    with pytest.raises(KubernetesError) as caught:
        server.create(PODS, pod("a"))
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert not isinstance(caught.value, AccessError)
    assert len(stub.requests) == 1


@pytest.mark.parametrize(
    ("status", "said"), [(401, "refuses the credentials of the context stub"), (403, "cannot list")]
)
def test_missing_rights(server: ApiServer, stub: Stub, status: int, said: str) -> None:
    message = (
        'pods is forbidden: User "system:serviceaccount:team:me" cannot list resource "pods" in API group ""'
    )
    stub.faults = lambda *request: (status, failure(status, "Forbidden", message), {})
    with pytest.raises(AccessError, match=said) as caught:
        server.get(PODS)
    assert "service_account" not in caught.value.hint


def test_an_address_at_which_nobody_answers(tmp_path: Path, clock: Quick) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    path = write(tmp_path, server=f"http://127.0.0.1:{port}")
    with (
        closing(ApiServer("", path, clock)) as server,
        pytest.raises(KubernetesError, match="cannot be reached") as caught,
    ):
        server.get("/version")
    assert caught.value.status == 0
    assert "VPN" in caught.value.hint


# ---- changes


def test_changes_are_told(server: ApiServer, stub: Stub) -> None:
    """A watch that broke off begins with all objects, so nothing is missed meanwhile."""
    stub.put("pods", pod("other", app="y"))
    stub.cut_watches = [5, 5]
    with closing(Watches(server, [PODS], "app=x")) as watches:
        stub.wait_for(lambda: stub.requests)
        for name in ("a", "b", "c"):
            stub.put("pods", pod(name, app="x"))
            began = time.monotonic()
            watches.wait(20)
            assert time.monotonic() - began < 19
        stub.wait_for(lambda: not stub.cut_watches)
        stub.wait_for(lambda: sum("watch=true" in each for each in stub.requests) > 2)
        began = time.monotonic()
    assert time.monotonic() - began < 1, "closing does not wait until the server ends the watch"


def test_where_watching_is_not_allowed_a_change_is_supposed_now_and_then(
    server: ApiServer, stub: Stub
) -> None:
    stub.faults = lambda *request: (403, failure(403, "Forbidden", "cannot watch"), {})
    with closing(Watches(server, [PODS], "app=x")) as watches:
        for _ in range(3):
            began = time.monotonic()
            watches.wait(20)
            assert time.monotonic() - began < 19


# ---- kubeconfigs


def write(folder: Path, name: str = "config", **settings: Any) -> str:
    user = settings.pop("user", {"token": "t"})
    context = settings.pop("context", "here")
    content = {
        "current-context": settings.pop("current", context),
        "clusters": [
            {"name": f"{context}-cluster", "cluster": {"server": "https://127.0.0.1:1", **settings}}
        ],
        "users": [{"name": f"{context}-user", "user": user}],
        "contexts": [
            {"name": context, "context": {"cluster": f"{context}-cluster", "user": f"{context}-user"}}
        ],
    }
    path = folder / name
    path.write_text(json.dumps(content))
    return str(path)


def test_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path, "one", server="http://one")
    second = write(tmp_path, "two", server="http://two", context="there")
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path}/missing:{second}")
    assert connect("", "", 5).server == "http://one"
    assert connect("there", "", 5).server == "http://two"
    assert connect("", second, 5).context == "there"
    with pytest.raises(ConfigError, match="no context 'ther'") as caught:
        connect("ther", "", 5)
    assert "there" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1", "is not YAML"),
        ("7", "is not a kubeconfig"),
        ("clusters: [1]", "is not a kubeconfig: TypeError"),
        ("{}", "no current context"),
        (
            '{"current-context": "a", "contexts": [{"name": "a", "context": {"cluster": "b"}}]}',
            "names the cluster 'b'",
        ),
        ('{"current-context": "a", "contexts": [{"name": "a", "context": {}}]}', "names no cluster"),
    ],
)
def test_kubeconfigs_that_cannot_be_used(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    with pytest.raises(ConfigError, match=said):
        connect("", str(path), 5)


def test_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with pytest.raises(ConfigError, match="there is no kubeconfig"):
        connect("", "", 5)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="does not exist"):
        connect("", "", 5)


def plugin(folder: Path, script: str) -> dict[str, Any]:
    path = folder / "get-token"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": str(path),
            "interactiveMode": "Never",
        }
    }


def credential(token: str, ends: float | None = None) -> str:
    status: dict[str, Any] = {"token": token}
    if ends is not None:
        status["expirationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + ends))
    return json.dumps(
        {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    )


def test_tokens_of_a_plugin_are_kept_until_they_end_or_are_refused(stub: Stub, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    script = f"echo \"$KUBERNETES_EXEC_INFO\" >>{calls}; echo '{credential('abc', 3600)}'"
    with closing(ApiServer("", stub.kubeconfig(tmp_path / "config", **plugin(tmp_path, script)))) as server:
        server.get("/version")
        server.get("/version")
        assert len(calls.read_text().splitlines()) == 1
        assert json.loads(calls.read_text())["apiVersion"] == "client.authentication.k8s.io/v1"
        refused = [(401, failure(401, "Unauthorized", "Unauthorized"), {})]
        stub.faults = lambda *request: refused.pop() if refused else None
        with pytest.raises(AccessError):  # the plug-in gives the same token again
            server.get("/version")
        assert len(calls.read_text().splitlines()) == 2


def told(tmp_path: Path, stub: Stub, cluster: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """Return what a plug-in with these settings gets."""
    user = plugin(tmp_path, f"echo \"$KUBERNETES_EXEC_INFO\" >{tmp_path}/told; echo '{credential('abc')}'")
    user["exec"].update(settings)
    with closing(ApiServer("", stub.kubeconfig(tmp_path / "config", cluster, **user))) as server:
        server.get("/version")
    found: dict[str, Any] = json.loads((tmp_path / "told").read_text())["spec"]
    return found


def test_a_plugin_may_want_to_know_the_cluster(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "ca").write_bytes(Authority().pem)
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    cluster = {"certificate-authority": "ca", "extensions": [extension], "tls-server-name": "k"}
    spec = told(tmp_path, stub, cluster, provideClusterInfo=True)
    assert base64.b64decode(spec["cluster"].pop("certificate-authority-data")).startswith(b"-----BEGIN CERT")
    assert spec["cluster"] == {"server": stub.url, "tls-server-name": "k", "config": {"audience": "x"}}
    assert told(tmp_path, stub, cluster) == {"interactive": False}


def test_a_plugin_beside_its_kubeconfig_does_not_read_our_input(stub: Stub, tmp_path: Path) -> None:
    """`echo data | shunter exec ...` is for the command, not for the plug-in."""
    user = plugin(tmp_path, f"cat >{tmp_path}/read; echo '{credential('abc')}'")
    user["exec"]["command"] = "./get-token"
    user["exec"]["interactiveMode"] = "IfAvailable"
    path = stub.kubeconfig(tmp_path / "config", **user)
    code = (
        "import sys; from shunter.schedulers.kubernetes_scheduler.api_server import ApiServer\n"
        f"ApiServer('', {path!r}).get('/version'); print(sys.stdin.read())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="data", capture_output=True, text=True, check=True, timeout=50
    )
    assert done.stdout == "data\n"
    assert (tmp_path / "read").read_text() == ""


def test_a_plugin_that_asks_needs_a_terminal(stub: Stub, tmp_path: Path) -> None:
    user = plugin(tmp_path, f"echo '{credential('abc')}'")
    user["exec"]["interactiveMode"] = "Always"
    with (
        closing(ApiServer("", stub.kubeconfig(tmp_path / "config", **user))) as server,
        pytest.raises(AccessError, match="asks questions, and there is no terminal"),
    ):
        server.get("/version")


# ---- over TLS


class Cluster:
    """A server that knows users by their certificates and tokens, and what a kubeconfig needs for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority()
        certificate = self.authority.issue("server", "kubernetes", address="")
        (folder / "ca").write_bytes(self.authority.pem)
        (folder / "server").write_bytes(certificate.pem + certificate.key)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca"))
        context.load_cert_chain(folder / "server")
        context.verify_mode = ssl.CERT_OPTIONAL
        self.stub = Stub(context)
        data = base64.b64encode(self.authority.pem).decode()
        self.settings = {"certificate-authority-data": data, "tls-server-name": "kubernetes"}

    def server(self, settings: dict[str, Any] | None = None, **user: Any) -> ApiServer:
        path = self.stub.kubeconfig(self.folder / "config", settings or self.settings, **user)
        return ApiServer("", path, Quick())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    with made.stub:
        yield made


def test_client_certificates(cluster: Cluster) -> None:
    cluster.stub.users = {"me"}
    mine = cluster.authority.issue("me", address="")
    data = {
        "client-certificate-data": base64.b64encode(mine.pem).decode(),
        "client-key-data": base64.b64encode(mine.key).decode(),
    }
    with closing(cluster.server(**data)) as server:
        assert server.get("/version")
    cluster.stub.users = {"somebody else"}
    with closing(cluster.server(**data)) as server, pytest.raises(AccessError, match="have they expired"):
        server.get("/version")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"certificate-authority-data": None}, "CERTIFICATE_VERIFY_FAILED"),
        ({"tls-server-name": None}, "certificate is not valid for '127.0.0.1'"),
    ],
)
def test_a_server_that_is_not_the_one_is_asked_once(
    cluster: Cluster, settings: dict[str, Any], said: str
) -> None:
    known = {key: value for key, value in {**cluster.settings, **settings}.items() if value is not None}
    if "certificate-authority-data" not in known:
        known["certificate-authority-data"] = base64.b64encode(Authority("other").pem).decode()
    with closing(cluster.server(known, token="t")) as server:
        with pytest.raises(KubernetesError, match=said) as caught:
            server.get("/version")
        assert "outdated or for another cluster" in caught.value.hint
        assert server._clock.slept == []  # type: ignore[attr-defined]
    with closing(cluster.server({"insecure-skip-tls-verify": True}, token="t")) as server:
        cluster.stub.users = {"t"}
        assert server.get("/version")


def test_a_token_in_a_file_is_read_again_when_it_was_replaced(cluster: Cluster, tmp_path: Path) -> None:
    """As service accounts' are, in a pod."""
    (tmp_path / "token").write_text("first\n")
    cluster.stub.users = {"first"}
    with closing(cluster.server(tokenFile="token")) as server:
        assert server.get("/version")
        (tmp_path / "token").write_text("second\n")
        cluster.stub.users = {"second"}
        assert server.get("/version")
        (tmp_path / "token").unlink()
        cluster.stub.users = {"third"}
        with pytest.raises(AccessError, match="cannot be read"):
            server.get("/version")


def test_the_account_of_a_pod(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightkube.config import kubeconfig as lightkube_files

    account = tmp_path / "account"
    account.mkdir()
    for name, content in {
        "token": b"first",
        "namespace": b"team",
        "ca.crt": cluster.authority.pem,
    }.items():
        (account / name).write_bytes(content)
    certificate = cluster.authority.issue("server")  # for the address
    (tmp_path / "server").write_bytes(certificate.pem + certificate.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server")
    from_account = lightkube_files.KubeConfig.from_service_account
    monkeypatch.setattr(
        lightkube_files.KubeConfig, "from_service_account", staticmethod(lambda: from_account(account))
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    with Stub(context) as stub:
        host, _, port = stub.url.removeprefix("https://").partition(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        stub.users = {"first"}
        with closing(ApiServer()) as server:
            assert server.get("/version")
            (account / "token").write_text("second")  # the kubelet replaces it every hour
            stub.users = {"second"}
            assert server.get("/version")


def test_a_certificate_of_a_plugin_is_replaced_before_it_ends(cluster: Cluster, tmp_path: Path) -> None:
    cluster.stub.users = {"me"}
    mine = cluster.authority.issue("me", address="")
    status = {
        "clientCertificateData": mine.pem.decode(),
        "clientKeyData": mine.key.decode(),
        "expirationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 10)),
    }
    (tmp_path / "credential").write_text(json.dumps({"kind": "ExecCredential", "status": status}))
    user = plugin(tmp_path, f"echo x >>{tmp_path}/calls; cat {tmp_path}/credential")
    with closing(cluster.server(**user)) as server:
        server.get("/version")
        server.get("/version")
    assert len((tmp_path / "calls").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("script", "error", "said"),
    [
        ("echo 'session expired' >&2; exit 1", AccessError, "ended with 1: session expired"),
        ("echo hello", AccessError, "printed no ExecCredential"),
    ],
)
def test_plugins_that_fail(
    stub: Stub, tmp_path: Path, script: str, error: type[Exception], said: str
) -> None:
    with (
        closing(ApiServer("", stub.kubeconfig(tmp_path / "config", **plugin(tmp_path, script)))) as server,
        pytest.raises(error, match=said),
    ):
        server.get("/version")
