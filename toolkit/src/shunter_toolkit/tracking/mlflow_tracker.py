"""A tracker that keeps runs in MLflow. Names and tags are TorchX's, so that runs of either are read by both.

The id of a run is the name of MLflow's run; facts are tags of the run; artifacts are logged below their name,
their metadata as tags ``torchx.artifact.metadata.<name>.<key>``. What a run builds on, which TorchX keeps
nowhere, is in tags ``shunter.source.<source in base32>``. mlflow-skinny is enough.
"""

from __future__ import annotations

import configparser
import dataclasses
import json
import os
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import ConfigError
from .fsspec_tracker import decoded, encoded
from .runs import TrackerArtifact, TrackerBase, TrackerSource

TAG_ARTIFACT_MD_PREFIX = "torchx.artifact.metadata"
SOURCE_PREFIX = "shunter.source."
#: Of tags that keep the names of artifacts with a slash, which MLflow shows as directories.
NAME_PREFIX = "shunter.artifact."
FILE_SIZE = "mlflow.file_size"
RUN_NAME = "mlflow.runName"


class MLflowTracker(TrackerBase):
    """Keeps runs in an experiment of MLflow. `close` marks this process's run as finished.

    Args:
        experiment_name: the experiment; default: MLFLOW_EXPERIMENT_NAME, else by user and host. It is made if
            it does not exist.
        tracking_uri: of MLflow's server, database or directory; default: MLFLOW_TRACKING_URI, else TorchX's
            ``file:///tmp/torchx/mlruns``, which MLflow takes before its version 3.7.
        artifact_location: where artifacts go if the experiment is made now; default: MLflow's.
    """

    def __init__(
        self,
        experiment_name: str | None = None,
        tracking_uri: str | None = None,
        artifact_location: str | None = None,
    ) -> None:
        try:
            from mlflow import MlflowClient  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError as error:
            raise ConfigError(
                f"The tracker mlflow needs the package mlflow (or mlflow-skinny) in this Python: {error}"
            ) from error
        self.tracking_uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or _default_uri()
        self.client: Any = MlflowClient(self.tracking_uri)
        self._runs: dict[str, str] = {}
        self.experiment: Any = self._experiment(
            experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME") or self.default_experiment_name(),
            artifact_location,
        )

    @staticmethod
    def default_experiment_name() -> str:
        """Return the name of the experiment if none is given."""
        import getpass
        import socket

        return f"default-experiment/{getpass.getuser()}/{socket.gethostname()}"

    @property
    def experiment_id(self) -> str:
        """The id of the experiment."""
        return str(self.experiment.experiment_id)

    @property
    def experiment_name(self) -> str:
        """The name of the experiment."""
        return str(self.experiment.name)

    @property
    def artifact_location(self) -> str:
        """Where artifacts go."""
        return str(self.experiment.artifact_location)

    def _experiment(self, name: str, artifact_location: str | None) -> Any:
        found = self.client.get_experiment_by_name(name)
        if found is not None:
            return found
        from mlflow.exceptions import (  # type: ignore[import-not-found, import-untyped, unused-ignore]
            MlflowException,
        )

        try:
            made = self.client.create_experiment(name, artifact_location)
        except MlflowException:  # another replica was quicker
            found = self.client.get_experiment_by_name(name)
            if found is None:
                raise
            return found
        return self.client.get_experiment(made)

    def get_run(self, run_name: str) -> Any:
        """Return MLflow's run of this name; it is started if there is none."""
        found = self._find(run_name)
        if found is None:
            found = self.client.create_run(self.experiment_id, run_name=run_name)
        self._runs[run_name] = found.info.run_id
        return found

    def get_run_id(self, run_name: str) -> str:
        """Return the id of MLflow's run of this name; it is started if there is none."""
        return self._runs.get(run_name) or str(self.get_run(run_name).info.run_id)

    def _find(self, run_name: str) -> Any:
        quoted = run_name.replace("'", "\\'")
        condition = f"tags.`{RUN_NAME}` = '{quoted}'"
        found = self.client.search_runs([self.experiment_id], condition, max_results=1)
        return found[0] if found else None

    def close(self) -> None:
        """Mark the runs that this tracker has written to as finished."""
        for run_id in self._runs.values():
            self.client.set_terminated(run_id)
        self._runs.clear()

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Note facts about a run, as tags."""
        own = self.get_run_id(run_id)
        for key, value in kwargs.items():
            self.client.set_tag(own, key, value)

    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return the facts about a run, MLflow's own tags included; empty for an unknown run."""
        found = self._find(run_id)
        tags = {} if found is None else found.data.tags
        return {
            key: value
            for key, value in tags.items()
            if not key.startswith((TAG_ARTIFACT_MD_PREFIX, SOURCE_PREFIX, NAME_PREFIX))
        }

    def add_artifact(
        self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Send a file or directory to MLflow, below the artifact's name."""
        own = self.get_run_id(run_id)
        self.client.log_artifact(own, path, name)
        if "/" in name:
            self.client.set_tag(own, NAME_PREFIX + _as_tag(name), "")
        for key, value in (metadata or {}).items():
            self.client.set_tag(own, f"{TAG_ARTIFACT_MD_PREFIX}.{name}.{key}", value)

    def artifacts(self, run_id: str) -> Mapping[str, TrackerArtifact]:
        """Return the artifacts of a run by name, with their metadata and size."""
        found = self._find(run_id)
        if found is None:
            return {}
        artifacts = {}
        for top in self._tops(found.info.run_id, _names_with_slash(found.data.tags)):
            prefix = f"{TAG_ARTIFACT_MD_PREFIX}.{top.path}."
            metadata: dict[str, object] = {
                key[len(prefix) :]: value for key, value in found.data.tags.items() if key.startswith(prefix)
            }
            items = self.client.list_artifacts(found.info.run_id, top.path) if top.is_dir else [top]
            shown = items[0] if len(items) == 1 else top
            if shown.file_size is not None:
                metadata[FILE_SIZE] = shown.file_size
            path = f"{found.info.artifact_uri}/{shown.path}"
            artifacts[top.path] = TrackerArtifact(top.path, path, metadata)
        return artifacts

    def _tops(self, own: str, names: set[str], folder: str | None = None) -> Iterable[Any]:
        """Return what MLflow lists for each artifact: a file or directory, which may be below another one."""
        for item in self.client.list_artifacts(own, folder):
            if item.is_dir and any(name.startswith(f"{item.path}/") for name in names):
                yield from self._tops(own, names, item.path)
            else:
                yield item

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Note that a run builds on another one, or on one artifact of it, as a tag."""
        run = self.get_run(run_id)
        tag = SOURCE_PREFIX + _as_tag(source_id)
        names = json.loads(run.data.tags.get(tag, "[]"))
        if artifact_name not in names:
            self.client.set_tag(run.info.run_id, tag, json.dumps([*names, artifact_name]))

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[TrackerSource]:
        """Return what a run builds on; with a name only the artifacts of that name."""
        found = self._find(run_id)
        for tag, value in sorted({} if found is None else found.data.tags.items()):
            source_id = _from_tag(tag, SOURCE_PREFIX)
            for name in json.loads(value) if tag.startswith(SOURCE_PREFIX) and source_id else ():
                if artifact_name is None or name == artifact_name:
                    yield TrackerSource(str(source_id), name)

    def run_ids(self, **kwargs: str) -> list[str]:
        """Return the runs of the experiment; with ``parent_run_id`` those that build on that run."""
        parent, token = kwargs.get("parent_run_id"), None
        found = []
        while True:
            page = self.client.search_runs([self.experiment_id], max_results=1000, page_token=token)
            for run in page:
                tag = SOURCE_PREFIX + _as_tag(parent) if parent else RUN_NAME
                if tag in run.data.tags:
                    found.append(run.info.run_name)
            token = page.token
            if not token:
                return found

    def log_params_flat(self, run_name: str, cfg: Any, key: str = "") -> None:
        """Log a configuration as parameters of MLflow's run, one for each value in it.

        Args:
            run_name: of the run.
            cfg: a dataclass, mapping or sequence; dots in the parameters' names nest, ``_0`` counts.
            key: what the names begin with.
        """
        own = self.get_run_id(run_name)
        for name, value in flat(cfg, key):
            self.client.log_param(own, name, value)


def _as_tag(text: str) -> str:
    """Return a text in the characters that names of tags may have."""
    return encoded(text).replace("=", "-")


def _from_tag(tag: str, prefix: str) -> str | None:
    return decoded(tag[len(prefix) :].replace("-", "=")) if tag.startswith(prefix) else None


def _names_with_slash(tags: Mapping[str, str]) -> set[str]:
    """Return the names of artifacts that have a slash: as we kept them, or TorchX with their metadata."""
    kept = (_from_tag(tag, NAME_PREFIX) or "" for tag in tags)
    prefix = f"{TAG_ARTIFACT_MD_PREFIX}."
    described = (tag[len(prefix) :].rpartition(".")[0] for tag in tags if tag.startswith(prefix))
    return {name for name in (*kept, *described) if "/" in name}


def flat(cfg: Any, key: str = "") -> Iterable[tuple[str, object]]:
    """Return a configuration's values by dotted names; a sequence of plain values is one value."""
    if dataclasses.is_dataclass(cfg) and not isinstance(cfg, type):
        pairs = [(each.name, getattr(cfg, each.name)) for each in dataclasses.fields(cfg)]
    elif isinstance(cfg, dict) and (cfg or not key):
        pairs = [(str(name), value) for name, value in cfg.items()]
    elif isinstance(cfg, (list, tuple, set)) and any(_nests(value) for value in cfg):
        pairs = [(f"_{number}", value) for number, value in enumerate(cfg)]
    else:
        yield key, list(cfg) if isinstance(cfg, (tuple, set)) else cfg
        return
    for name, value in pairs:
        yield from flat(value, f"{key}.{name}" if key else name)


def _nests(value: Any) -> bool:
    return dataclasses.is_dataclass(value) or isinstance(value, (dict, list, tuple, set))


def create_tracker(config: str | None) -> MLflowTracker:
    """Return the tracker of a configuration.

    Args:
        config: a directory with a ``.torchxconfig``, or such a file, whose section ``[tracker:mlflow]`` has
            ``experiment_name``, ``tracking_uri`` and ``artifact_location``; or MLflow's tracking URI. Without
            one the ``.torchxconfig`` of this directory, if there is one.

    Raises:
        ConfigError: it cannot be read, or mlflow is not installed.
    """
    if config and "://" in config:
        return MLflowTracker(tracking_uri=config)
    path = config or "."
    path = os.path.join(path, ".torchxconfig") if os.path.isdir(path) else path
    if not os.path.exists(path) and not config:
        return MLflowTracker()
    parser = configparser.RawConfigParser()
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    try:
        with open(path, encoding="utf-8") as file:
            parser.read_file(file)
    except (OSError, configparser.Error) as error:
        raise ConfigError(
            f"Cannot read the configuration of the tracker mlflow at {path}: {error}"
        ) from error
    section = dict(parser.items("tracker:mlflow")) if parser.has_section("tracker:mlflow") else {}
    names = ("experiment_name", "tracking_uri", "artifact_location")
    return MLflowTracker(**{name: section[name] for name in names if section.get(name)})


def _default_uri() -> str:
    import tempfile

    return f"file://{tempfile.gettempdir()}/torchx/mlruns"
