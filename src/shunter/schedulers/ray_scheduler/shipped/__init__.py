"""Programs that travel with each job on Ray: the driver, its actors, and what runs a program for an actor.

They need the standard library, Ray, and the toolkit's archive beside them. The launcher never imports them.
"""
