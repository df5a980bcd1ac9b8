"""Programs that builtin components start in jobs: each has ``main(argv)``, and ``run(argv)`` for the command line.

The components that start them are in `trainyard.components`.
"""
