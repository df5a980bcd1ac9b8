"""What tests of several rooms need of AWS: moto servers, and the models of botocore, read once."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests import backends

_MOTO = (
    "from moto.server import DomainDispatcherApplication, create_backend_app\n"
    "from werkzeug.serving import make_server\n"
    "app = DomainDispatcherApplication(create_backend_app)\n"
    "import sys\n"
    "server = make_server(sys.argv[1], 0, app, threaded=True)\n"
    "print(server.server_port, flush=True)\n"
    "server.serve_forever()\n"
)


@contextmanager
def running_moto(address: str = "127.0.0.1", **env: str) -> Iterator[str]:
    """Run a moto server at an address of this machine, with these variables; gives its URL."""
    backends.need("moto")
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _MOTO, address],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **keys, **env},
    ) as server:
        assert server.stdout is not None
        try:
            yield f"http://{address}:{int(server.stdout.readline())}"
        finally:
            server.kill()


def read_models_once() -> None:
    """Let all sessions of botocore in this process share what they read of its models."""
    if not backends.problem_with("botocore"):
        import botocore.session

        botocore.session.create_loader = functools.cache(botocore.session.create_loader)
