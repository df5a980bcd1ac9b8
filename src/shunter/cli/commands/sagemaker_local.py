"""Serve SageMaker's API on this machine, for boto3, the AWS CLI and the SageMaker SDK.

`shunter sagemaker-local serve` prints the variables that direct clients to it. Training jobs run on this
machine; they keep running when the endpoint ends, and a new endpoint knows them.
"""

from __future__ import annotations

import signal
import threading
from argparse import Namespace

from shunter.aws_endpoint.server import EndpointServer
from shunter.cli.console import note, out
from shunter.cli.parser import Parser, add_port_option
from shunter.schedulers.sagemaker_local_scheduler.job_start import Settings

DEFAULT_PORT = 4767


def add_arguments(parser: Parser) -> None:
    parser.add_argument("action", choices=["serve"], help="serve: answer requests until Ctrl-C")
    add_port_option(parser, DEFAULT_PORT)
    parser.add_argument(
        "--host", default="127.0.0.1", help="loopback address to listen on (default: 127.0.0.1)"
    )


def run(args: Namespace) -> None:
    endpoint = EndpointServer(args.host, args.port, Settings.from_env())
    for service in ("SAGEMAKER", "CLOUDWATCH_LOGS", "CLOUDWATCH"):
        out(f"export AWS_ENDPOINT_URL_{service}={endpoint.url}")
    note("serving; Ctrl-C ends the endpoint, not the jobs")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    try:
        stop.wait()
    except KeyboardInterrupt:
        pass
    endpoint.shutdown()
    endpoint.server_close()
