"""Programs that travel with each job on Ray: the driver, and what runs the user's program for an actor.

They need the standard library, Ray, and the toolkit's archive beside them. The launcher never imports them.
"""
