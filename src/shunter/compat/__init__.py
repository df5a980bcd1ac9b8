"""Runs code that was written for TorchX: names with another path, its runner, plugins and command line.

Nothing here is imported until it is used; shunter's own features are in the other folders.
"""
