"""What else ``torchx.schedulers.ray_scheduler`` has."""


def has_ray() -> bool:
    """Tell whether jobs can be sent to Ray: always, since our scheduler needs no package of Ray for it."""
    return True
