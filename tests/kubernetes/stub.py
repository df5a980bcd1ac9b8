"""A small API server with a controller of Jobs and a kubelet, for tests.

Pods are processes of this machine, without volumes and init containers; with ``in_containers`` they are real
containers, see `tests.kubernetes.pod_containers`.

It speaks the parts of the API that the scheduler uses: objects with versions, selectors, pages, merge
patches, strict field validation, watches, logs as the kubelet gives them. Faults are set from
outside: `Stub.faults` answers requests before they are looked at, the other fields say what they break.
"""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.kubernetes.pod_containers import PodContainers

_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<ns>[^/]+))?/(?P<plural>[a-z]+)(?:/(?P<name>[^/]+))?(?:/(?P<part>[a-z]+))?"
)
INDEX = "batch.kubernetes.io/job-completion-index"

Answer = tuple[int, dict[str, Any], dict[str, str]]


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def stamp() -> str:
    whole, rest = divmod(time.time_ns(), 10**9)
    return f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def failure(code: int, reason: str, message: str, **details: Any) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": details,
    }


class Refused(Exception):
    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.answer = failure(code, reason, message)


class Log:
    """The log of a container: lines with their times."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, bytes]] = []
        self.ended = False
        self.changed = threading.Condition()

    def add(self, line: bytes, at: str = "") -> None:
        with self.changed:
            self.lines.append((at or stamp(), line))
            self.changed.notify_all()

    def end(self) -> None:
        with self.changed:
            self.ended = True
            self.changed.notify_all()


class Stub:
    """The server. Use it as a context manager.

    Attributes:
        groups: API groups beside the core and batch, each with its versions.
        faults: called with each request (method, path, parameters); may return an answer instead.
        runs_pods: whether pods are processes; otherwise they stay Pending.
        in_containers: whether pods are containers of Docker instead.
        cut_logs: after how many bytes the next log responses break off.
        warnings: what it warns of whenever something is made.
        users: over TLS, the names in client certificates and the tokens that it knows; everybody else is
            answered 401.
        requests: all requests, as "METHOD path?query".
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.warnings: list[str] = []
        self.users: set[str] = set()
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.version = 100
        self.objects: dict[
            tuple[str, str, str], dict[str, Any]
        ] = {}  # (plural of its group, namespace, name)
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        self.groups: dict[str, list[str]] = {}
        self.extra: dict[str, dict[str, Any]] = {}
        self.faults: Callable[[str, str, dict[str, str]], Answer | str | None] = lambda *request: None
        self.runs_pods = True
        self.in_containers = False
        self.containers: dict[str, PodContainers] = {}
        self.evicted: set[str] = set()
        self.cut_logs: list[int] = []
        self.cut_watches: list[int] = []
        self.requests: list[str] = []
        self.logs: dict[tuple[str, int | str], Log] = defaultdict(Log)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.threads: list[threading.Thread] = []
        self.stopped = False
        self.validate: Callable[[dict[str, Any]], str] = lambda manifest: ""
        stub = self

        class Handler(_Handler):
            server_stub = stub

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def get_request(self) -> Any:
                connection, address = super().get_request()
                if tls is not None:  # the handshake is the thread's that reads first
                    connection = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                return connection, address

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # clients that go away are part of the tests

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Stub:
        self.serving = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self.serving.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self.lock:
            self.stopped = True
            self.changed.notify_all()
            processes = list(self.processes.values())
        for process in processes:
            _kill(process, signal.SIGKILL)
        for containers in list(self.containers.values()):
            containers.remove()
        self.server.shutdown()
        self.server.server_close()
        self.serving.join()
        for thread in self.threads:
            thread.join(20)

    def kubeconfig(self, path: Any, cluster: dict[str, Any] | None = None, **user: Any) -> str:
        """Write a kubeconfig for this server."""
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "stub",
            "clusters": [{"name": "stub", "cluster": {"server": self.url, **(cluster or {})}}],
            "users": [{"name": "me", "user": user or {"token": "t"}}],
            "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "me"}}],
        }
        path.write_text(json.dumps(content))
        return str(path)

    # ---- objects

    def get(self, plural: str, name: str, namespace: str = "default") -> dict[str, Any]:
        with self.lock:
            return self.objects[plural, namespace, name]

    def all(self, plural: str) -> list[dict[str, Any]]:
        with self.lock:
            return [item for (kind, _, _), item in self.objects.items() if kind == plural]

    def wait_for(self, condition: Callable[[], Any], seconds: float = 30) -> Any:
        """Wait until something holds."""
        deadline = time.monotonic() + seconds
        with self.lock:
            while not (found := condition()):
                left = deadline - time.monotonic()
                assert left > 0, "it did not come about"
                self.changed.wait(min(left, 1))
        return found

    def put(self, plural: str, item: dict[str, Any], kind: str = "ADDED") -> dict[str, Any]:
        """Store an object and tell the watches."""
        with self.lock:
            self.version += 1
            metadata = item.setdefault("metadata", {})
            metadata.setdefault("namespace", "default")
            metadata.setdefault("uid", str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", now())
            metadata["resourceVersion"] = str(self.version)
            self.objects[plural, metadata["namespace"], metadata["name"]] = item
            self.history.append((self.version, plural, kind, json.loads(json.dumps(item))))
            self.changed.notify_all()
            return item

    def change(self, plural: str, name: str, namespace: str = "default", **status: Any) -> None:
        """Change the status of an object."""
        with self.lock:
            item = self.objects.get((plural, namespace, name))
            if item is not None:
                item.setdefault("status", {}).update(status)
                self.put(plural, item, "MODIFIED")

    def remove(self, plural: str, name: str, namespace: str = "default") -> None:
        with self.lock:
            item = self.objects.pop((plural, namespace, name), None)
            if item is None:
                return
            self.version += 1
            item["metadata"]["resourceVersion"] = str(self.version)
            self.history.append((self.version, plural, "DELETED", item))
            if plural == "pods":
                self._stop_pod(name)
            elif plural in ("jobs", "jobsets"):
                uid = item["metadata"]["uid"]
                for key, other in list(self.objects.items()):
                    owners = [each["uid"] for each in other["metadata"].get("ownerReferences") or []]
                    if uid in owners and not any(
                        left["metadata"]["uid"] in owners for left in self.objects.values()
                    ):
                        self.remove(key[0], key[2], key[1])
            self.changed.notify_all()

    def _stop_pod(self, name: str) -> None:
        process = self.processes.get(name)
        if process is not None:
            _kill(process, signal.SIGTERM)
        if name in self.containers:
            pod = self.containers[name].pod
            threading.Thread(
                target=self.containers[name].stop, args=(pod["spec"]["containers"][0]["name"],)
            ).start()

    def evict(self, name: str) -> None:
        """Take a pod away, as a kubelet does that runs out of disk."""
        self.evicted.add(name)
        containers = self.containers[name]
        containers.stop(containers.pod["spec"]["containers"][0]["name"], "KILL")

    def select(self, plural: str, namespace: str | None, params: dict[str, str]) -> list[dict[str, Any]]:
        with self.lock:
            return [
                item
                for (kind, place, _), item in sorted(self.objects.items())
                if kind == plural and namespace in (None, place) and matches(item, params)
            ]

    # ---- the controller of Jobs, and the kubelet

    def start_job(self, job: dict[str, Any]) -> None:
        with self.lock:
            if job["spec"].get("suspend"):
                job["status"] = {
                    "conditions": [{"type": "Suspended", "status": "True", "reason": "JobSuspended"}]
                }
                self.put("jobs", job, "MODIFIED")
                return
            job["status"] = {"active": job["spec"]["parallelism"], "ready": 0, "startTime": now()}
            self.put("jobs", job, "MODIFIED")
            for index in range(job["spec"]["completions"]):
                self.start_pod(job, index)

    def start_pod(self, job: dict[str, Any], index: int, failures: int = 0) -> None:
        template = json.loads(json.dumps(job["spec"]["template"]))
        name = f"{job['metadata']['name']}-{index}-{uuid.uuid4().hex[:5]}"
        metadata = template.setdefault("metadata", {})
        metadata["name"] = name
        metadata["namespace"] = job["metadata"]["namespace"]
        metadata.setdefault("annotations", {})[INDEX] = str(index)
        if "backoffLimitPerIndex" in job["spec"]:
            metadata["annotations"]["batch.kubernetes.io/job-index-failure-count"] = str(failures)
        metadata.setdefault("labels", {})[INDEX] = str(index)
        metadata["ownerReferences"] = [{"uid": job["metadata"]["uid"]}]
        template["spec"]["hostname"] = f"{job['metadata']['name']}-{index}"
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "status": {"phase": "Pending"}}
        with self.lock:
            self.put("pods", pod)
        if self.runs_pods:
            run = self._run_in_containers if self.in_containers else self._run_pod
            thread = threading.Thread(target=run, args=(job, pod, index, failures), daemon=True)
            self.threads.append(thread)
            thread.start()

    def _run_pod(self, job: dict[str, Any], pod: dict[str, Any], index: int, failures: int) -> None:
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        variables = self._variables(pod, container)
        words = [expand(word, variables) for word in (*container["command"], *container.get("args", ()))]
        # this Python's folder first: the images of tests have a `python`, and this machine perhaps none
        path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
        environ = {"PATH": path, **variables}
        last_words = os.path.join(tempfile.gettempdir(), f"{name}.termination-log")
        if variables.get("SHUNTER_TERMINATION_MESSAGE") == container["terminationMessagePath"]:
            environ["SHUNTER_TERMINATION_MESSAGE"] = last_words
        read, write = os.pipe()
        log = self.logs[name, 0]
        with self.lock:
            if self.stopped:
                return
            process = subprocess.Popen(
                words,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=write,
                stderr=write,
                start_new_session=True,
            )
            os.close(write)
            self.processes[name] = process
            began = now()
            self._pod_status(pod, "Running", {"running": {"startedAt": began}})
            self._count(job)
        with open(read, "rb") as file:
            for line in file:
                log.add(line)
        code = process.wait()
        code = 128 - code if code < 0 else code
        log.end()
        end = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": began,
            "finishedAt": now(),
        }
        if code:
            end["message"] = b"".join(line for _, line in log.lines)[-2048:].decode("utf-8", "replace")
        if os.path.exists(last_words):
            with open(last_words, encoding="utf-8") as file:
                end["message"] = file.read()
            os.remove(last_words)
        with self.lock:
            if self.stopped:
                return
            self._pod_status(pod, "Failed" if code else "Succeeded", {"terminated": end})
            self._after(job, index, code, failures)

    def _run_in_containers(self, job: dict[str, Any], pod: dict[str, Any], index: int, failures: int) -> None:
        name, main = pod["metadata"]["name"], pod["spec"]["containers"][0]
        namespace = pod["metadata"]["namespace"]

        def logged(container: str, line: bytes) -> None:
            self.logs[name, 0 if container == main["name"] else container].add(line)

        containers = PodContainers(
            pod,
            lambda secret: self.get("secrets", secret, namespace),
            lambda container: self._variables(pod, container),
            expand,
            logged,
        )
        with self.lock:
            self.containers[name] = containers
        began = now()
        failed, code = containers.run_init()
        if not failed:
            with self.lock:
                if self.stopped:
                    return
                containers.start(main)
                self._pod_status(pod, "Running", {"running": {"startedAt": began}})
                self._count(job)
            code = containers.wait(main["name"])
        containers.stop_sidecars()
        log = self.logs[name, failed or 0]
        log.end()
        end = {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": began,
            "finishedAt": now(),
        }
        message = b""
        if os.path.exists(containers.message):
            with open(containers.message, "rb") as file:
                message = file.read()
        if code:
            end["message"] = (message or b"".join(line for _, line in log.lines)[-2048:]).decode()
        containers.remove()
        with self.lock:
            if self.stopped:
                return
            phase = "Failed" if code else "Succeeded"
            if failed:
                self._pod_status(pod, phase, {"waiting": {"reason": "PodInitializing"}})
                pod["status"]["initContainerStatuses"] = [{"name": failed, "state": {"terminated": end}}]
            else:
                self._pod_status(pod, phase, {"terminated": end})
            if name in self.evicted:
                taken = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}
                pod["status"]["conditions"] = [{**taken, "message": "the node was low on ephemeral-storage"}]
            self._after(job, index, code, failures, is_evicted=name in self.evicted)

    def _pod_status(self, pod: dict[str, Any], phase: str, state: dict[str, Any]) -> None:
        if ("pods", pod["metadata"]["namespace"], pod["metadata"]["name"]) not in self.objects:
            return
        name = pod["spec"]["containers"][0]["name"]
        pod["spec"]["nodeName"] = "node-1"
        pod["status"] = {
            "phase": phase,
            "startTime": now(),
            "containerStatuses": [{"name": name, "restartCount": 0, "state": state}],
        }
        self.put("pods", pod, "MODIFIED")

    def _variables(self, pod: dict[str, Any], container: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        for each in container.get("env") or []:
            source = each.get("valueFrom") or {}
            if "secretKeyRef" in source:
                secret = self.get("secrets", source["secretKeyRef"]["name"], pod["metadata"]["namespace"])
                found[each["name"]] = secret["stringData"][source["secretKeyRef"]["key"]]
            elif "fieldRef" in source:
                path = source["fieldRef"]["fieldPath"]
                key = re.fullmatch(r"metadata\.annotations\['(.+)'\]", path)
                found[each["name"]] = pod["metadata"]["annotations"][key[1]] if key else f"<{path}>"
            else:
                found[each["name"]] = expand(each.get("value", ""), found)
        return found

    def _count(self, job: dict[str, Any]) -> None:
        uid = job["metadata"]["uid"]
        pods = [
            pod
            for pod in self.all("pods")
            if pod["metadata"].get("ownerReferences", [{}])[0].get("uid") == uid
        ]
        phases = [pod["status"]["phase"] for pod in pods]
        self.change(
            "jobs",
            job["metadata"]["name"],
            job["metadata"]["namespace"],
            active=sum(phase in ("Pending", "Running") for phase in phases),
            ready=phases.count("Running"),
            succeeded=phases.count("Succeeded"),
            failed=phases.count("Failed"),
        )

    def _after(
        self, job: dict[str, Any], index: int, code: int, failures: int, *, is_evicted: bool = False
    ) -> None:
        """Do what the controller does when a pod has ended."""
        key = ("jobs", job["metadata"]["namespace"], job["metadata"]["name"])
        if self.objects.get(key) is not job:
            return
        spec, status = job["spec"], job["status"]
        if any(each["status"] == "True" for each in status.get("conditions") or []):
            self._count(job)
            return
        if code == 0:
            done = [part for part in status.get("completedIndexes", "").split(",") if part]
            status["completedIndexes"] = ",".join(sorted([*done, str(index)], key=int))
        else:
            action, place = "Count", 0
            for number, rule in enumerate(spec.get("podFailurePolicy", {}).get("rules", [])):
                exits = rule.get("onExitCodes")
                if is_evicted and "onPodConditions" in rule:
                    action = rule["action"]
                    break
                if exits and (code in exits["values"]) == (exits["operator"] == "In"):
                    action, place = rule["action"], number
                    break
            if action == "Ignore":
                self.start_pod(job, index, failures)
                self._count(job)
                return
            failures += 1
            if action == "FailJob":
                found = f"failed with exit code {code} matching FailJob rule at index {place}"
                self._fail(job, "PodFailurePolicy", f"Container main for pod default/p {found}")
                return
            if "backoffLimitPerIndex" in spec:
                if failures > spec["backoffLimitPerIndex"] or action == "FailIndex":
                    failed = [part for part in status.get("failedIndexes", "").split(",") if part]
                    status["failedIndexes"] = ",".join(sorted([*failed, str(index)], key=int))
                else:
                    self.start_pod(job, index, failures)
            elif status.get("failed", 0) + 1 > spec.get("backoffLimit", 6):
                self._fail(job, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
                return
            else:
                self.start_pod(job, index, failures)
        self._count(job)
        done = len([part for part in status.get("completedIndexes", "").split(",") if part])
        lost = len([part for part in status.get("failedIndexes", "").split(",") if part])
        if done == spec["completions"]:
            self._condition(job, "Complete", "CompletionsReached", "")
            status["completionTime"] = now()
        elif done + lost == spec["completions"]:
            self._condition(job, "Failed", "FailedIndexes", "Job has failed indexes")

    def _fail(self, job: dict[str, Any], reason: str, message: str) -> None:
        uid = job["metadata"]["uid"]
        self._condition(job, "Failed", reason, message)
        for pod in self.all("pods"):
            owned = pod["metadata"].get("ownerReferences", [{}])[0].get("uid") == uid
            if owned and pod["status"]["phase"] in ("Pending", "Running"):
                self.remove("pods", pod["metadata"]["name"], pod["metadata"]["namespace"])
        self._count(job)

    def _condition(self, job: dict[str, Any], kind: str, reason: str, message: str) -> None:
        condition = {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": now(),
        }
        job["status"].setdefault("conditions", []).append(condition)
        self.put("jobs", job, "MODIFIED")

    # ---- requests

    def create(
        self, plural: str, namespace: str, item: dict[str, Any], params: dict[str, str]
    ) -> dict[str, Any]:
        with self.lock:
            problem = self.validate(item) if params.get("fieldValidation") == "Strict" else ""
            if problem:
                raise Refused(
                    400,
                    "BadRequest",
                    f"{item['kind']} in version is invalid: strict decoding error: {problem}",
                )
            name = item["metadata"].get("name") or item["metadata"]["generateName"] + uuid.uuid4().hex[:5]
            item["metadata"]["name"] = name
            if (plural, namespace, name) in self.objects:
                raise Refused(409, "AlreadyExists", f'{plural} "{name}" already exists')
            if item["apiVersion"] == "batch/v1":
                _shorten(item["spec"]["template"]["spec"]["containers"][0].get("resources") or {})
            if params.get("dryRun"):
                return item
            item["metadata"]["namespace"] = namespace
            self.put(plural, item)
            if item["apiVersion"] == "batch/v1":
                self.start_job(item)
            return item

    def patch(self, plural: str, namespace: str, name: str, change: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            item = self.objects.get((plural, namespace, name))
            if item is None:
                raise Refused(404, "NotFound", f'{plural} "{name}" not found')
            merge(item, change)
            self.put(plural, item, "MODIFIED")
            if item.get("apiVersion") == "batch/v1" and "activeDeadlineSeconds" in (change.get("spec") or {}):
                self._fail(item, "DeadlineExceeded", "Job was active longer than specified deadline")
            return item


def _shorten(resources: dict[str, dict[str, str]]) -> None:
    """Write quantities as the API server does: 1000m is 1, 4096Mi is 4Gi."""
    for amounts in resources.values():
        for name, amount in amounts.items():
            if amount.endswith("000m"):
                amounts[name] = amount.removesuffix("000m")
            elif amount.endswith("Mi") and int(amount[:-2]) % 1024 == 0:
                amounts[name] = f"{int(amount[:-2]) // 1024}Gi"


def _kill(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def merge(item: dict[str, Any], change: dict[str, Any]) -> None:
    for key, value in change.items():
        if value is None:
            item.pop(key, None)
        elif isinstance(value, dict) and isinstance(item.get(key), dict):
            merge(item[key], value)
        else:
            item[key] = value


def expand(text: str, variables: dict[str, str]) -> str:
    """Expand ``$(NAME)`` as the kubelet does (third_party/forked/golang/expansion)."""
    found, place = [], 0
    while place < len(text):
        rest = text[place:]
        if rest.startswith("$$"):
            found.append("$")
            place += 2
        elif rest.startswith("$(") and ")" in rest:
            name = rest[2 : rest.index(")")]
            found.append(variables.get(name, f"$({name})"))
            place += len(name) + 3
        else:
            found.append(rest[0])
            place += 1
    return "".join(found)


def matches(item: dict[str, Any], params: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels") or {}
    wanted = params.get("labelSelector", "")
    several = re.fullmatch(r"(\S+) in \((.*)\)", wanted)
    if several:
        if labels.get(several[1]) not in several[2].split(","):
            return False
    elif "=" in wanted:
        key, _, value = wanted.partition("=")
        if labels.get(key) != value:
            return False
    elif wanted and wanted not in labels:
        return False
    field = params.get("fieldSelector", "")
    if field.startswith("involvedObject.name="):
        return bool(item.get("involvedObject", {}).get("name") == field.partition("=")[2])
    return True


@contextmanager
def container_cluster(kubeconfig: Path) -> Iterator[Stub]:
    """Yield an API server whose pods are containers of Docker, and write the kubeconfig that names it."""
    with Stub() as stub:
        stub.in_containers = True
        stub.kubeconfig(kubeconfig)
        yield stub


class _Handler(BaseHTTPRequestHandler):
    server_stub: Stub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def _reply(self, code: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        for text in self.server_stub.warnings if self.command == "POST" else ():
            self.send_header("Warning", '299 - "' + text.replace("\\", "\\\\").replace('"', '\\"') + '"')
        self.end_headers()
        self.wfile.write(data)

    def _is_known(self) -> bool:
        stub = self.server_stub
        if not isinstance(self.connection, ssl.SSLSocket):
            return True
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        peer: Any = self.connection.getpeercert() or {}
        names = {value for part in peer.get("subject", ()) for key, value in part if key == "commonName"}
        return bool(stub.users & {token, *names})

    def _handle(self) -> None:
        stub = self.server_stub
        parts = urlsplit(self.path)
        params = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else {}
        stub.requests.append(f"{self.command} {self.path}")
        if not self._is_known():
            self._reply(401, failure(401, "Unauthorized", "Unauthorized"))
            return
        fault = stub.faults(self.command, parts.path, params)
        if fault == "drop":
            self.close_connection = True
            self.connection.close()
            return
        if fault == "lose answer":  # the request arrives, its answer does not
            self._dispatch(parts.path, params, body, silently=True)
            self.close_connection = True
            self.connection.close()
            return
        if isinstance(fault, tuple):
            self._reply(*fault)
            return
        self._dispatch(parts.path, params, body)

    do_GET = do_POST = do_PATCH = do_DELETE = _handle

    def _dispatch(self, path: str, params: dict[str, str], body: Any, silently: bool = False) -> None:
        try:
            answer = self._answer(path, params, body)
        except Refused as refused:
            answer = refused.answer
            if not silently:
                self._reply(answer["code"], answer)
            return
        if answer is not None and not silently:
            self._reply(201 if self.command == "POST" else 200, answer)

    def _answer(self, path: str, params: dict[str, str], body: Any) -> dict[str, Any] | None:
        stub = self.server_stub
        if path in stub.extra:
            return stub.extra[path]
        if path == "/version":
            return {"gitVersion": "v1.37.0-stub"}
        if path == "/apis":
            return {
                "groups": [
                    self._group(name, versions) for name, versions in {"batch": ["v1"], **stub.groups}.items()
                ]
            }
        if path.endswith("selfsubjectaccessreviews"):
            return {"status": {"allowed": True}}
        match = _PATH.fullmatch(path)
        if match is None or (match["group"] not in (None, "batch") and match["group"] not in stub.groups):
            raise Refused(404, "NotFound", "the server could not find the requested resource")
        plural, namespace, name = match["plural"], match["ns"], match["name"]
        if match["group"] == "batch.volcano.sh":
            plural = "vcjobs"
        if match["part"] == "log":
            self._log(name, params)
            return None
        if self.command == "POST":
            return stub.create(plural, namespace, body, params)
        if self.command == "PATCH":
            return stub.patch(plural, namespace, name, body)
        if self.command == "DELETE":
            chosen = (
                [name]
                if name
                else [each["metadata"]["name"] for each in stub.select(plural, namespace, params)]
            )
            if name and (plural, namespace, name) not in stub.objects:
                raise Refused(404, "NotFound", f'{plural} "{name}" not found')
            for each in chosen:
                stub.remove(plural, each, namespace)
            return {"status": "Success"}
        if name:
            with stub.lock:
                if (plural, namespace, name) not in stub.objects:
                    raise Refused(404, "NotFound", f'{plural} "{name}" not found')
                return json.loads(json.dumps(stub.objects[plural, namespace, name]))
        if params.get("watch"):
            self._watch(plural, namespace, params)
            return None
        return self._list(plural, namespace, params)

    def _group(self, name: str, versions: list[str]) -> dict[str, Any]:
        served = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
        return {"name": name, "versions": served, "preferredVersion": served[0]}

    def _list(self, plural: str, namespace: str | None, params: dict[str, str]) -> dict[str, Any]:
        stub = self.server_stub
        with stub.lock:
            items = [json.loads(json.dumps(each)) for each in stub.select(plural, namespace, params)]
            for each in items:  # as in real lists
                each.pop("apiVersion", None)
                each.pop("kind", None)
            start = int(params.get("continue") or 0)
            end = start + int(params.get("limit") or len(items) or 1)
            metadata = {"resourceVersion": str(stub.version)}
            if end < len(items):
                metadata["continue"] = str(end)
            return {
                "kind": "List",
                "metadata": metadata,
                "items": items[start:end],
            }

    # ---- streams

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _watch(self, plural: str, namespace: str | None, params: dict[str, str]) -> None:
        stub = self.server_stub
        deadline = time.monotonic() + float(params["timeoutSeconds"])
        self._begin("application/json")
        cut = stub.cut_watches.pop(0) if stub.cut_watches else None
        with stub.lock:
            seen = stub.version
            events = [("ADDED", item) for item in stub.select(plural, namespace, params)]
            while not stub.stopped and time.monotonic() < deadline:
                for event, item in events:
                    data = json.dumps({"type": event, "object": item}).encode() + b"\n"
                    self._chunk(data[:cut])
                    if cut is not None:
                        self.connection.close()
                        self.close_connection = True
                        return
                stub.changed.wait(0.2)
                events = [
                    (event, item)
                    for version, kind, event, item in stub.history
                    if version > seen
                    and kind == plural
                    and namespace in (None, item["metadata"]["namespace"])
                    and matches(item, params)
                ]
                seen = stub.version
        self._chunk(b"")

    def _log(self, name: str, params: dict[str, str]) -> None:
        stub = self.server_stub
        if (
            pod := next((each for each in stub.all("pods") if each["metadata"]["name"] == name), None)
        ) is None:
            raise Refused(404, "NotFound", f'pods "{name}" not found')
        statuses = pod["status"].get("containerStatuses") or [{}]
        state = statuses[0].get("state") or {}
        for each in pod["status"].get("initContainerStatuses") or []:
            state = each["state"] if each["name"] == params.get("container") else state
        if not (state.get("running") or state.get("terminated")):
            raise Refused(400, "BadRequest", f'container in pod "{name}" is waiting to start')
        restarts = int(statuses[0].get("restartCount") or 0)
        log = stub.logs[name, restarts - bool(params.get("previous"))]
        if (name, params.get("container", "")) in stub.logs:
            log = stub.logs[name, params["container"]]
        since = params.get("sinceTime", "")
        cut = stub.cut_logs.pop(0) if stub.cut_logs else None
        self._begin("text/plain")
        sent, place = 0, 0
        with log.changed:
            while True:
                for at, line in log.lines[place:]:
                    place += 1
                    if at[:19] < since[:19]:
                        continue
                    data = at.encode() + b" " + line if params.get("timestamps") else line
                    if cut is not None and sent + len(data) > cut:
                        self._chunk(data[: max(cut - sent, 1)])
                        self.connection.close()
                        self.close_connection = True
                        return
                    self._chunk(data)
                    sent += len(data)
                if log.ended or not params.get("follow") or stub.stopped:
                    break
                log.changed.wait(0.2)
        self._chunk(b"")
