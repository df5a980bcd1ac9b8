"""Code from a Git repository: cloned beside everything else, packed, and removed again.

Credentials reach Git through its environment, as a header for the repository's host alone. They stand neither
in a command line nor in the clone's configuration, and are taken out of what Git says.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trainyard.errors import ConfigError
from trainyard.schedulers.aws.sagemaker.code import Sources, add_dependencies
from trainyard.specs.workspace import Workspace

if TYPE_CHECKING:
    from trainyard.schedulers.aws.sagemaker.options import AWSSageMakerOpts

TIMEOUT_SECONDS = 600
#: Variables that a token or password is taken from, if the option has none.
TOKEN_VARIABLES = ("GIT_TOKEN", "GITHUB_TOKEN")
PASSWORD_VARIABLE = "GIT_PASSWORD"


class Clone:
    """A repository, cloned when it is needed.

    Args:
        opts: ``git_config``, ``source_dir`` and ``dependencies``.
        program: the script that must be in it; "" for none.
    """

    def __init__(self, opts: AWSSageMakerOpts, program: str) -> None:
        self._config = dict(opts.git_config or {})
        self._source = opts.source_dir or ""
        self._dependencies = list(opts.dependencies or [])
        self._program = program
        self._directory = ""
        #: The commit that was checked out.
        self.commit = ""

    def sources(self, progress: Any) -> Sources:
        """Clone the repository, and return what of it travels.

        Raises:
            ConfigError: Git is not there or refuses, or the directory is not in the repository.
        """
        repo = self._config["repo"]
        progress.step(f"cloning {_without_login(repo)}")
        self._directory = tempfile.mkdtemp(prefix="trainyard-clone-")
        root = os.path.join(self._directory, "code")
        branch, commit = self._config.get("branch"), self._config.get("commit")
        # a commit may be anywhere in the history, a branch's head is enough
        depth = [] if commit else ["--depth", "1"]
        on_branch = ["--branch", branch] if branch else []
        self._git("clone", "--quiet", *depth, *on_branch, "--", repo, root)
        if commit:
            self._git("-C", root, "checkout", "--quiet", "--detach", commit)
        self.commit = self._git("-C", root, "rev-parse", "HEAD").strip()
        source = os.path.join(root, self._source) if self._source else root
        if not os.path.isdir(source):
            raise ConfigError(f"the repository {_without_login(repo)} has no directory {self._source}")
        return add_dependencies(Workspace({source: ""}), self._dependencies, self._program, root)

    def close(self) -> None:
        """Remove the clone."""
        directory, self._directory = self._directory, ""
        if directory:
            shutil.rmtree(directory, ignore_errors=True)

    def _git(self, *words: str) -> str:
        environ, secrets = self._environment()
        try:
            done = subprocess.run(
                ["git", *words],
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise ConfigError("git_config needs Git, which is not installed") from None
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"git {words[0]} of {_without_login(self._config['repo'])} took more than {TIMEOUT_SECONDS} s"
            ) from None
        if done.returncode == 0:
            return done.stdout
        said = done.stderr.strip() or f"exit code {done.returncode}"
        for secret in secrets:
            said = said.replace(secret, "<redacted>")
        from trainyard.redaction import redact_text

        raise ConfigError(
            f"the code cannot be had from {_without_login(self._config['repo'])}: {redact_text(said)}",
            hint="Check repo, branch and commit of git_config, and the token (GIT_TOKEN) or password.",
        )

    def _environment(self) -> tuple[dict[str, str], list[str]]:
        """Return Git's environment, and the secrets in it."""
        environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true"}
        environ.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
        repo = self._config["repo"]
        login = self._login()
        if not login or not repo.startswith("https://"):
            return environ, []
        parts = urlsplit(repo)
        encoded = base64.b64encode(login.encode()).decode()
        count = int(environ.get("GIT_CONFIG_COUNT", "0"))
        environ["GIT_CONFIG_COUNT"] = str(count + 1)
        environ[f"GIT_CONFIG_KEY_{count}"] = f"http.https://{parts.netloc.rpartition('@')[2]}/.extraHeader"
        environ[f"GIT_CONFIG_VALUE_{count}"] = f"Authorization: Basic {encoded}"
        return environ, [encoded, login.partition(":")[2]]

    def _login(self) -> str:
        """Return ``user:password``; "" if there is none."""
        two_factors = str(self._config.get("2FA_enabled", "")).lower() == "true"
        token = self._config.get("token") or next(
            (os.environ[name] for name in TOKEN_VARIABLES if os.environ.get(name)), ""
        )
        user = self._config.get("username", "")
        password = self._config.get("password") or (os.environ.get(PASSWORD_VARIABLE, "") if user else "")
        if password and not token and not two_factors:
            return f"{user}:{password}"
        return f"{user or 'x-access-token'}:{token}" if token else ""


def _without_login(repo: str) -> str:
    scheme, separator, rest = repo.partition("://")
    if not separator or "@" not in rest.partition("/")[0] or scheme == "ssh":
        return repo
    return f"{scheme}://{rest.partition('@')[2]}"
