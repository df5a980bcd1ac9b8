"""The files of a job: listed, shown and downloaded, and nothing else of this machine."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from shunter.errors import BackendError
from shunter.runner import get_runner
from shunter.schedulers.kept_results import LocalResults, ResultFile
from shunter.ui.job_files import FilePart, blocks_of, tar_of
from tests.ui.conftest import Page

#: Leaves a folder, a text that is HTML, an image, and links to elsewhere.
SCRIPT = """
import os, sys
model, output = os.environ["SM_MODEL_DIR"], os.environ["SM_OUTPUT_DATA_DIR"]
os.makedirs(model + "/sub")
open(model + "/weights.bin", "wb").write(bytes(range(256)) * 10_000)
open(model + "/sub/notes.txt", "w").write("notes")
open(model + "/page.html", "w").write("<script>window.ran=1</script>")
open(model + "/image.svg", "w").write("<svg xmlns='http://www.w3.org/2000/svg' onload='window.ran=1'/>")
open(output + "/empty.txt", "w").close()
os.symlink("/etc/passwd", model + "/passwd")
os.symlink("/etc", model + "/etc")
open(os.fsencode(model) + b"/\\xff<b>.txt", "w").write("odd")
"""
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc000"
    "00030101001827e2f50000000049454e44ae426082"
)


@pytest.fixture
def job(home: Path, tmp_path: Path) -> str:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT + f"open(model + '/pixel.png', 'wb').write({PIXEL!r})\n")
    with get_runner() as runner:
        arguments = ["--script", str(script), "--num_replicas", "2"]
        handle = runner.run_component("train.script", arguments, "local_cwd", workspace=str(tmp_path))
        assert runner.wait(handle)
    return handle


def test_folders_are_listed_and_files_are_shown_as_text(page: Page, job: str) -> None:
    top = page.get("/job", handle=job, tab="Files").text
    assert ">model/</a>" in top
    assert "7 files" not in top  # links that lead out do not count
    assert "model/passwd is a link that leads out of the results" in top
    folder = page.get("/job", handle=job, tab="Files", folder="model").text
    assert "2.6 MB" in folder
    assert "?&lt;b&gt;.txt" in folder  # a name that is not UTF-8
    shown = page.get("/job", handle=job, tab="Files", file="model/page.html").text
    assert "&lt;script&gt;window.ran=1&lt;/script&gt;" in shown
    assert "It is not text" in page.get("/job", handle=job, tab="Files", file="model/weights.bin").text
    assert "It is empty" in page.get("/job", handle=job, tab="Files", file="output/data/empty.txt").text
    assert "there is no result" in page.get("/job", handle=job, tab="Files", file="model/passwd").text
    code = page.get("/job", handle=job, tab="Files", place="code").text
    assert "train.py" in code
    assert "window.ran" in page.get("/job", handle=job, tab="Files", place="code", file="train.py").text


def test_a_file_is_downloaded_whole_or_from_where_a_download_ended(page: Page, job: str) -> None:
    content = bytes(range(256)) * 10_000
    query = {"handle": job, "place": "trainer/0", "file": "model/weights.bin"}
    query["place"] = _place(page, job)
    whole = page.get("/job/file", **query)
    assert whole.content == content
    assert whole.headers["content-length"] == str(len(content))
    tag = whole.headers["etag"]
    for asked, part in (("bytes=1000-", content[1000:]), ("bytes=5-9", content[5:10])):
        answer = page.client.get("/job/file", params=query, headers={"range": asked, "if-range": tag})
        assert (answer.status_code, answer.content) == (206, part)
    assert answer.headers["content-range"] == f"bytes 5-9/{len(content)}"
    for headers in (
        {"range": "bytes=5-9", "if-range": '"another"'},  # the file is another one now
        {"range": "bytes=99999999-"},
        {"range": "bytes=9-5"},
        {"range": "lines=1-2"},
        {"range": "bytes=-5,1-2"},
    ):
        answer = page.client.get("/job/file", params=query, headers=headers)
        assert (answer.status_code, answer.content) == (200, content)


def _place(page: Page, job: str) -> str:
    with get_runner() as runner:
        role, k = runner.replicas(job)[0]
        return f"{role}/{k}"


def test_only_images_without_scripts_are_shown_as_what_they_are(page: Page, job: str) -> None:
    place = _place(page, job)
    for name, kind in (
        ("pixel.png", "image/png"),
        ("image.svg", "application/octet-stream"),
        ("page.html", "application/octet-stream"),
    ):
        answer = page.get("/job/file", handle=job, place=place, file=f"model/{name}", view="image")
        assert answer.headers["content-type"] == kind
        assert answer.headers["x-content-type-options"] == "nosniff"
        is_saved = answer.headers.get("content-disposition", "").startswith("attachment")
        assert is_saved == (kind != "image/png")
    odd = page.get("/job/file", handle=job, place=place, file='x"\r\nset-cookie: a=b')
    assert odd.status_code == 404
    assert "set-cookie" not in odd.headers


def test_no_other_file_of_this_machine_is_sent(page: Page, job: str) -> None:
    outside = ("../../../etc/passwd", "/etc/passwd", "model/../../x", "model/passwd", "model/etc/passwd", "")
    for file in outside:
        for place in (_place(page, job), "code", "../0", "trainer/x", "trainer/99", "/"):
            answer = page.get("/job/file", handle=job, place=place, file=file)
            assert answer.status_code in (400, 404), (place, file)
            assert "root:" not in answer.text


def test_folders_and_all_replicas_are_downloaded_as_tar(page: Page, job: str) -> None:
    answer = page.get("/job/files.tar", handle=job, place=_place(page, job), folder="model/sub")
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        (member,) = archive.getmembers()
        assert member.name == f"{job.rpartition('/')[2]}/model/sub/notes.txt"
        assert archive.extractfile(member).read() == b"notes"  # type: ignore[union-attr]
    answer = page.get("/job/files.tar", handle=job)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        names = archive.getnames()
    assert len([name for name in names if name.endswith("weights.bin")]) == 2
    assert any(os.fsencode(name).endswith(b"/\xff<b>.txt") for name in names)
    assert not [name for name in names if "passwd" in name]
    assert page.get("/job/files.tar", handle=job, place=_place(page, job), folder="nope").status_code == 404


def test_a_part_is_never_taken_for_the_whole(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/a").write_bytes(b"12345")
    place = LocalResults.below(str(tmp_path))
    with pytest.raises(BackendError, match="became shorter"):
        list(blocks_of(place, ResultFile("model/a", 9), 0, 9))
    with pytest.raises(BackendError, match="damaged"):
        list(blocks_of(place, ResultFile("model/a", 5, sha256="0" * 64), 0, 5))
    assert b"".join(blocks_of(place, ResultFile("model/a", 3), 0, 3)) == b"123"  # it grew
    assert FilePart.of(ResultFile("a", 5), "bytes=1-", "").status == 200  # no version to compare with
    (tmp_path / "model/a").write_bytes(b"")
    assert b"".join(tar_of([("job", place)]))


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["local_docker", "slurm"])
def test_files_of_other_schedulers_are_sent_too(
    page: Page,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    scheduler: str,
) -> None:
    arguments = ["--script", "train.py", "--cpu", "1", "--memMB", "256"]
    if scheduler == "slurm":
        request.getfixturevalue("slurm")
    else:
        arguments += ["--image", request.getfixturevalue("image")]
    (tmp_path / "train.py").write_text(SCRIPT)
    with get_runner() as runner:
        handle = runner.run_component("train.script", arguments, scheduler, workspace=str(tmp_path))
        assert runner.wait(handle)
    query = {"handle": handle, "place": _place(page, handle)}
    assert "weights.bin" in page.get("/job", tab="Files", folder="model", **query).text
    content = bytes(range(256)) * 10_000
    assert page.get("/job/file", file="model/weights.bin", **query).content == content
    answer = page.client.get(
        "/job/file", params={**query, "file": "model/weights.bin"}, headers={"range": "bytes=2000000-"}
    )
    assert (answer.status_code, answer.content) == (206, content[2_000_000:])
    assert page.get("/job/file", file="model/passwd", **query).status_code == 404
    answer = page.get("/job/files.tar", folder="model", **query)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert {Path(name).name for name in archive.getnames()} >= {"weights.bin", "notes.txt", "page.html"}
