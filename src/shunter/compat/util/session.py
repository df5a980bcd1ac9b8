"""The session of this process (``torchx.util.session``)."""

from __future__ import annotations

import os
import uuid

TORCHX_INTERNAL_SESSION_ID = "TORCHX_INTERNAL_SESSION_ID"
CURRENT_SESSION_ID: str | None = None


def get_session_id_or_create_new() -> str:
    """Return the id of this process's session, created on first use; its jobs get it in a variable."""
    global CURRENT_SESSION_ID
    CURRENT_SESSION_ID = get_torchx_session_id() or str(uuid.uuid4())
    return CURRENT_SESSION_ID


def get_torchx_session_id() -> str | None:
    """Return the id of the session, from the variable in a job; None before a session has begun."""
    return CURRENT_SESSION_ID or os.environ.get(TORCHX_INTERNAL_SESSION_ID)
