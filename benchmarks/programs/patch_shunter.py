"""Put a workspace into an image with shunter; print as JSON how long that took, and the image.

Usage: ``patch_shunter.py IMAGE WORKSPACE``
"""

from __future__ import annotations

import json
import sys
import time

from shunter.schedulers.docker_scheduler.scheduler import create_scheduler
from shunter.specs import AppDef, Role

image, workspace = sys.argv[1:]
scheduler = create_scheduler("bench")
app = AppDef("bench", [Role("bench", image, entrypoint="true")])
started = time.perf_counter()
info = scheduler.submit_dryrun(app, {"quiet": True}, workspace)
scheduler.ship(info)
print(json.dumps({"seconds": time.perf_counter() - started, "image": info.app.roles[0].image}))
