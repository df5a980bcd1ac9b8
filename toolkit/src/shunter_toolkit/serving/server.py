"""``serve``: several workers behind gunicorn, on the platform's port."""

from __future__ import annotations

import os

from .. import code_download, install, log, resources, script_command
from ..errors import ClientError, ConfigError, ToolkitError
from ..layout import Layout
from ..masking import Masker

DEFAULT_PORT = "8080"
DEFAULT_TIMEOUT = 60


class Settings:
    """What the environment asks for.

    Attributes:
        address: ``0.0.0.0:8080``; the port from ``SAGEMAKER_BIND_TO_PORT``, or the first of
            ``SAGEMAKER_SAFE_PORT_RANGE``.
        workers: ``SAGEMAKER_MODEL_SERVER_WORKERS``, default: the CPUs of this container.
        timeout: seconds that a worker may take over a request, ``SAGEMAKER_MODEL_SERVER_TIMEOUT``, default
            60.

    Raises:
        ConfigError: one of them is not a positive number.
    """

    def __init__(self) -> None:
        environ = os.environ
        ports = environ.get("SAGEMAKER_SAFE_PORT_RANGE", "").split("-")
        port = environ.get("SAGEMAKER_BIND_TO_PORT") or ports[0] or DEFAULT_PORT
        self.address = f"0.0.0.0:{_positive('SAGEMAKER_BIND_TO_PORT', port)}"
        workers = environ.get("SAGEMAKER_MODEL_SERVER_WORKERS") or str(resources.num_cpus())
        self.workers = _positive("SAGEMAKER_MODEL_SERVER_WORKERS", workers)
        timeout = environ.get("SAGEMAKER_MODEL_SERVER_TIMEOUT") or str(DEFAULT_TIMEOUT)
        self.timeout = _positive("SAGEMAKER_MODEL_SERVER_TIMEOUT", timeout)


def _positive(name: str, text: str) -> int:
    if text.isdigit() and int(text) > 0:
        return int(text)
    raise ConfigError(f"Cannot use {name}={text!r}: it must be a whole number, 1 or more.")


def serve() -> int:
    """Serve until SIGTERM; return the exit code.

    As PID 1 it takes signals and collects its workers itself.
    """
    log.set_mask(Masker().text)
    try:
        settings = Settings()
        if not os.environ.get("SAGEMAKER_SERVING_MODULE"):
            _prepare(Layout())
        server = _server(settings)
    except ToolkitError as error:
        log.error(str(error))
        return error.exit_code
    log.info(f"Serving on {settings.address} with {settings.workers} workers")
    try:
        server.run()  # type: ignore[attr-defined]
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def _prepare(layout: Layout) -> None:
    """Bring the user's code and what it needs, once, before the workers start."""
    name = os.environ.get("SAGEMAKER_PROGRAM", "")
    code_download.fetch_code(os.environ.get("SAGEMAKER_SUBMIT_DIRECTORY", ""), layout.code)
    script_command.check(layout.code, name)
    install.install(layout.code, name, os.environ)


def _server(settings: Settings) -> object:
    try:
        from gunicorn.app.base import BaseApplication  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        raise ClientError(
            "Cannot serve: gunicorn is not in the image. Add it: pip install 'shunter-toolkit[serve]'."
        ) from None

    class Application(BaseApplication):  # type: ignore[misc, unused-ignore]
        """gunicorn with our settings; each worker loads the model for itself."""

        def load_config(self) -> None:
            """Take the settings."""
            self.cfg.set("bind", settings.address)
            self.cfg.set("workers", settings.workers)
            self.cfg.set("timeout", settings.timeout)
            self.cfg.set("graceful_timeout", settings.timeout)
            self.cfg.set("accesslog", "-")
            self.cfg.set("worker_tmp_dir", "/dev/shm" if os.path.isdir("/dev/shm") else None)

        def load(self) -> object:
            """The application, in each worker."""
            from . import worker

            return worker.application()

    return Application()
