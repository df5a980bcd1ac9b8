"""The ways to a registry: proxies, IPv6, connections that are kept."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from email.message import Message

import pytest

from shunter.errors import ConfigError
from shunter.url_client import Proxy, UrlClient, proxy_for
from tests.registry.images import push_image, sha256
from tests.registry.proxies import Fault, http_proxy
from tests.registry.server import RegistryServer, htpasswd
from tests.registry.test_auth import certificate, secure  # noqa: F401


class ConnectProxy:
    """A proxy for https: leads every CONNECT to one port of this machine."""

    def __init__(self, port):
        self.heads = []
        self._port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._sockets = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                head = b""
                while b"\r\n\r\n" not in head:
                    head += near.recv(4096)
                self.heads.append(head.decode())
                far = socket.create_connection(("127.0.0.1", self._port))
                near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                self._sockets += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source, sink):
        with contextlib.suppress(OSError):
            while block := source.recv(1 << 16):
                sink.sendall(block)
            sink.shutdown(socket.SHUT_WR)

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._sockets:
            sock.close()


def test_http_proxy_of_the_environment(registry, connect, repo):
    with http_proxy(registry.port) as proxy:
        passed = proxy.passed
        # the registry's Locations name the host that was asked for, as they do behind a real proxy
        proxy.passed = lambda request, body: passed(
            request._replace(path=request.path.partition(":80")[2]), body
        )
        env = {"http_proxy": f"http://me:pa%20ss@{proxy.host}"}
        content = os.urandom(2 << 20)
        client = connect("registry.test:80", environ=env, insecure=True)
        assert client.upload_blob(repo, content, sha256(content), len(content))
        assert client.read_blob(repo, sha256(content), 4 << 20) == content
        assert all(seen.path.startswith("http://registry.test:80/v2/") for seen in proxy.seen)
        assert {seen.headers.get("Proxy-Authorization") for seen in proxy.seen} == {"Basic bWU6cGEgc3M="}


def test_https_goes_through_a_tunnel(secure, certificate, connect, repo):  # noqa: F811
    proxy = ConnectProxy(secure.port)
    try:
        env = {
            "HTTPS_PROXY": f"http://me:pw@127.0.0.1:{proxy.port}",
            "no_proxy": "127.0.0.1",
            "SSL_CERT_FILE": str(certificate.path),
        }
        client = connect("registry.test", environ=env)
        assert push_image(client, repo, "v1", [{"a": b"1"}])
        assert len(proxy.heads) == 1  # and the connection is kept
        assert proxy.heads[0].startswith("CONNECT registry.test:443 HTTP/1.")
        assert "Proxy-Authorization: Basic bWU6cHc=" in proxy.heads[0]
    finally:
        client.close()
        proxy.close()
    assert secure.tags(repo) == ["v1"]


P = "http://proxy.lan:3128"


@pytest.mark.parametrize(
    ("environ", "host", "port"),
    [
        ({"https_proxy": P}, "ghcr.io", 3128),
        ({"HTTPS_PROXY": P}, "ghcr.io", 3128),
        ({"ALL_PROXY": P}, "ghcr.io", 3128),
        ({"https_proxy": "proxy.lan"}, "ghcr.io", 80),
        ({"http_proxy": P}, "ghcr.io", None),
        ({"https_proxy": P}, "127.0.0.1", None),
        ({"https_proxy": P}, "::1", None),
        ({"https_proxy": P, "no_proxy": "*"}, "ghcr.io", None),
        ({"https_proxy": P, "no_proxy": "a.io, GHCR.io"}, "ghcr.io", None),
        ({"https_proxy": P, "NO_PROXY": ".io"}, "ghcr.io", None),
        ({"https_proxy": P, "no_proxy": "ghcr.io:443"}, "ghcr.io", None),
        ({"https_proxy": P, "no_proxy": "ghcr.io:444"}, "ghcr.io", 3128),
        ({"https_proxy": P, "no_proxy": "hcr.io"}, "ghcr.io", 3128),
        ({"https_proxy": P, "no_proxy": "10.0.0.0/8"}, "10.1.2.3", None),
        ({"https_proxy": P, "no_proxy": "10.0.0.0/8"}, "11.1.2.3", 3128),
        ({}, "ghcr.io", None),
    ],
)
def test_which_proxy(environ, host, port):
    proxy = proxy_for("https", host, 443, environ)
    assert proxy == (Proxy(f"http://proxy.lan:{port}", {}) if port else None)


@pytest.mark.parametrize("url", ["socks5://me:secret-1@x:1", "http://[bad", "http://"])
def test_proxies_that_cannot_be_used(url):
    with pytest.raises(ConfigError, match=r"proxy for https .*https_proxy") as caught:
        proxy_for("https", "ghcr.io", 443, {"https_proxy": url})
    assert "secret-1" not in str(caught.value)


# The connection


def test_each_way_to_log_in_that_a_registry_names_counts(registry, connect, repo):
    """Some name each of them in a separate header."""
    push_image(connect(registry.host), repo, "v1", [{"a": b"1"}])
    ways = Message()
    ways["WWW-Authenticate"] = 'Basic realm="registry"'
    ways["WWW-Authenticate"] = "Negotiate"

    def ask(seen, _):
        return None if "Authorization" in seen.headers else Fault(401, ways)

    with http_proxy(registry.port, ask) as proxy:
        assert connect(proxy.host).manifest(repo, "v1") is not None


def test_a_server_may_take_longer_to_read_than_to_connect(monkeypatch):
    monkeypatch.setattr("shunter.url_client.CONNECT_SECONDS", 0.2)
    has_waited = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            near = listener.accept()[0]
            threading.Event().wait(0.6)
            has_waited.set()
            left = 16 << 20
            while left > 0 and (block := near.recv(1 << 20)):
                left -= len(block)
            near.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
            near.close()

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        body = iter([bytes(1 << 20)] * 16)
        with UrlClient({}).send("PUT", url, {"Content-Length": str(16 << 20)}, body) as answer:
            assert answer.status == 201
        thread.join()
    assert has_waited.is_set()


def test_ipv6(tmp_path, connect, repo):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("there is no IPv6 here")
    server = RegistryServer(tmp_path, htpasswd(tmp_path), address="::1").start()
    try:
        client = connect(server.host)
        digest = push_image(client, repo, "v1", [{"a": os.urandom(2 << 20)}])
        assert client.manifest(repo, "v1").digest == digest
    finally:
        server.stop()
