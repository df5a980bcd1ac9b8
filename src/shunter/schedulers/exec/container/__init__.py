"""The executor of containers on a Docker daemon: starting, judging, watching, logs, removal.

The client of the daemon is `shunter.docker`; what becomes a container is decided by the schedulers.
"""
