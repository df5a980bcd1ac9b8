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
from urllib.parse import unquote, urlsplit, urlunsplit

from trainyard.errors import ConfigError
from trainyard.gitcommand import REPOSITORY_VARIABLES
from trainyard.redaction import SHORTEST_URL_TOKEN
from trainyard.schedulers.aws.sagemaker.code_archive import Sources, add_dependencies
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
        # A login in the URL goes the same way as any other: it would stand in Git's command line there.
        self._repo, self._url_login = _split_login(self._config.get("repo", ""))
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
        progress.step(f"cloning {self._repo}")
        self._directory = tempfile.mkdtemp(prefix="trainyard-clone-")
        try:
            return self._sources()
        except BaseException:
            self.close()
            raise

    def _sources(self) -> Sources:
        root = os.path.join(self._directory, "code")
        branch, commit = self._config.get("branch"), self._config.get("commit")
        # a commit may be anywhere in the history, a branch's head is enough
        depth = [] if commit else ["--depth", "1"]
        on_branch = ["--branch", branch] if branch else []
        self._git("clone", "--quiet", *depth, *on_branch, "--", _absolute(self._repo), root)
        if commit:
            self._git("-C", root, "checkout", "--quiet", "--detach", self._known_commit(root, commit))
        self.commit = self._git("-C", root, "rev-parse", "HEAD").strip()
        source = os.path.join(root, self._source) if self._source else root
        if not os.path.isdir(source):
            raise ConfigError(f"the repository {self._repo} has no directory {self._source}")
        return add_dependencies(Workspace({source: ""}), self._dependencies, self._program, root)

    def _known_commit(self, root: str, commit: str) -> str:
        verify = ["-C", root, "rev-parse", "--verify", "--quiet", "--end-of-options"]
        for name in (commit, f"origin/{commit}"):
            try:
                return self._git(*verify, f"{name}^{{commit}}").strip()
            except ConfigError:
                continue
        branch = self._config.get("branch")
        where = f"the branch {branch} of {self._repo}" if branch else self._repo
        raise ConfigError(
            f"there is no commit {commit} in {where}", hint="Give a hash or a tag that has been pushed."
        )

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
                # not where the user works, whose checkout may name programs that Git would start
                cwd=self._directory or "/",
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
            raise ConfigError(f"git {words[0]} of {self._repo} took more than {TIMEOUT_SECONDS} s") from None
        if done.returncode == 0:
            return done.stdout
        said = done.stderr.strip() or f"exit code {done.returncode}"
        for secret in secrets:
            said = said.replace(secret, "<redacted>")
        from trainyard.redaction import redact_text

        raise ConfigError(
            f"the code cannot be had from {self._repo}: {redact_text(said)}",
            hint="Check repo, branch and commit of git_config, and the token (GIT_TOKEN) or password.",
        )

    def _environment(self) -> tuple[dict[str, str], list[str]]:
        """Return Git's environment, and the secrets in it."""
        kept = {name: value for name, value in os.environ.items() if name not in REPOSITORY_VARIABLES}
        environ = {**kept, "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true"}
        environ.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes")
        login = self._login()
        if not login or not self._repo.startswith("https://"):
            return environ, []
        encoded = base64.b64encode(login.encode()).decode()
        count = int(environ.get("GIT_CONFIG_COUNT", "0"))
        environ["GIT_CONFIG_COUNT"] = str(count + 1)
        environ[f"GIT_CONFIG_KEY_{count}"] = f"http.https://{urlsplit(self._repo).netloc}/.extraHeader"
        environ[f"GIT_CONFIG_VALUE_{count}"] = f"Authorization: Basic {encoded}"
        user, _, password = login.partition(":")
        return environ, [encoded, password or user]

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
        return f"{user or 'x-access-token'}:{token}" if token else self._url_login


def _absolute(repo: str) -> str:
    """Return a repository of this machine by its whole path; any other as it is."""
    return os.path.abspath(repo) if "://" not in repo and os.path.exists(repo) else repo


def _split_login(repo: str) -> tuple[str, str]:
    """Return a repository's URL without the login in it, and the login as ``user:password``."""
    parts = urlsplit(repo)
    if parts.scheme not in ("http", "https") or "@" not in parts.netloc:
        return repo, ""
    login, _, host = parts.netloc.rpartition("@")
    user, colon, password = login.partition(":")
    if not colon and len(user) < SHORTEST_URL_TOKEN:
        return repo, ""  # a mere name, to which a helper of Git's may know the password
    return urlunsplit(parts._replace(netloc=host)), f"{unquote(user)}:{unquote(password)}"
