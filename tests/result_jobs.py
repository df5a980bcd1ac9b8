"""A training script that leaves results, hostile ones among them, and what `Runner.results` says of them."""

from __future__ import annotations

from shunter.runner import Runner
from shunter.schedulers.kept_results import ResultPlace

#: ``weights`` is large enough that it is read in several parts.
SCRIPT = r"""
import os, sys
model, output = os.environ["SM_MODEL_DIR"], os.environ["SM_OUTPUT_DATA_DIR"]
os.makedirs(model + "/sub", exist_ok=True)
with open(model + "/sub/weights", "wb") as file:
    file.write(bytes(range(256)) * 12_000)
os.symlink("sub/weights", model + "/latest")
open(output + "/x.csv", "w").write("1,2\n")
os.symlink("/etc/passwd", output + "/passwd")
os.symlink("/etc", output + "/etc")
os.mkfifo(output + "/pipe")
"""
WEIGHTS = bytes(range(256)) * 12_000
FILES = {"model/sub/weights": WEIGHTS, "model/latest": WEIGHTS, "output/data/x.csv": b"1,2\n"}


def check_results(runner: Runner, handle: str, role: str = "train") -> ResultPlace:
    """Check the results of a job of `SCRIPT`; returns their place."""
    place = runner.results(handle, role, 0)
    files = {file.path: file for file in place.files()}
    names = {path for path in files if path != "output/success"}
    assert names == set(FILES)
    assert any("output/data/passwd is a link" in text for text in place.left_out)
    for path, content in FILES.items():
        assert files[path].size == len(content)
        assert b"".join(place.read(path)) == content
        assert b"".join(place.read(path, 3)) == content[3:]
    return place
