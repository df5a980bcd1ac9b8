"""Files that most likely hold a secret, told by name and, where the name does not settle it, by content.

Such files are not shipped unless a ``!pattern`` in ``.shunterignore`` names them: a workspace ends up in
images and on shared disks, and nobody looks there for a forgotten key.
"""

from __future__ import annotations

import os
import re

#: How much of a file is read: enough for a key's first line or a small JSON document.
LOOK_BYTES = 64 * 1024

_EXAMPLE = re.compile(r"\.(?:example|sample|template|dist|tmpl|tpl|schema)(?:\.|$)")
_CERTAIN = re.compile(
    r"""(?:
      \.env(?:\..+)? | .+\.env\.(?:local|production|prod|staging|development|dev)   # .envrc is judged below
    | id_(?:rsa|dsa|ecdsa|ed25519|ecdsa_sk|ed25519_sk)
    | .+\.(?:p12|pfx|jks|keystore|kdbx|ppk)
    | [._]netrc | \.pypirc | \.git-credentials | \.pgpass | \.my\.cnf
    | \.htpasswd | \.vault-token | \.s3cfg | \.boto
    | \.dockercfg | kubeconfig | secrets?\.(?:ya?ml|json|toml|ini|env)
    )""",
    re.VERBOSE,
)
_IN_DIRECTORY = re.compile(
    r"(?:^|/)(?:\.aws/credentials|\.docker/config\.json|\.kube/config|\.huggingface/token"
    r"|\.config/gcloud/(?:application_default_credentials\.json|credentials\.db)|\.kaggle/kaggle\.json)$"
)
_PRIVATE_KEY = re.compile(rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----")
_BY_CONTENT: tuple[tuple[re.Pattern[str], re.Pattern[bytes]], ...] = (
    (re.compile(r".+\.(?:pem|key|asc|gpg|priv)"), _PRIVATE_KEY),
    (re.compile(r"\.npmrc|\.yarnrc"), re.compile(rb"(?:_authToken|_auth|_password)\s*[=\s]\s*[^\s$]")),
    (re.compile(r"\.yarnrc\.yml"), re.compile(rb"npmAuth(?:Token|Ident):\s*[\"']?[^\s$\"']")),
    (
        re.compile(r"(?:.*credentials?.*|.*service[-_]?account.*|client_secrets?.*)\.json"),
        re.compile(rb'"(?:private_key|client_secret|refresh_token|secret_access_key)"\s*:\s*"[^"]'),
    ),
    (
        re.compile(r"\.envrc"),
        re.compile(rb"^\s*export\s+\w*(?:TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)\w*=[^\s$]", re.MULTILINE),
    ),
    (re.compile(r"credentials"), re.compile(rb"aws_secret_access_key\s*=")),
)


def is_secret(path: str, absolute: str) -> bool:
    """Tell whether a file of the workspace most likely holds a secret.

    It is read, at its absolute path, only if its name does not settle the question.
    """
    name = os.path.basename(path).lower()
    if _EXAMPLE.search(name):
        return False
    if _CERTAIN.fullmatch(name) or _IN_DIRECTORY.search(path):
        return True
    contents = [content for suspect, content in _BY_CONTENT if suspect.fullmatch(name)]
    if not contents:
        return False
    beginning = _beginning(absolute)
    return any(content.search(beginning) for content in contents)


def _beginning(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            return os.read(descriptor, LOOK_BYTES)
        finally:
            os.close(descriptor)
    except OSError:  # reported where it is read for the workspace
        return b""
