"""A job's definition for people and as JSON, its secrets masked."""

from __future__ import annotations

import shlex

from trainyard.lazy_dataclass import is_dataclass
from trainyard.terminal import clean

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from trainyard.specs.app import AppDef
    from trainyard.specs.dryrun import AppDryRunInfo


def masked_app(app: AppDef | None) -> dict[str, Any]:
    """Return a job's definition as JSON values without its secrets."""
    from trainyard.redaction import Redactor
    from trainyard.specs.serialize import to_json

    data: dict[str, Any] = Redactor().json({} if app is None else to_json(app))
    return data


def masked_cfg(info: AppDryRunInfo[Any], secret_names: set[str]) -> dict[str, Any]:
    """Return a dry run's scheduler options without the secret ones."""
    from trainyard.redaction import Redactor

    redactor = Redactor()
    return {
        key: redactor.secret(key, value) if key in secret_names else redactor.value(key, value)
        for key, value in info.cfg.items()
    }


def request_json(info: AppDryRunInfo[Any]) -> Any:
    """Return the scheduler's request as JSON values where it can be, else as its text."""
    from trainyard.redaction import Redactor

    request = info.request
    if hasattr(request, "shown"):  # it knows itself what in it is secret
        return request.shown()
    if is_dataclass(request) and not isinstance(request, type):
        import dataclasses

        request = dataclasses.asdict(request)
    if isinstance(request, (dict, list)):
        return Redactor().json(request)
    return Redactor().text(repr(info))


def app_text(data: dict[str, Any]) -> str:
    """Return a job's definition, as `masked_app` gives it, as text."""
    lines = [f"Name: {clean(data['name'])}"]
    lines += _pairs("Metadata", data["metadata"], "")
    for role in data["roles"]:
        lines += ["", *_role_lines(role)]
    return "\n".join(lines)


def _role_lines(role: dict[str, Any]) -> list[str]:
    resource = role["resource"]
    needs = [f"cpu {resource['cpu']}"] if resource["cpu"] >= 0 else []
    needs += [f"gpu {resource['gpu']}"] if resource["gpu"] >= 0 else []
    needs += [f"memMB {resource['memMB']}"] if resource["memMB"] >= 0 else []
    facts = {
        "replicas": _replicas(role),
        "image": role["image"],
        "command": shlex.join([role["entrypoint"], *role["args"]]),
        "resource": ", ".join(needs),
        "retries": f"{role['max_retries']} per {role['retry_policy'].lower()}" if role["max_retries"] else "",
        "ports": ", ".join(f"{name} {port}" for name, port in role["port_map"].items()),
    }
    lines = [f"Role {clean(role['name'])}:"]
    lines += [f"  {name}: {clean(str(value))}" for name, value in facts.items() if value]
    for mount in role["mounts"]:
        lines.append("  mount: " + ", ".join(f"{key} {clean(str(value))}" for key, value in mount.items()))
    for title, values in (("capabilities", resource["capabilities"]), ("devices", resource["devices"])):
        lines += _pairs(title, values, "  ")
    return lines + _pairs("env", role["env"], "  ") + _pairs("metadata", role["metadata"], "  ")


def _replicas(role: dict[str, Any]) -> str:
    least = role["min_replicas"]
    return str(role["num_replicas"]) + (f" (at least {least})" if least is not None else "")


def _pairs(title: str, values: dict[str, Any], indent: str) -> list[str]:
    if not values:
        return []
    return [f"{indent}{title}:", *(f"{indent}  {clean(k)}={clean(str(v))}" for k, v in values.items())]
