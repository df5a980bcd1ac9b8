"""Code of a job without a network (``enable_network_isolation``) that would need one when it starts.

Code comes as a channel, so it works there unchanged. But packages cannot be fetched from an index when the
container starts, and this would show only then. AWS's developer guide, "Run training and inference containers
in internet-free mode": the containers can make no outbound network calls, not even to services such as S3.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from shunter._toolkit import environment_description
from shunter.errors import ConfigError, WorkspaceChangedError, WorkspaceError
from shunter.workspace.snapshot import Snapshot

REQUIREMENTS = "requirements.txt"
PACKAGE_FILE = "setup.py"
PROJECT_FILE = "pyproject.toml"
_NO = frozenset({"", "0", "false", "no", "off", "n", "f"})
#: Variables that make pip or uv use no index, or what a configuration of the user's says.
_OFFLINE = ("PIP_NO_INDEX", "UV_OFFLINE", "PIP_CONFIG_FILE", "UV_CONFIG_FILE")
_INDEXES = ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX")
_ALTERNATIVES = (
    "Install it when the image is built; or let wheels travel with the code, and say so: "
    '-cfg \'environment={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/opt/ml/code/wheels"}\' '
    "(UV_OFFLINE and UV_FIND_LINKS where the image has uv)."
)


def check_isolated(code: Snapshot, program: str, toolkit: bool, environment: Mapping[str, str]) -> None:
    """Refuse code that would be installed over the network when the container starts.

    Args:
        code: the code.
        program: the script.
        toolkit: whether shunter's toolkit starts it, and not the image's own ``train``.
        environment: its variables.

    Raises:
        ConfigError: something would be installed.
    """
    given = {name: value.strip().lower() for name, value in environment.items()}
    has_no_index = any(given.get(name, "") not in _NO for name in _OFFLINE)
    if has_no_index or any(given.get(name, "").startswith("file:") for name in _INDEXES):
        return
    if environment_description.VARIABLE in environment:
        raise ConfigError(
            "enable_network_isolation: the job's environment would be installed when the container starts, "
            "without network",
            hint=f"If the image has its packages, ask for none: --environment none. {_ALTERNATIVES}",
        )
    for what, first in _problems(code, program, toolkit):
        raise ConfigError(f"enable_network_isolation: {what}", hint=f"{first} {_ALTERNATIVES}")


def _problems(code: Snapshot, program: str, toolkit: bool) -> Iterator[tuple[str, str]]:
    """Find what is wrong, and what else can be done. Decided as the toolkit does."""
    paths, is_shell = code.manifest.by_path, program.endswith(".sh")
    # sagemaker-training installs nothing for shell scripts; the toolkit does
    if REQUIREMENTS in paths and (toolkit or not is_shell) and (needed := _indexed(code)):
        more = f" and {len(needed) - 1} more" if len(needed) > 1 else ""
        what = f"{REQUIREMENTS} asks for {needed[0]}{more}, to be installed when the container starts"
        hint = f"Leave {REQUIREMENTS} out (.shunterignore) if the image has all of it."
        yield f"{what}, and it has no network", hint
    is_project = toolkit and PROJECT_FILE in paths and program not in paths
    if not is_shell and (PACKAGE_FILE in paths or is_project):
        package = PACKAGE_FILE if PACKAGE_FILE in paths else PROJECT_FILE
        what = f"{package} makes the code a package, which would be built with what an index has"
        hint = f"Leave {package} out (.shunterignore), and name the script by its file, if that will do."
        yield f"{what}, and the container has no network to reach one", hint


def _indexed(code: Snapshot) -> list[str]:
    """Return the requirements of the code that need an index, or another address."""
    try:
        content = b"".join(code.read(code.manifest.by_path[REQUIREMENTS])).decode("utf-8", "replace")
    except WorkspaceChangedError:
        raise
    except WorkspaceError:  # code of an earlier job that is in S3 alone
        return ["what could not be read"]
    lines = re.sub(r"\\\r?\n", " ", content).splitlines()
    texts = list(filter(None, (re.sub(r"(?:^|\s)#.*", "", line).strip() for line in lines)))
    if any(re.fullmatch(r"--no-index|(?:-i|--index-url)[ =]file:.*", text) for text in texts):
        return []  # or an index that travels with the code
    needed = [text.partition(";")[0].partition(" --")[0].strip() for text in texts if _needs_index(text)]
    return [re.sub(r"://[^/@]+@", "://", text) for text in needed]


def _needs_index(text: str) -> bool:
    """Tell whether a line needs an index or another address; files that it includes are not read."""
    text = re.sub(r"^(?:-e|--editable)[ =]\s*", "", text)
    if text.startswith("-"):
        return text.startswith(("-r", "--requirement"))
    bare = text.partition(";")[0].strip()
    address = bare.partition("@")[2].strip() or bare  # NAME @ ADDRESS
    if "://" in address:
        return not address.startswith("file:")
    return not (address.startswith((".", "/", "file:")) or address.endswith((".whl", ".tar.gz", ".zip")))
