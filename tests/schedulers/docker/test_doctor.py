"""What `doctor` and `plan --live` find out about a daemon, and whether it could run a job."""

from __future__ import annotations

import pytest

from shunter.docker import images as docker_images
from shunter.progress import Silent
from shunter.schedulers.docker_scheduler.scheduler import create_scheduler
from shunter.specs import Resource
from tests.registry.server import logged_in, registry  # noqa: F401


def checks(found):
    return {check.name: check for check in found}


def test_the_daemon_and_a_network(jobs):
    found = checks(jobs.scheduler.doctor({"network": "no-such-network"}))
    assert found["daemon"].ok
    assert "linux/" in found["daemon"].text
    assert not found["network"].ok
    assert "network" not in checks(jobs.scheduler.doctor({"network": "host"}))


def test_no_daemon(jobs, monkeypatch, tmp_path):
    job = jobs.dryrun(jobs.role("true"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    scheduler = create_scheduler("test")
    (found,) = scheduler.doctor({})
    assert found.ok is False
    assert "none.sock" in found.text
    assert scheduler.doctor({}, job) == [found]  # nothing to compare the job with


def test_a_job_that_fits(jobs):
    found = checks(jobs.scheduler.doctor({}, jobs.dryrun(jobs.role("true"))))
    assert found["role r"].ok
    assert found[f"image {jobs.image}"].ok


def test_a_job_that_does_not_fit(jobs):
    info = jobs.dryrun(jobs.role("true", resource=Resource(cpu=9999, gpu=1, memMB=999_999_999)))
    text = checks(jobs.scheduler.doctor({}, info))["role r"].text
    assert "9999 CPUs of" in text
    assert "999999999 MiB of" in text


def test_an_image_for_another_platform(jobs):
    info = jobs.dryrun(jobs.role("true"), platform="linux/s390x")
    found = checks(jobs.scheduler.doctor({}, info))[f"image {jobs.image}"]
    assert found.ok is False
    assert "jobs run on linux/s390x" in found.text


@pytest.mark.slow
def test_images_of_a_registry(jobs, logged_in):  # noqa: F811
    name = f"{logged_in.host}/doctor/image:1"
    docker_images.tag(jobs.docker, jobs.image, name)
    docker_images.push_image(jobs.docker, name, Silent())
    docker_images.remove(jobs.docker, name)
    images = [name, name.replace(":1", ":2")]
    info = jobs.dryrun(*(jobs.role("true", f"r{k}", image=image) for k, image in enumerate(images)))
    found = checks(jobs.scheduler.doctor({}, info))
    there, absent = (found[f"image {image}"] for image in images)
    assert there.ok
    assert "it will be pulled" in there.text
    assert absent.ok is False
    assert "the registry says" in absent.text
