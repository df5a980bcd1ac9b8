"""Programs that builtin components start inside the job, with ``python -m``.

The components themselves are in `shunter.components`.
"""
