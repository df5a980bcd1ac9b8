"""Put a workspace into an image with TorchX; print as JSON how long that took, and the image.

Usage: ``patch_torchx.py IMAGE WORKSPACE``
"""

from __future__ import annotations

import json
import logging
import sys
import time

from torchx.schedulers.docker_scheduler import create_scheduler
from torchx.specs import Role

logging.disable()
image, workspace = sys.argv[1:]
scheduler = create_scheduler("bench")
role = Role("bench", image)
started = time.perf_counter()
scheduler.build_workspace_and_update_role(role, f"file://{workspace}", {"image_repo": None, "quiet": True})
print(json.dumps({"seconds": time.perf_counter() - started, "image": role.image}))
