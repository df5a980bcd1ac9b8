"""Programs that builtin components start. They run inside the job, with ``python -m``."""
