"""A Docker daemon, by the `docker` command: its images and networks, names of images, logins for registries.

Not here: registries (`image_registry`); how jobs run in containers (`schedulers.supervisor`).
"""
