"""Register a model with TorchServe's management API.

TorchServe fetches models by HTTP. An ``http(s)://`` URL is registered as it is; any other model is served by
this program, on ``--port``, until the registration is done. Options that the program does not know are
parameters of the registration: ``--model_name digits --initial_workers 2``.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import socket
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..errors import ConfigError, StoreError
from .urls import BUFFER_BYTES, exists, open_to_read, run_program

MODEL_PORT = 8222


def main(argv: Sequence[str] | None = None) -> int:
    """Register the model; return 0."""
    args, params = _parse(argv)
    if urllib.parse.urlparse(args.model_path).scheme in ("http", "https"):
        _register(args, args.model_path, params)
        return 0
    if args.dryrun:
        _register(args, _model_url(args, args.port), params)
        return 0
    if not exists(args.model_path):
        raise ConfigError(f"the model {args.model_path} does not exist")
    with ThreadingHTTPServer(("", args.port), _handler(args.model_path)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            _register(args, _model_url(args, server.server_port), params)
        finally:
            server.shutdown()
            thread.join()
    return 0


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, dict[str, str]]:
    parser = argparse.ArgumentParser(
        prog="serve", description="Register a model with TorchServe.", allow_abbrev=False
    )
    parser.add_argument("--model_path", required=True, help="the model archive, as a path or URL")
    parser.add_argument("--management_api", required=True, help="URL of the management API")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds to wait for an answer")
    parser.add_argument("--port", type=int, default=MODEL_PORT, help="port to serve the model from")
    parser.add_argument("--host", default="", help="name under which TorchServe reaches this machine")
    parser.add_argument("--dryrun", action="store_true", help="show the request and send nothing")
    args, rest = parser.parse_known_args(argv)
    words = [part for word in rest for part in (word.split("=", 1) if word.startswith("--") else [word])]
    keys, values = words[::2], words[1::2]
    if len(keys) != len(values) or not all(key.startswith("--") for key in keys):
        raise ConfigError(f"cannot read the parameters {' '.join(rest)}: write each as --name value")
    return args, {key[2:]: value for key, value in zip(keys, values)}


def _model_url(args: argparse.Namespace, port: int) -> str:
    name = urllib.parse.quote(args.model_path.rstrip("/").rpartition("/")[2])
    return f"http://{args.host or address_towards(args.management_api)}:{port}/{name}"


def address_towards(url: str) -> str:
    """Return this machine's address as seen from the host of a URL; its name if there is no route."""
    parts = urllib.parse.urlparse(url)
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or 80, type=socket.SOCK_DGRAM)
        with socket.socket(found[0][0], socket.SOCK_DGRAM) as probe:
            probe.connect(found[0][4])  # which sends nothing
            address: str = probe.getsockname()[0]
    except OSError:
        return socket.gethostname()
    return f"[{address}]" if ":" in address else address


def _register(args: argparse.Namespace, model_url: str, params: dict[str, str]) -> None:
    query = urllib.parse.urlencode({"url": model_url, **params})
    url = f"{args.management_api.rstrip('/')}/models?{query}"
    print(f"POST {url}", file=sys.stderr)
    if args.dryrun:
        return
    request = urllib.request.Request(url, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=args.timeout) as response:
            print(response.read().decode(errors="replace").strip())
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode(errors="replace").strip()
        raise StoreError(f"TorchServe refused the model: {error.code} {error.reason}: {text}") from error
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise StoreError(
            f"cannot reach TorchServe at {args.management_api}: {reason}. Is it running, and is this the "
            "address of its management API (port 8081 by default)?"
        ) from error


def _handler(model_path: str) -> type[BaseHTTPRequestHandler]:
    name = model_path.rstrip("/").rpartition("/")[2]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if urllib.parse.unquote(self.path.lstrip("/")) != name:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.end_headers()
            with open_to_read(model_path) as file:
                shutil.copyfileobj(file, self.wfile, BUFFER_BYTES)

    return Handler


run = functools.partial(run_program, main)

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
