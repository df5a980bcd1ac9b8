"""What was written for TorchX runs here: its names in one table, its shapes, schedulers, command line.

Nothing here is imported unless it is used; what trainyard itself does is in the other folders.
"""
