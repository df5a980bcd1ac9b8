"""The run of a job, and the interface of trackers, by the names of ``torchx.tracker``.

Variables of the job name its run (``TORCHX_JOB_ID``), the run that it belongs to (``TORCHX_PARENT_RUN_ID``),
its trackers (``TORCHX_TRACKERS``, separated by commas) and the configuration of each
(``TORCHX_TRACKER_<NAME>_CONFIG``).
"""

from __future__ import annotations

import logging
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module, metadata
from typing import Any

from ..errors import ConfigError as ConfigError

ENV_TORCHX_TRACKERS = "TORCHX_TRACKERS"
ENV_TORCHX_PARENT_RUN_ID = "TORCHX_PARENT_RUN_ID"
ENV_TORCHX_JOB_ID = "TORCHX_JOB_ID"
#: The id of a run outside of jobs.
UNDEFINED = "<UNDEFINED>"
#: Groups of entry points that offer trackers.
GROUPS = ("shunter.tracker", "torchx.tracker")
#: Trackers that need no plugin: name -> module and factory.
BUILT_IN = {"fsspec": (".fsspec_tracker", "create"), "mlflow": (".mlflow_tracker", "create_tracker")}


@dataclass
class TrackerSource:
    """A run, or one artifact of it, that another run builds on."""

    source_run_id: str
    artifact_name: str | None = None


@dataclass
class TrackerArtifact:
    """A file or directory of a run, by its path or URL."""

    name: str
    path: str
    metadata: Mapping[str, object] | None = None


@dataclass
class Lineage:
    """What a run builds on, and which runs build on it."""

    run_id: str = UNDEFINED
    sources: Sequence[TrackerSource] = ()
    descendants: Sequence[str] = field(default_factory=list)


class TrackerBase(ABC):
    """Keeps what runs note about themselves. Runs are named by the handles of their jobs."""

    @abstractmethod
    def add_artifact(
        self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Note a file or directory that a run has made."""

    @abstractmethod
    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Return the artifacts of a run by name; of several with one name the latest."""

    @abstractmethod
    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Note facts about a run; later values replace earlier ones."""

    @abstractmethod
    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return the facts about a run."""

    @abstractmethod
    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Note that a run builds on another run, or on one artifact of it."""

    @abstractmethod
    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """Return what a run builds on; with a name only the artifacts of that name."""

    @abstractmethod
    def run_ids(self, **kwargs: str) -> Iterable[str]:
        """Return the runs that are known; with ``parent_run_id`` those that build on that run."""

    def lineage(self, run_id: str) -> Lineage:
        """Return what a run builds on, and which runs build on it."""
        return Lineage(run_id, list(self.sources(run_id)), list(self.run_ids(parent_run_id=run_id)))


@dataclass
class AppRunTrackableSource:
    """A run, or one artifact of it, that the asking run builds on."""

    parent: AppRun
    artifact_name: str | None


@dataclass
class AppRun:
    """A run of a job, and the trackers to which it notes everything.

    Args:
        id: the handle of the job.
        backends: its trackers.
    """

    id: str
    backends: Iterable[TrackerBase]

    @staticmethod
    @lru_cache(maxsize=None)
    def run_from_env() -> AppRun:
        """Return the run of this process; its id is ``<UNDEFINED>`` outside of jobs.

        The run that it belongs to, if it was launched with one, is noted as a source.

        Raises:
            ConfigError: a tracker cannot be made from its configuration.
        """
        run = AppRun(os.environ.get(ENV_TORCHX_JOB_ID, UNDEFINED), list(trackers_from_environ()))
        parent = os.environ.get(ENV_TORCHX_PARENT_RUN_ID)
        if parent and run.id != UNDEFINED:
            run.add_source(parent)
        return run

    def job_id(self) -> str:
        """Return the handle of the job."""
        return self.id

    def add_metadata(self, **kwargs: object) -> None:
        """Note facts about this run."""
        for backend in self.backends:
            backend.add_metadata(self.id, **kwargs)

    def add_artifact(self, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Note a file or directory that this run has made."""
        for backend in self.backends:
            backend.add_artifact(self.id, name, path, metadata)

    def add_source(self, source_id: str, artifact_name: str | None = None) -> None:
        """Note that this run builds on another one, or on one artifact of it."""
        for backend in self.backends:
            backend.add_source(self.id, source_id, artifact_name)

    def sources(self) -> list[AppRunTrackableSource]:
        """Return what this run builds on, as every tracker knows it."""
        return [
            AppRunTrackableSource(AppRun(source.source_run_id, [backend]), source.artifact_name)
            for backend in self.backends
            for source in backend.sources(self.id)
        ]

    def children(self) -> Iterable[AppRun]:
        """Return the runs that build on this one, as every tracker knows them."""
        for backend in self.backends:
            for run_id in backend.run_ids(parent_run_id=self.id):
                yield AppRun(run_id, [backend])


def app_run_from_env() -> AppRun:
    """Return the run of this process, always the same one; see `AppRun.run_from_env`."""
    return AppRun.run_from_env()


# ---- trackers by name


def tracker_config_env_var_name(entrypoint_key: str) -> str:
    """Return the variable with the configuration of a tracker."""
    return f"TORCHX_TRACKER_{entrypoint_key.upper()}_CONFIG"


def plain_variable(entrypoint_key: str) -> str:
    """Return the same for shells, which take nothing but letters, digits and ``_`` in a variable's name."""
    return re.sub(r"[^A-Z0-9_]", "_", tracker_config_env_var_name(entrypoint_key))


def trackers_from_environ() -> Iterable[TrackerBase]:
    """Return the trackers that this process's variables name."""
    names = [name.strip() for name in os.environ.get(ENV_TORCHX_TRACKERS, "").split(",")]
    return build_trackers({name: _config_of(name) for name in names if name})


def _config_of(name: str) -> str | None:
    config = os.environ.get(tracker_config_env_var_name(name))
    return os.environ.get(plain_variable(name)) if config is None else config


def build_trackers(factory_and_config: Mapping[str, str | None]) -> Iterable[TrackerBase]:
    """Return trackers from their names and configurations; unknown ones are left out with a warning.

    Args:
        factory_and_config: ``fsspec``, ``mlflow``, the name of an entry point, or ``module:function``; with
            the value that the factory is called with.
    """
    trackers = []
    for name, config in factory_and_config.items():
        factory = _factory(name)
        if factory is None:
            _warn(
                f"there is no tracker {name!r}: it is neither {' nor '.join(BUILT_IN)}, nor an entry point "
                f"of {' or '.join(GROUPS)}, nor a function as module:name; nothing is recorded there"
            )
            continue
        trackers.append(factory(config))
    return trackers


def _factory(name: str) -> Callable[[str | None], TrackerBase] | None:
    if name in BUILT_IN:
        module, function = BUILT_IN[name]
        made: Any = getattr(import_module(module, __package__), function)
        return made  # type: ignore[no-any-return]
    point = _entry_point(name)
    if point is None and ":" not in name:
        return None
    module, _, function = (point or name).partition(":")
    _serve_torchx()
    try:
        found: Any = import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        if point is None and isinstance(error, ImportError) and error.name == module:
            return None
        raise ConfigError(f"The tracker {name!r} cannot be loaded from {point or name}: {error}") from error
    return found  # type: ignore[no-any-return]


def _serve_torchx() -> None:
    """Let a tracker that was written for TorchX import `torchx`, if the launcher is there to serve it."""
    try:
        alias: Any = import_module("shunter.torchx_alias")
    except ImportError:
        return
    alias.install()


def _entry_point(name: str) -> str | None:
    """Return what an entry point of this name refers to, as ``module:function``."""
    everything: Any = metadata.entry_points()
    for group in GROUPS:
        selected = everything.select(group=group) if hasattr(everything, "select") else everything.get(group)
        for point in selected or ():
            if point.name == name:
                return str(point.value).partition("[")[0].strip()
    return None


def _warn(text: str) -> None:
    logging.getLogger("shunter.tracker").warning(text)
