"""The serving half: ``/ping`` and ``/invocations`` for a user's model."""
