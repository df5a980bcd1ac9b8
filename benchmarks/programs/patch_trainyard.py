"""Put a workspace into an image with trainyard; print as JSON how long that took, and the image.

Usage: ``patch_trainyard.py IMAGE WORKSPACE``
"""

from __future__ import annotations

import json
import sys
import time

from trainyard.schedulers.docker.scheduler import create_scheduler
from trainyard.specs import AppDef, Role

image, workspace = sys.argv[1:]
scheduler = create_scheduler("bench")
app = AppDef("bench", [Role("bench", image, entrypoint="true")])
started = time.perf_counter()
info = scheduler.submit_dryrun(app, {"quiet": True}, workspace)
scheduler.ship(info)
print(json.dumps({"seconds": time.perf_counter() - started, "image": info.app.roles[0].image}))
