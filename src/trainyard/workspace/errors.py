"""What can be wrong with a workspace."""

from __future__ import annotations

from trainyard.errors import ConfigError


class WorkspaceError(ConfigError):
    """A workspace cannot be selected or read; the message names the directory or file."""


class WorkspaceChangedError(WorkspaceError):
    """A file no longer has the content that was hashed. A new snapshot has the new content.

    Args:
        path: the file.
        grew: whether it still begins with that content, as a log does that is being written.
    """

    def __init__(self, path: str, *, grew: bool = False) -> None:
        super().__init__(
            f"{path} was changed while it was being shipped",
            hint="Try again when nothing writes to the workspace, or leave the file out (.trainyardignore).",
        )
        self.path = path
        self.grew = grew
