"""Programs that travel with each job on Ray: the driver, and what stands between an actor and the user's program.

They need the standard library, Ray, and the toolkit's archive beside them. The launcher never imports them.
"""
