"""Runs code that was written for TorchX: a table of its names, its data shapes, schedulers and command line.

Nothing here is imported until it is used; shunter's own features are in the other folders.
"""
