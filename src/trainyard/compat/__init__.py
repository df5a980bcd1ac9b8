"""What was written for TorchX runs here: the table of its names, its shapes, its schedulers, its command line.

Nothing here is imported unless it is used; what trainyard itself does is in the other folders.
"""
