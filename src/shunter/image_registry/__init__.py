"""Images in registries, by the OCI distribution API, without a Docker daemon.

Not here: the daemon's images (`docker.images`); how code gets into an image (`workspace.images`).
"""
