"""Programs that builtin components start in jobs: each has ``main(argv)``; ``run(argv)`` returns exit codes.

The components that start them are in `trainyard.components`.
"""
