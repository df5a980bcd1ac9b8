"""The commands, a module for each: ``add_arguments(parser)`` declares the arguments, ``run(args)`` returns
the exit code. What several commands share is in the folder above.
"""
