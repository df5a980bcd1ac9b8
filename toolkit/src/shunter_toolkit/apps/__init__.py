"""Programs that builtin components start in jobs.

Each has ``main(argv)``, which may raise, and ``run(argv)``, which prints expected errors; both return the
exit code.

The components that start them are in `shunter.components`.
"""
