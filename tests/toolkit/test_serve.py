"""`serve` as a process: the routes, the user's functions, the content types, several workers."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import pytest

from tests.registry.server import free_port

from .conftest import Tree, backend

if TYPE_CHECKING:
    from collections.abc import Iterator


class Served:
    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **env: str) -> None:
        settings = {
            "SAGEMAKER_PROGRAM": "inference.py",
            "SAGEMAKER_BIND_TO_PORT": str(self.port),
            "SAGEMAKER_MODEL_SERVER_WORKERS": "2",
        }
        log = (self.tree.base / "serve.log").open("wb")
        with log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "shunter_toolkit", "serve"],
                env=self.tree.env(**{**settings, **env}),
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.get("/ping")
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise AssertionError((self.tree.base / "serve.log").read_text())

    def get(self, path: str) -> tuple[int, bytes]:
        return self._ask(urllib.request.Request(f"http://127.0.0.1:{self.port}{path}"))

    def invoke(self, body: bytes, content_type: str, accept: str = "*/*") -> tuple[int, bytes]:
        headers = {"Content-Type": content_type, "Accept": accept}
        url = f"http://127.0.0.1:{self.port}/invocations"
        return self._ask(urllib.request.Request(url, data=body, headers=headers, method="POST"))

    def _ask(self, request: urllib.request.Request) -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()


@pytest.fixture
def served(tree: Tree) -> Iterator[Served]:
    import importlib.util

    backend("serve", importlib.util.find_spec("gunicorn") is not None, "gunicorn is not installed")
    backend("serve", importlib.util.find_spec("numpy") is not None, "numpy is not installed")
    (tree.base / "model").mkdir()
    (tree.base / "model/scale").write_text("2")
    made = Served(tree)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.send_signal(signal.SIGTERM)
        made.process.wait(20)


MODEL = """
import os
def model_fn(model_dir):
    scale = float(open(os.path.join(model_dir, "scale")).read())
    return lambda data: data * scale
"""


@pytest.mark.slow
def test_content_types_with_default_functions(served: Served) -> None:
    import numpy as np

    served.tree.script(MODEL, "inference.py")
    served.start()
    assert served.get("/ping") == (200, b"")
    assert served.invoke(b"[[1, 2], [3, 4]]", "application/json") == (200, b"[[2.0, 4.0], [6.0, 8.0]]")
    assert served.invoke(b"1,2\n3,4\n", "text/csv", "text/csv") == (200, b"2.0,4.0\n6.0,8.0\n")
    npy = io.BytesIO()
    np.save(npy, np.array([1.5]))
    status, body = served.invoke(npy.getvalue(), "application/x-npy", "application/x-npy")
    assert (status, np.load(io.BytesIO(body)).tolist()) == (200, [3.0])
    assert served.invoke(b"x", "application/zip")[0] == 415
    assert served.invoke(b"[1]", "application/json", "image/png")[0] == 406
    assert served.invoke(b"{bad", "application/json")[0] == 400
    assert served.get("/other") == (404, b"{}")
    assert served.get("/invocations")[0] == 405


def test_what_is_no_number_is_never_predicted_from(served: Served) -> None:
    import numpy as np

    npy, archive = io.BytesIO(), io.BytesIO()
    np.save(npy, np.array([1.5, 2.5]))
    np.savez(archive, values=np.array([1.5]))
    served.tree.script(MODEL, "inference.py")
    served.start()
    for body in (b"1,two\n3,4\n", b"1,,3\n", b"a\nb\n"):
        status, answer = served.invoke(body, "text/csv")
        assert status == 400, answer
        assert "values are not numbers" in json.loads(answer)["error-message"]
    assert b"from 1 to 2 values" in served.invoke(b"1,2\n3\n", "text/csv")[1]
    for body, kind in (
        (b"1,2\n3\n", "text/csv"),
        (b'"1,2', "text/csv"),
        (b"1,\xff\n", "text/csv"),
        (b"[1, null]", "application/json"),
        (b"[[1, 2], [3]]", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"", "application/x-npy"),
        (npy.getvalue()[:40], "application/x-npy"),
        (npy.getvalue().replace(b"(2,)", b"(2**99,)"), "application/x-npy"),
        (npy.getvalue().replace(b"}", b"("), "application/x-npy"),
        (archive.getvalue(), "application/x-npy"),
    ):
        assert served.invoke(body, kind)[0] == 400, body[:20]
    assert served.invoke(b"nan,1\n", "text/csv", "text/csv") == (200, b"nan\n2.0\n")  # it was sent


def test_text_columns_reach_the_users_functions_as_text(served: Served) -> None:
    words = "def predict_fn(data, model):\n    return [str(data.dtype.kind), *data.ravel().tolist()]\n"
    served.tree.script(MODEL + words, "inference.py")
    served.start()
    assert served.invoke(b'red,"1,5"\nblue,\n', "text/csv") == (200, b'["U", "red", "1,5", "blue", ""]')


@pytest.mark.slow
def test_pickled_arrays_are_refused(served: Served) -> None:
    import numpy as np

    served.tree.script(MODEL, "inference.py")
    served.start()
    npy = io.BytesIO()
    np.save(npy, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert served.invoke(npy.getvalue(), "application/x-npy")[0] == 400


def test_users_functions(served: Served) -> None:
    served.tree.script(
        MODEL
        + """
def input_fn(data, content_type):
    assert isinstance(data, str), type(data)
    return len(data)
def predict_fn(data, model):
    if data == 0:
        raise RuntimeError("nothing to do")
    return model(data)
def output_fn(prediction, accept):
    return f"<{prediction}>", "text/html"
""",
        "inference.py",
    )
    served.start()
    assert served.invoke(b"abc", "text/csv") == (200, b"<6.0>")
    status, body = served.invoke(b"", "text/csv")
    assert status == 500
    assert json.loads(body) == {"error": "RuntimeError", "error-message": "nothing to do", "stack-trace": ""}


def test_transform_fn(served: Served) -> None:
    served.tree.script(
        MODEL
        + "def transform_fn(model, data, content_type, accept):\n    return str(model(len(data))), accept\n",
        "inference.py",
    )
    served.start()
    assert served.invoke(b"\0\1\2", "application/octet-stream", "text/plain") == (200, b"6.0")


@pytest.mark.slow
def test_workers_answer_side_by_side_and_stop(served: Served) -> None:
    served.tree.script(
        "import os, time\ndef model_fn(d): return 0\n"
        "def transform_fn(model, data, c, a):\n"
        "    open(f\"{os.environ['MEETING']}/{os.getpid()}\", 'w').close()\n"
        "    while len(os.listdir(os.environ['MEETING'])) < 2: time.sleep(0.01)\n"
        "    return str(os.getpid()), 'text/plain'\n",
        "inference.py",
    )
    (served.tree.base / "meeting").mkdir()
    served.start(MEETING=str(served.tree.base / "meeting"))
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: served.invoke(b"", "application/x"), range(8)))
    assert len({body for _, body in answers}) == 2
    assert served.process is not None
    served.process.send_signal(signal.SIGTERM)
    assert served.process.wait(20) == 0


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"SAGEMAKER_PROGRAM": "nope.py"}, "not in the code directory"),
        ({"SAGEMAKER_MODEL_SERVER_WORKERS": "x", "SAGEMAKER_PROGRAM": "a.py"}, "whole number"),
    ],
)
def test_mistakes(tree: Tree, env: dict[str, str], words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "shunter_toolkit", "serve"],
        env=tree.env(**env),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_own_application(served: Served) -> None:
    served.tree.script(
        "def app(environ, start_response):\n    start_response('200 OK', [])\n    return [b'mine']\n",
        "mine.py",
    )
    served.start(SAGEMAKER_SERVING_MODULE="mine:app", PYTHONPATH=str(served.tree.base / "code"))
    assert served.get("/anything") == (200, b"mine")
