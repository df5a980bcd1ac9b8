"""Talking to a Docker daemon, with the standard library alone."""
