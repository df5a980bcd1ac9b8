"""The paths under the base directory (``/opt/ml``, or ``SAGEMAKER_BASE_DIR``)."""

from __future__ import annotations

import os

DEFAULT_BASE = "/opt/ml"
_NOBODY = 65534  # the owner that is shown for users of other namespaces


class Layout:
    """The paths of the contract, as plain strings. Making one touches no disk.

    Args:
        base: the base directory; ``None`` reads ``SAGEMAKER_BASE_DIR`` and falls back to ``/opt/ml``.
    """

    def __init__(self, base: str | None = None) -> None:
        self.base = base or os.environ.get("SAGEMAKER_BASE_DIR") or DEFAULT_BASE
        self.code = self._at("code")
        self.model = self._at("model")
        self.checkpoints = self._at("checkpoints")
        self.input = self._at("input")
        self.config = self._at("input/config")
        self.data = self._at("input/data")
        self.output = self._at("output")
        self.output_data = self._at("output/data")
        self.intermediate = self._at("output/intermediate")
        self.failure = self._at("output/failure")
        self.failure_json = self._at("output/failure.json")
        self.success = self._at("output/success")
        self.metrics = self._at("output/metrics.jsonl")
        self.hyperparameters = self._at("input/config/hyperparameters.json")
        self.input_data_config = self._at("input/config/inputdataconfig.json")
        self.resource_config = self._at("input/config/resourceconfig.json")
        self.checkpoint_config = self._at("input/config/checkpointconfig.json")

    @classmethod
    def for_job(cls) -> Layout:
        """Return the layout of a job document's job.

        If this user cannot write to ``/opt/ml``, make another directory and set ``SAGEMAKER_BASE_DIR`` to it.
        """
        layout = cls()
        if os.environ.get("SAGEMAKER_BASE_DIR") or layout._can_be_made():
            return layout
        import tempfile

        os.environ["SAGEMAKER_BASE_DIR"] = tempfile.mkdtemp(prefix="shunter-ml-")
        return cls()

    def _can_be_made(self) -> bool:
        try:
            for path in (self.config, self.model, self.output_data, self.checkpoints):
                os.makedirs(path, exist_ok=True)
                if not os.access(path, os.W_OK):
                    return False
        except OSError:
            return False
        return True

    def hand_over(self, *folders: str) -> None:
        """Give what root wrote in each part of the base directory, and in further folders, to its owner.

        They may be directories of the machine that are mounted in the container.
        """
        if os.geteuid() != 0:
            return
        for top in (self.input, self.model, self.output, self.checkpoints, *folders):
            try:
                owner = os.lstat(top)
                if owner.st_uid not in (0, _NOBODY):
                    _give(top, owner.st_uid, owner.st_gid)
            except OSError:
                continue

    def _at(self, relative: str) -> str:
        return os.path.join(self.base, relative)

    def channel(self, name: str) -> str:
        """The directory of a channel: ``input/data/<name>``."""
        return os.path.join(self.data, name)

    def place_of(self, path: str) -> str:
        """The place of a path of the contract: paths below ``/opt/ml`` are below the base directory."""
        path = os.path.normpath(path)
        below = path == DEFAULT_BASE or path.startswith(DEFAULT_BASE + "/")
        return os.path.normpath(self.base + path[len(DEFAULT_BASE) :]) if below else path

    def make_writable_dirs(self) -> None:
        """Make the directories that a script may write to, and that of its code.

        Raises:
            OSError: the base directory cannot be written.
        """
        for path in (self.code, self.model, self.output_data, self.checkpoints):
            os.makedirs(path, exist_ok=True)


def _give(top: str, user: int, group: int) -> None:
    for folder, names, files in os.walk(top):
        for name in (*names, *files):
            path = os.path.join(folder, name)
            if os.lstat(path).st_uid == 0:
                os.chown(path, user, group, follow_symlinks=False)
