from __future__ import annotations

import os

import pytest

from shunter.docker.credentials import Credentials
from shunter.image_registry.client import RegistryClient
from tests.registry.server import PASSWORD, USER, logged_in, registry  # noqa: F401

LOGIN = Credentials(USER, PASSWORD, origin="the test")


@pytest.fixture
def connect(monkeypatch):
    """Make clients that are closed in the end; ``environ`` are variables that they see."""
    clients = []

    def make(host, credentials=LOGIN, environ=(), **kwargs):
        for name, value in dict(environ).items():
            monkeypatch.setenv(name, value)
        clients.append(RegistryClient(host, credentials, **kwargs))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(registry, connect):  # noqa: F811
    """A client of the registry, logged in."""
    return connect(registry.host)


@pytest.fixture
def repo():
    """A repository that no other test uses."""
    return f"team/r{os.urandom(6).hex()}"
