"""`shunter export`: a job as one HTML file."""

from __future__ import annotations

import html.parser
from pathlib import Path

import pytest

from shunter.runner import Runner, get_runner
from shunter.specs.app import AppDef, Role
from shunter.specs.submission import Submission
from shunter.ui import export_page
from tests.cli.conftest import Cli, cli  # noqa: F401 - a fixture

HOSTILE = "</pre><script>alert(1)</script><img src=//x.example/a onerror=alert(2)>"
#: The shape of a token.
TOKEN = "ghp_" + "a1B2" * 9


class Tags(html.parser.HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: dict[str, str | None] = {}
        self.texts: list[str] = []
        self.policies: list[str | None] = []
        self.scripts: list[dict[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= dict(attrs)
        if tag == "script":
            self.scripts.append(dict(attrs))
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policies.append(dict(attrs)["content"])

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture
def runner():
    with get_runner() as made:
        yield made


def run(runner: Runner, script: str, *, workspace: Path | None = None, **env: str) -> str:
    role = Role("r", "", entrypoint="sh", args=["-c", script], env=env)
    job = Submission(
        app=AppDef("job", [role]), scheduler="local_cwd", workspace=str(workspace) if workspace else None
    )
    handle = runner.submit(job)
    runner.wait(handle, timeout=60)
    return handle


def export(runner: Runner, handle: str) -> str:
    status, record = runner.status(handle), runner.history.find(handle)
    assert status is not None
    assert record is not None
    return export_page.exported(runner, handle, status, record)


def test_the_file_has_all_parts_and_runs_and_fetches_nothing(runner, tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "main.py").write_text(f"# {HOSTILE}\n")
    (code / "data.bin").write_bytes(b"\0\1")
    script = (
        f"for i in 1 2 3; do echo step=$i loss=$((9 - i)).5; done; echo '{HOSTILE}'; echo broken >&2; exit 3"
    )
    run(runner, "true", workspace=code, A="old")
    page = export(runner, run(runner, script, workspace=code, A=HOSTILE))
    found = Tags(page)
    assert not found.names & {"img", "iframe", "link", "object", "form", "base"}
    assert not [name for name in found.attributes if name in ("src", "href") or name.startswith("on")]
    assert export_page.POLICY in found.policies
    assert found.scripts == [{"type": "application/json", "id": "shunter-job"}]  # data, which no browser runs
    text = " ".join(found.texts)
    for part in ("Why", "Charts", "Log", "Definition", "Changes since the job before", "Code"):
        assert part in found.texts
    assert text.count(HOSTILE) >= 4  # log, definition, changes, code
    assert "main.py" in text
    assert "data.bin (2 B)" in text
    assert "polyline" in found.names
    assert "exit code 3" in text


def test_secrets_are_masked_wherever_they_are(runner, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_API_TOKEN", "abcdefgh-secret")
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "main.py").write_text(f"token = '{TOKEN}'\nother = 'abcdefgh-secret'\n")
    script = f"echo {TOKEN}; echo abcdefgh-secret; exit 1"
    page = export(runner, run(runner, script, workspace=tmp_path / "code", MY_API_TOKEN="abcdefgh-secret"))
    assert TOKEN not in page
    assert "abcdefgh-secret" not in page
    assert "redacted" in " ".join(Tags(page).texts)


def test_a_large_log_and_many_replicas_are_bounded(runner, monkeypatch):
    monkeypatch.setattr(export_page, "MOST_REPLICAS", 2)
    role = Role("r", "", entrypoint="seq", args=["5000"], num_replicas=3)
    handle = runner.submit(Submission(app=AppDef("job", [role]), scheduler="local_cwd"))
    runner.wait(handle, timeout=60)
    page = export(runner, handle)
    assert "The logs of 2 of 3 replicas." in page
    assert ">5000<" in page
    assert ">4000<" not in page


def test_the_command_writes_a_file_once(cli: Cli) -> None:  # noqa: F811
    cli("run", "utils.echo", "--msg", "to be shown")
    path = cli("export", "echo").out.strip()
    assert path.startswith("echo-")
    assert path.endswith(".html")
    written = cli.directory / path
    assert "to be shown" in written.read_text()
    written.write_text("mine")
    assert "--force" in cli("export", "echo", code=3).err
    assert written.read_text() == "mine"
    cli("export", "echo", "--force")
    assert cli("export", "--to", "other.html").out == "other.html\n"
    assert "cannot write" in cli("export", "--to", "no/such/folder.html", code=3).err
    cli("export", "nothing", code=5)
