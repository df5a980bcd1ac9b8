"""Values that are known only when a job is scheduled, written as ``${name}`` in arguments and variables."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from string import Template
from typing import Any

from shunter.specs.app import Role


class macros:
    """The macros. Write ``macros.app_id`` (that is, ``${app_id}``) where its value belongs.

    They are substituted in a role's ``args``, the values of its ``env`` and the strings in its
    ``metadata``. Substitution turns ``$$`` into ``$`` and leaves unknown ``${names}`` alone.

    Attributes:
        img_root: directory at which the image's files are found.
        app_id: id of the job on its scheduler.
        replica_id: index of the replica in its role.
        rank0_env: *name* of the environment variable that holds the host of the first replica.
        base_img_root: always "DEPRECATED".
    """

    img_root = "${img_root}"
    base_img_root = "${base_img_root}"
    app_id = "${app_id}"
    replica_id = "${replica_id}"
    rank0_env = "${rank0_env}"

    @dataclass
    class Values:
        """What the macros stand for in one replica."""

        img_root: str
        app_id: str
        replica_id: str
        rank0_env: str
        base_img_root: str = "DEPRECATED"

        def apply(self, role: Role) -> Role:
            """Return a copy of the role with the macros substituted. Both share their overrides."""
            overrides = role.overrides
            role.overrides = {}  # they may be coroutines, which cannot be copied
            try:
                applied = deepcopy(role)
            finally:
                role.overrides = overrides
            if overrides:
                applied.overrides = overrides
            applied.args = [self.substitute(arg) for arg in role.args]
            applied.env = {key: self.substitute(value) for key, value in role.env.items()}
            applied.metadata = self._substitute_nested(role.metadata)
            return applied

        def substitute(self, arg: str) -> str:
            """Return the text with the macros substituted."""
            return Template(arg).safe_substitute(vars(self))

        def to_dict(self) -> dict[str, str]:
            """Return the values by macro name."""
            return dict(vars(self))

        def _substitute_nested(self, value: Any) -> Any:
            if isinstance(value, str):
                return self.substitute(value)
            if isinstance(value, dict):
                return {key: self._substitute_nested(item) for key, item in value.items()}
            if isinstance(value, (list, tuple)):
                return type(value)(self._substitute_nested(item) for item in value)
            return value
