"""The subcommands, one module each: ``add_arguments(parser)`` declares its arguments, ``run(args)``
returns the exit code. What several commands share is in the folder above.
"""
