"""Schedulers whose jobs run in images: the user's code becomes a layer over the images of the roles.

What a layer holds, and how a daemon or a registry takes it, is in `shunter.workspace.images`.
"""

from shunter.workspace.docker_workspace.mixin import DockerWorkspaceMixin, DockerWorkspaceOpts

__all__ = ["DockerWorkspaceMixin", "DockerWorkspaceOpts"]
