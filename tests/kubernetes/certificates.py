"""Certificates of a cluster, for tests: its authority, its server, its users."""

from __future__ import annotations

import datetime as dt
import ipaddress
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_EPOCH = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


class Certificate(NamedTuple):
    """A certificate and its key, as PEM."""

    pem: bytes
    key: bytes


class Authority:
    """Issues certificates."""

    def __init__(self, name: str = "cluster") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        made = _builder(self._name, self._name, self._key)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.pem = made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, name: str, *hosts: str, address: str = "127.0.0.1") -> Certificate:
        """Issue a certificate of a user, or of a server with these host names beside its address."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _builder(_name(name), self._name, key)
        names: list[x509.GeneralName] = [x509.DNSName(host) for host in hosts]
        if address:
            names.append(x509.IPAddress(ipaddress.ip_address(address)))
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = made.sign(self._key, hashes.SHA256())
        return Certificate(
            signed.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_EPOCH)
        .not_valid_after(_EPOCH + dt.timedelta(days=36500))
    )
