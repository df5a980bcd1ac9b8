"""A client of the Docker daemon, by the standard library alone, and the credentials for registries.

Not here: registries (`image_registry`); how jobs run in containers (`schedulers.supervisor`).
"""
