"""A token server as registries with ``auth: token`` want one, and certificates."""

from __future__ import annotations

import base64
import datetime as dt
import http.server
import ipaddress
import json
import threading
import time
import urllib.parse
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509.oid import NameOID

if TYPE_CHECKING:
    from pathlib import Path

ISSUER, SERVICE = "test-issuer", "test-registry"


class Certificate:
    """A self-signed certificate for 127.0.0.1 and registry.test, and its key, in files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "registry of a test")])
        now = dt.datetime.now(dt.UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("registry.test")]
                ),
                critical=False,
            )
            .sign(self.key, hashes.SHA256())
        )
        self.path = folder / "cert.crt"
        self.key_path = folder / "key.pem"
        self.path.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))
        self.key_path.write_bytes(
            self.key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )

    def signed(self, claims: dict[str, Any]) -> str:
        """Return a JSON web token."""
        der = self.certificate.public_bytes(serialization.Encoding.DER)
        header = {"typ": "JWT", "alg": "ES256", "x5c": [base64.b64encode(der).decode()]}
        text = f"{_b64(json.dumps(header).encode())}.{_b64(json.dumps(claims).encode())}"
        r, s = decode_dss_signature(self.key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        return f"{text}.{_b64(r.to_bytes(32) + s.to_bytes(32))}"


def _b64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class TokenServer:
    """Hands out tokens to those who log in, and tokens to pull to everybody.

    ``users`` are passwords by user, ``refresh`` identity tokens by user, ``may`` what a user may do
    (``pull``, ``push``), ``life`` for how many seconds a token is good.
    """

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate
        self.users: dict[str, str] = {}
        self.refresh: dict[str, str] = {}
        self.may: dict[str, set[str]] = {}
        self.life = 300
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self.fault: tuple[int, bytes] | None = None
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                query = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)
                login = self.headers.get("Authorization", "").removeprefix("Basic ")
                user, _, password = base64.b64decode(login).decode().partition(":")
                known = not login or outer.users.get(user) == password
                self.answer("GET", query, user if known else None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = urllib.parse.parse_qs(body)
                owners = [user for user, token in outer.refresh.items() if [token] == form["refresh_token"]]
                self.answer("POST", form, owners[0] if owners else None)

            def answer(self, method: str, query: dict[str, list[str]], user: str | None) -> None:
                outer.asked.append((method, query))
                if outer.fault is not None:
                    status, body = outer.fault
                elif user is None:
                    status, body = 401, b'{"details": "incorrect username or password"}'
                else:
                    key = "access_token" if method == "POST" else "token"
                    status, body = 200, json.dumps({key: outer.token(query, user)}).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def token(self, query: dict[str, list[str]], user: str) -> str:
        """Return a token for what is asked for, as far as the user may."""
        allowed = self.may.get(user, set())
        access = []
        for scope in " ".join(query.get("scope", [])).split():
            kind, name, actions = scope.split(":")
            granted = sorted(set(actions.split(",")) & allowed)
            access.append({"type": kind, "name": name, "actions": granted})
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "sub": user,
            "aud": SERVICE,
            "iat": now,
            "nbf": now - 100,
            "exp": now + self.life,
            "jti": str(len(self.asked)),
            "access": access,
        }
        return self.certificate.signed(claims)

    def config(self) -> dict[str, Any]:
        """Return the configuration of a registry that trusts this server."""
        token = {
            "realm": self.url,
            "service": SERVICE,
            "issuer": ISSUER,
            "rootcertbundle": str(self.certificate.path),
        }
        return {"auth": {"token": token}}

    def close(self) -> None:
        """End it."""
        self._server.shutdown()
        self._server.server_close()
