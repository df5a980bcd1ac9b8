"""What people type for schedulers: ``docker`` for ``local_docker``."""

from __future__ import annotations

from shunter.plugins import entry_points

#: What people type for built-in schedulers. A plugin's scheduler of such a name wins.
SHORT_NAMES = {
    "local": "local_cwd",
    "docker": "local_docker",
    "k8s": "kubernetes",
    "sagemaker": "aws_sagemaker",
    "batch": "aws_batch",
}


def full_name(name: str) -> str:
    """Return the scheduler that a user's word means: ``local_docker`` for ``docker``."""
    if name in SHORT_NAMES and not any(point.name == name for point in entry_points("schedulers")):
        return SHORT_NAMES[name]
    return name
