"""The arguments of TorchX's programs for jobs (``torchx.apps``). The programs are in `shunter.apps`."""

from __future__ import annotations

import argparse
import secrets
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

TIMEOUT_EXIT_CODE = 34
TORCHSERVE_PARAMS = (
    "model_name",
    "handler",
    "runtime",
    "batch_size",
    "max_batch_delay",
    "initial_workers",
    "synchronous",
    "response_timeout",
)


def parse_copy_args(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of ``copy_main``."""
    parser = argparse.ArgumentParser(description="Copy a file between places that fsspec knows.")
    parser.add_argument("--src", required=True, help="where it is")
    parser.add_argument("--dst", required=True, help="where it goes")
    parser.add_argument("--bufsize", type=int, default=64 * 1024, help="bytes that are copied at once")
    return parser.parse_args(argv)


def parse_booth_args(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of ``booth_main``."""
    parser = argparse.ArgumentParser(description="Evaluate the Booth function.")
    parser.add_argument("--x1", type=float, required=True, help="x1")
    parser.add_argument("--x2", type=float, required=True, help="x2")
    parser.add_argument("--tracker_base", default="/tmp/torchx-utils-booth", help="where the result goes")
    parser.add_argument("--trial_idx", type=int, default=0, help="number of the trial")
    return parser.parse_args(argv)


def parse_monitor_args(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of ``process_monitor``."""
    parser = argparse.ArgumentParser(description="Run a program until a time has passed, or a file exists.")
    parser.add_argument("--timeout", type=float, help="seconds until it is ended")
    parser.add_argument("--start_on_file", help="wait until this file exists")
    parser.add_argument("--exit_on_file", help="end it when this file exists")
    parser.add_argument("--poll_rate", type=float, default=5, help="seconds between checks")
    parser.add_argument("--kill_timeout", type=float, default=60, help="seconds it may take to stop")
    parser.add_argument("entrypoint", help="the program")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
    return parser.parse_args(argv)


def parse_serve_args(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of ``serve``."""
    parser = argparse.ArgumentParser(description="Register a model with TorchServe.")
    parser.add_argument("--model_path", required=True, help="the model")
    parser.add_argument("--management_api", required=True, help="URL of TorchServe's management API")
    parser.add_argument("--timeout", type=int, default=60, help="seconds it may take to answer")
    parser.add_argument("--dryrun", action="store_true", help="do not call it")
    parser.add_argument("--port", type=int, default=8222, help="port under which it fetches the model")
    for name in TORCHSERVE_PARAMS:
        parser.add_argument(f"--{name}", help=f"TorchServe's parameter {name}")
    return parser.parse_args(argv)


def get_routable_ip_to(addr: str) -> str:
    """Return this machine's address as the host of a URL sees it."""
    url = urlsplit(addr)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((url.hostname or "127.0.0.1", url.port or 80))
        return str(probe.getsockname()[0])


def rand_id() -> str:
    """Return a random id."""
    return f"root_{secrets.token_hex(8)}"
