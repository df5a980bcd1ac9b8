"""Answer SageMaker's API on this machine, for boto3, the AWS CLI and the SageMaker SDK.

`trainyard sagemaker-local serve` prints where, and the variables that point clients there. Training jobs are
carried out on this machine; they go on when the endpoint ends, and are known again when it comes back.
"""

from __future__ import annotations

from trainyard.cli.console import note, out
from trainyard.cli.parser import number_between
from trainyard.errors import EXIT_OK
from trainyard.specs.limits import MOST_PORT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

DEFAULT_PORT = 4767


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("action", choices=["serve"], help="serve: answer until Ctrl-C")
    parser.add_argument(
        "--port",
        type=number_between(0, MOST_PORT),
        default=DEFAULT_PORT,
        help=f"port; 0 for any that is free (default: {DEFAULT_PORT})",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address of loopback to listen on (default: 127.0.0.1)"
    )


def run(args: Namespace) -> int:
    """Run the command."""
    import signal
    import threading

    from trainyard.schedulers.aws.sagemaker_local.endpoint.server import Endpoint
    from trainyard.schedulers.aws.sagemaker_local.launch import Settings

    endpoint = Endpoint(args.host, args.port, Settings.from_env())
    for service in ("SAGEMAKER", "CLOUDWATCH_LOGS", "CLOUDWATCH"):
        out(f"export AWS_ENDPOINT_URL_{service}={endpoint.url}")
    note("answering; Ctrl-C ends the endpoint, not the jobs")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    threading.Thread(target=endpoint.serve_forever, daemon=True).start()
    try:
        stop.wait()
    except KeyboardInterrupt:
        pass
    endpoint.shutdown()
    endpoint.server_close()
    return EXIT_OK
