"""Logging in: Basic, tokens of a token server, https, and who is not told our secrets."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.docker.credentials import Credentials
from shunter.image_registry import certificates
from shunter.image_registry.auth import Challenge, parse_challenges
from shunter.image_registry.registry_errors import (
    RegistryAuthError,
    RegistryError,
    RegistryUnavailableError,
)
from tests.registry.images import push_image, sha256
from tests.registry.proxies import FakeTime, Fault, http_proxy
from tests.registry.server import PASSWORD, RegistryServer, docker_config, htpasswd
from tests.registry.tokens import Certificate, TokenServer

# What a header asks for


@pytest.mark.parametrize(
    ("header", "challenges"),
    [
        ('Basic realm="x"', [Challenge("basic", {"realm": "x"})]),
        (
            'Bearer realm="https://a/t?x=1,2",service="s",scope="repository:a/b:pull,push"',
            [
                Challenge(
                    "bearer",
                    {"realm": "https://a/t?x=1,2", "service": "s", "scope": "repository:a/b:pull,push"},
                )
            ],
        ),
        (
            'Bearer realm="r", error="insufficient_scope", Basic realm="b"',
            [
                Challenge("bearer", {"realm": "r", "error": "insufficient_scope"}),
                Challenge("basic", {"realm": "b"}),
            ],
        ),
        (r'Basic realm="a \"b\" c"', [Challenge("basic", {"realm": 'a "b" c'})]),
        ("Negotiate, Basic realm=x", [Challenge("negotiate", {}), Challenge("basic", {"realm": "x"})]),
        ("=,=", []),
    ],
)
def test_challenges(header, challenges):
    assert parse_challenges(header) == challenges


@given(st.text(max_size=40))
def test_any_header_is_read(header):
    parse_challenges(header)


# Basic


def push(client, repo, content=b"content"):
    return client.upload_blob(repo, content, sha256(content), len(content))


def test_credentials_are_not_looked_up_where_nobody_asks(tmp_path, connect, repo):
    """A helper that is missing is no trouble for an open registry."""
    (tmp_path / "config.json").write_text('{"credsStore": "not-installed"}')
    server = RegistryServer(tmp_path / "open").start()
    try:
        env = {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path), "PATH": os.defpath}
        assert push(connect(server.host, None, environ=env), repo)
    finally:
        server.stop()


def test_password_that_expires_is_looked_up_again(tmp_path, connect, repo):
    """Tokens of cloud registries are passwords that are good for some hours."""
    server = RegistryServer(tmp_path / "r", htpasswd(tmp_path, {"AWS": "token-1"})).start()
    try:
        env = {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}
        docker_config(tmp_path, server.host, "AWS", "token-1")
        client = connect(server.host, None, environ=env)
        assert push(client, repo)
        server.stop()
        htpasswd(tmp_path, {"AWS": "token-2"})
        server.start()
        docker_config(tmp_path, server.host, "AWS", "token-2")
        assert push(client, repo, b"more")
    finally:
        server.stop()


# Tokens


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return Certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def tokens(certificate):
    server = TokenServer(certificate)
    server.users = {"pusher": "pw-of-pusher", "reader": "pw-of-reader"}
    server.refresh = {"pusher": "refresh-of-pusher"}
    server.may = {"pusher": {"pull", "push"}, "reader": {"pull"}, "": {"pull"}}
    yield server
    server.close()


@pytest.fixture
def guarded(tokens, tmp_path):
    """A registry that wants tokens."""
    server = RegistryServer(tmp_path / "guarded", tokens.config()).start()
    yield server
    server.stop()


def test_token_is_fetched_with_the_password_and_kept(guarded, tokens, connect, repo):
    client = connect(guarded.host, Credentials("pusher", "pw-of-pusher"))
    push_image(client, repo, "v1", [{"a": os.urandom(100)}, {"b": os.urandom(100)}])
    assert client.manifest(repo, "v1") is not None
    scopes = [query["scope"] for _, query in tokens.asked]
    assert scopes == [[f"repository:{repo}:pull,push"], [f"repository:{repo}:pull"]]
    assert tokens.asked[0][1]["service"] == ["test-registry"]


def test_token_is_fetched_with_an_identity_token(guarded, tokens, connect, repo):
    assert push(connect(guarded.host, Credentials(identity_token="refresh-of-pusher")), repo)
    ((method, form),) = tokens.asked
    assert method == "POST"
    assert form["grant_type"] == ["refresh_token"]
    assert form["scope"] == [f"repository:{repo}:pull,push"]


def test_everybody_may_pull_without_credentials(guarded, tokens, connect, repo):
    push_image(connect(guarded.host, Credentials("pusher", "pw-of-pusher")), repo, "v1", [{"a": b"1"}])
    nobody = connect(guarded.host, None, environ={"DOCKER_CONFIG": "/nowhere"})
    assert nobody.manifest(repo, "v1") is not None
    assert "account" not in tokens.asked[-1][1]
    with pytest.raises(RegistryAuthError, match="does not let those who are not logged in do it") as caught:
        push(nobody, repo, b"more")
    assert "docker login" in caught.value.hint


def test_token_that_expires_is_fetched_again(guarded, tokens, connect, repo):
    client = connect(guarded.host, Credentials("pusher", "pw-of-pusher"))
    tokens.life = -1000  # the registry allows a minute of leeway
    with pytest.raises(RegistryAuthError):
        push(client, repo)
    tokens.life = 300
    client = connect(guarded.host, Credentials("pusher", "pw-of-pusher"))
    assert push(client, repo)
    scope = (f"repository:{repo}:pull,push",)
    tokens.life = -1000
    client._auth._headers[scope] = old = f"Bearer {tokens.token({'scope': list(scope)}, 'pusher')}"
    client._auth.accepted(old)
    tokens.life = 300
    assert push(client, repo, b"more")


def test_user_who_may_only_read(guarded, connect, repo):
    with pytest.raises(
        RegistryAuthError, match=r"does not let the user 'reader' \(from there\) do it"
    ) as caught:
        push(connect(guarded.host, Credentials("reader", "pw-of-reader", origin="there")), repo)
    assert caught.value.hint.startswith("Ask for the permission to push, or use another account.")


def test_token_server_that_does_not_know_the_password(guarded, connect, repo):
    with pytest.raises(
        RegistryAuthError, match="does not accept the password of the user 'pusher'"
    ) as caught:
        push(connect(guarded.host, Credentials("pusher", "hunter2-hunter2")), repo)
    assert "hunter2" not in str(caught.value)


def test_token_server_that_is_away_is_named(guarded, tokens, connect, repo):
    tokens.close()
    server = tokens.url.removeprefix("http://").removesuffix("/token")
    with pytest.raises(RegistryUnavailableError, match=f"the token server {server}: connection refused"):
        push(connect(guarded.host, Credentials("pusher", "p"), clock=FakeTime(), patience=20), repo)


@pytest.mark.parametrize("answer", [(200, b"<html>"), (200, b"{}"), (404, b"")])
def test_token_server_that_is_none(guarded, tokens, connect, repo, answer):
    tokens.fault = answer
    with pytest.raises(RegistryError, match=r"the token server 127\.0\.0\.1"):
        push(connect(guarded.host, Credentials("pusher", "p"), clock=FakeTime(), patience=20), repo)


def test_password_goes_to_no_token_server_without_tls(registry, connect, repo):
    sneaky = Fault(401, {"WWW-Authenticate": 'Bearer realm="http://203.0.113.1/token"'})
    with http_proxy(registry.port, lambda *_: sneaky) as proxy:
        client = connect(proxy.host, Credentials("me", "pw"))
        client._auth._allow_http = False
        with pytest.raises(RegistryAuthError, match="its token server 'http://203"):
            client.manifest(repo, "v1")


# Redirects


def test_redirected_download_does_not_carry_the_login(registry, client, connect, repo):
    content = os.urandom(1000)
    push(client, repo, content)
    with http_proxy(registry.port) as store:
        store.rule = lambda *_: Fault(200, {"Content-Type": "application/octet-stream"}, content)

        def send_away(seen, _):
            return (
                Fault(307, {"Location": f"http://{store.host}/bucket/x?signed=1"})
                if "/blobs/" in seen.path
                else None
            )

        with http_proxy(registry.port, send_away) as front:
            front_client = connect(front.host)
            assert front_client.manifest(repo, "none") is None  # by now it is logged in
            assert front_client.read_blob(repo, sha256(content), 1 << 20) == content
            assert "Authorization" in front.of("GET", "/blobs/")[-1].headers
        (seen,) = store.seen
        assert seen.path == "/bucket/x?signed=1"
        assert "Authorization" not in seen.headers


def test_upload_elsewhere_does_not_carry_the_login(registry, connect, repo):
    with http_proxy(registry.port, lambda *_: Fault(201)) as store:

        def send_away(seen, _):
            return Fault(202, {"Location": f"http://{store.host}/up"}) if seen.method == "POST" else None

        with http_proxy(registry.port, send_away) as front:
            assert push(connect(front.host), repo)
        (seen,) = store.seen
        assert (seen.method, seen.path.partition("?")[0]) == ("PUT", "/up")
        assert "Authorization" not in seen.headers


# https


@pytest.fixture(scope="module")
def secure(tmp_path_factory, certificate):
    """A registry that speaks https, with a certificate of an unknown authority."""
    folder = tmp_path_factory.mktemp("secure")
    server = RegistryServer(folder, htpasswd(folder), scheme="https")
    tls = {"certificate": str(certificate.path), "key": str(certificate.key_path)}
    server.config["http"] = {"addr": server.host, "tls": tls}
    server.start()
    yield server
    server.stop()


def test_https_is_found_and_verified(secure, connect, repo):
    with pytest.raises(
        RegistryUnavailableError, match="its certificate is not trusted: self-signed"
    ) as caught:
        push(connect(secure.host), repo)
    assert f"/etc/docker/certs.d/{secure.host}/ca.crt" in caught.value.hint


def test_certificate_is_trusted_by_the_environment(secure, certificate, connect, repo):
    env = {"SSL_CERT_FILE": str(certificate.path)}
    content = os.urandom(3 << 20)
    client = connect(secure.host, environ=env, insecure=False)
    assert push(client, repo, content)
    assert client.read_blob(repo, sha256(content), 4 << 20) == content


def test_certificate_is_trusted_by_dockers_folder(secure, certificate, connect, repo, tmp_path, monkeypatch):
    folder = tmp_path / "certs.d" / secure.host
    folder.mkdir(parents=True)
    (folder / "ca.crt").write_bytes(certificate.path.read_bytes())
    monkeypatch.setattr(certificates, "certs_dirs", lambda: [str(tmp_path / "certs.d")])
    assert push(connect(secure.host), repo)


def test_http_where_https_is_expected(registry, connect, repo):
    with pytest.raises(RegistryUnavailableError, match="the TLS connection failed") as caught:
        push(connect(registry.host, insecure=False), repo)
    assert f"SHUNTER_INSECURE_REGISTRIES={registry.host}" in caught.value.hint


def test_location_by_http_of_a_registry_behind_tls(secure, certificate, connect):
    """A registry behind a proxy that ends TLS may name itself by http."""
    client = connect(secure.host, environ={"SSL_CERT_FILE": str(certificate.path)}, insecure=False)
    url = "https://r.example:5000/v2/x/blobs/uploads/"
    assert client.absolute(url, "http://r.example:5000/v2/u?a=b") == "https://r.example:5000/v2/u?a=b"
    assert client.absolute(url, "http://r.example/v2/u") == "https://r.example:5000/v2/u"
    assert client.absolute(url, "/v2/u") == "https://r.example:5000/v2/u"
    assert client.absolute(url, "https://store.example/u") == "https://store.example/u"
    with pytest.raises(RegistryError, match="from https to http://store"):
        client.absolute(url, "http://store.example/u")


def test_insecure_registries_are_named_in_the_environment(connect):
    client = connect("registry.lan:5000", environ={"SHUNTER_INSECURE_REGISTRIES": "a.lan, registry.lan:5000"})
    assert client._insecure is True
    assert connect("other.lan:5000", environ={})._insecure is False


def test_secrets_are_in_no_repr(registry, connect):
    client = connect(registry.host)
    client.manifest("a/b", "c")
    shown = repr(vars(client)) + repr(client._auth) + repr(client._auth.credentials)
    assert PASSWORD not in shown
