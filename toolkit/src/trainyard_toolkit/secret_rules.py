"""How secrets are recognised: by names, places and shapes. The rules of the toolkit and of the launcher.

`SecretFilter` replaces secrets in a text, in a list of arguments and in nested JSON values. It finds them by

- the name before them: ``--password x``, ``--password=x``, ``PASSWORD=x``, ``"password": "x"``,
  ``X-Api-Key: x``, also within a text that is itself a command line (``sh -c "..."``) or JSON,
- their place: ``scheme://user:x@host``, ``?X-Amz-Signature=x``, ``curl -u user:x``,
  ``echo x | docker login --password-stdin``,
- their shape: tokens of well-known services, JSON web tokens, private keys.

No pattern reads the same characters again from many starting points: arguments can be long.
"""

from __future__ import annotations

import functools
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    #: Start and end of a secret in a text, and the name before it; "" if its place or shape gave it away.
    Span = tuple[int, int, str]

#: A user part of a URL without a password is a token from this length on.
SHORTEST_URL_TOKEN = 16
_LONGEST_NAME = 128
_LONGEST_JSON = 1 << 20
#: A longer value after a secret's name counts as a secret: exempting it would mean searching it again.
_LONGEST_EXEMPT = 1024


class LazyPattern:
    """A regular expression that is compiled when it is first used: most runs need few of them."""

    def __init__(self, pattern: str, flags: int = 0) -> None:
        self._pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        compiled = re.compile(self._pattern, self._flags)
        for method in ("finditer", "findall", "fullmatch", "match", "search", "sub"):
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


# ---- names


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


#: One of these words in a name makes it the name of a secret.
_STRONG = _set(
    "password passwords passwd passphrase passphrases passcode passkey pwd secret secrets credential"
    " credentials cred creds apikey apikeys bearer authorization cookie cookies jwt otp totp sas dsn"
    " webhook connectionstring connstr accesskey secretkey privatekey sshkey authkey accountkey"
    " signingkey encryptionkey masterkey licensekey gpgkey dbpass sshpass userpass mypass ldappass"
    " smtppass rootpass adminpass ftppass mailpass keypass storepass proxypass passin passout pgpass"
    " webhookurl"
)
_STRONG_END = LazyPattern(r"(?:password|passwords|passwd|passphrase|secret|secrets|apikey|apikeys)$")
_STRONG_PAIRS = frozenset(
    tuple(pair.split("-"))
    for pair in ("connection-string", "conn-str", "conn-string", "pass-phrase", "pass-word", "pass-key")
)
#: A name that ends in one of these is about a secret, and is not the name of one.
_ABOUT = _set(
    "file files filename path paths dir directory folder name names type types kind url uri endpoint"
    " host hostname port arn ref header headers prefix env var variable length len size count limit ttl"
    " expiry expires expiration expire timeout retries method mode provider scheme source store manager"
    " server service algorithm alg format policy version enabled required user username login email sock"
    " socket parallelism field column col pattern stdin fd prompt rotation bits alias fingerprint"
    " backend realm domain region strategy flow class plugin status error errors seconds minutes hours"
    " days age rounds attempts index idx usage budget dim dims layer layers loss ratio dataset"
)
#: A name that begins with one of these is a switch.
_SWITCHES = _set(
    "no disable disabled enable enabled skip allow require show hide without ask num n count is has"
)
#: Tokens of text, not of access.
_TEXT = _set(
    "max maximum min minimum num n number pad padding eos bos unk mask masked masking sep cls special"
    " next new per count total prompt prompts image images img text start end begin stop first last"
    " target source tgt src vocab len length budget limit type types ids idx index embed embedding"
    " embeddings emb level wise dropout drop merging merge mixing mixer class position pos seq sequence"
    " batch batched train training trained eval val warmup context input inputs output outputs generated"
    " generate gen completion reasoning thinking think sec second seconds step steps loss weight weights"
    " logit logits prob probs register registers patch patches audio video frame frames language lang"
    " bpe wordpiece sentencepiece added extra additional reserved placeholder dim size shuffle ratio"
    " rate shift pooling mean average avg cost price speculative draft lookahead hidden attention attn"
    " global routing expert experts dispatcher moe capacity newline ignore forced decoder encoder"
    " suppress suppressed blank ctc delimiter word words char unit units phoneme split separator buffer"
    " queue latent latents query queries visual vision prefix suffix infix fim assistant role tool call"
    " calls document doc chunk chunks sample samples page block cache throughput tokens2id to2id vq"
    " codebook semantic acoustic speaker speech music target2 sentence classification distill"
    " distillation cross self learnable learned storage trailing leading unused rare frequency"
    " frequencies counts stats percent fraction probability replacement norm order sorted sort pruning"
    " prune keep decay lr schedule scheduler compression compress packed packing pack overlap stride"
    " window initializer concept soft merger selection choice"
)
_ACCESS = _set(
    "auth oauth access api session refresh bearer hf huggingface hub github gitlab git gh personal"
    " private secret security deploy registry npm pypi wandb slack bot csrf xsrf service aws azure gcp"
    " google openai anthropic jwt login"
)
_TOKENS = LazyPattern(
    r"(?:auth|oauth|access|api|session|refresh|hf|id|bot|github|gh|gitlab|slack|user|bearer|csrf|xsrf|deploy|npm|pypi"
    r"|wandb|security)?tokens?$"
)
#: Words before ``key`` that name the owner or the purpose of a key that gives access.
_KEY_OWNERS = _set(
    "api access secret private ssh auth account encryption signing master license service storage"
    " subscription function deploy rsa dsa ecdsa ed gpg pgp tls ssl hmac aes fernet jwt admin shared"
    " webhook wandb openai anthropic claude azure aws gcp google gemini hf huggingface cohere mistral"
    " groq replicate together fireworks deepseek stripe github gh gitlab git slack discord telegram"
    " twilio sendgrid mailgun datadog dd sentry newrelic comet neptune clearml mlflow kaggle ngc nvidia"
    " pinecone weaviate qdrant elastic algolia cloudflare digitalocean heroku vercel netlify docker"
    " dockerhub npm pypi jfrog artifactory vault db mongo redis mysql postgres pg snowflake databricks"
    " supabase firebase langchain langsmith langfuse serpapi tavily openrouter perplexity xai voyage"
    " jina elevenlabs deepgram assemblyai roboflow labelbox runpod paperspace my security"
)
#: Words in the names of lookup keys. Without them, a variable in capitals that ends in KEY gives access.
_FINDING = _set(
    "primary foreign sort sorting public pub partition cache text image label labels target input"
    " output feature query row hash group map dict state batch sample time data dataset column index"
    " metric monitor tag object s3 kms rng random seed prng search lookup routing config default num n"
    " max min per any press hot short caption prompt answer question id source value and or dedup"
    " idempotency unique natural composite secondary main json field attention kv q k v head heads item"
    " document doc video audio user session join event sequence message name checkpoint task job run"
    " model layer optimizer loss node"
)
#: Words with which ``pass`` means a run over something, or a filter.
_PASSES = _set(
    "forward backward single one two multi first second third last final num n max min low high band"
    " all by test tests data per each every extra full render compile compiler optimization fwd bwd next"
    " pre post warmup train eval fusion rewrite quantization"
)
_GIT_OWNERS = _set("github gitlab gh gl git azure ado devops bitbucket docker dockerhub my personal")
_CAMEL = LazyPattern(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = LazyPattern(r"[A-Za-z0-9]+")
_WORKING_DIRECTORIES = ("PWD", "OLDPWD")

#: Every name of a secret has one of these in it; most names and texts have none, and need no pattern.
_STEMS = (
    *("pass", "pw", "secret", "cred", "token", "key", "auth", "bearer", "cookie", "jwt", "otp", "sas", "dsn"),
    *("webhook", "conn", "_pat", "-pat", ".pat", "bpat", "hpat"),
)
#: Likewise for what follows ``?`` or ``&`` in a URL, and for the commands that `_calls` knows.
_SIGNATURE_STEMS = ("sig", "x-amz-", "x-goog-", "awsaccesskeyid", "code=")
_CALL_STEMS = (
    *("curl", "wget", "http", "pass", "mysql", "mariadb", "login", "redis-cli", "echo", "printf", "set "),
)

STRONG, TOKEN, KEY, AUTH, PASS = "strong", "token", "key", "auth", "pass"


def is_secret_name(name: str) -> bool:
    """Whether a variable, option, hyperparameter or field of this name holds a secret."""
    return bool(_kind(name[-_LONGEST_NAME:]))


@functools.lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    """Return what makes a name that of a secret; "" for other names."""
    name = name.lstrip("-")
    lower = name.lower()
    if name in _WORKING_DIRECTORIES or not any(stem in lower for stem in _STEMS):
        return ""
    in_capitals = name.isupper() and "_" in name
    if name.startswith("SM_HP_"):
        name, in_capitals = name[len("SM_HP_") :].lower(), False
    words = [word.lower().rstrip("0123456789") for word in _WORD.findall(_CAMEL.sub("_", name))]
    words = [word for word in words if word]
    if not words or words[0] in _SWITCHES or "@" in name:
        return ""
    if "webhook" in words and words[-1] in ("url", "uri", "webhook"):  # who knows it may post
        return STRONG
    if words[-1] in _ABOUT:
        return ""
    if words[-1] == "id" and not (len(words) > 1 and words[-2] in ("secret", "password")):
        return ""
    pairs = [(words[at], words[at + 1]) for at in range(len(words) - 1)]
    if any(word in _STRONG or _STRONG_END.search(word) for word in words):
        return STRONG
    if not _STRONG_PAIRS.isdisjoint(pairs):
        return STRONG
    if any(_TOKENS.match(word) for word in words) and _gives_access(words):
        return TOKEN
    if "auth" in words or "oauth" in words:
        return AUTH
    return _kind_of_last(words, pairs, in_capitals)


def _gives_access(words: list[str]) -> bool:
    return _TEXT.isdisjoint(words) or not _ACCESS.isdisjoint(words)


def _kind_of_last(words: list[str], pairs: list[tuple[str, str]], in_capitals: bool) -> str:
    """Judge the words that mean a secret only together with others: key, pw, pass, pat."""
    if any(second in ("key", "keys") and first in _KEY_OWNERS for first, second in pairs):
        return KEY
    last, others = words[-1], words[:-1]
    if last == "key" and in_capitals and _FINDING.isdisjoint(others):
        return KEY
    if last == "pw" and len(others) < 2 and set(others) <= {"db", "user", "my", "admin", "root"}:
        return PASS
    if last == "pass" and _PASSES.isdisjoint(others):
        return PASS
    if last == "pat" and others and (in_capitals or not _GIT_OWNERS.isdisjoint(others)):
        return TOKEN
    return ""


# ---- values

_NOTHING = _set("true false none null nil yes no on off auto default undefined")
#: What stands for a value: ours and the toolkit's masks, $VARIABLE, ${macro}, {field}, <token>, [MASK]
_STAND_IN = LazyPattern(
    r"<[^<>]*>|\[[A-Z_]+\]|\*+|\.{3}|…|\$[A-Z_][A-Z0-9_]*|\$\{.*\}|\$\(.*\)|`.*`"
    r"|\{\{?[\w. ]*\}?\}|%\(\w+\)s|%[sdr]",
    re.S,
)
#: The name of a secret that is stored in AWS.
_REFERENCE = LazyPattern(r"(?:arn:aws[\w-]*:(?:secretsmanager|ssm):|ssm:)\S+|\{\{resolve:.*\}\}")
_NUMBER = LazyPattern(r"[+-]?(?:\d{1,5}|\d+(?:\.\d*|[kKmMbBtT]|[eE][+-]?\d+)+|\.\d+)$")
_COUNT = LazyPattern(r"[+-]?\d+(?:_\d+)*$")
_PATH = LazyPattern(r"(?:~|\.{1,2})?/[\w.\-/]*$")
_MARKUP = LazyPattern(r"</?[^<>]*>|<\|.*\|>|\[[^\[\]]*\]|#+\w*|\W{1,4}$", re.S)
_SCHEME = LazyPattern(r"(?:bearer|basic|digest|token|negotiate)[ \t]+(?!-)", re.I)


def _is_secret_value(kind: str, name: str, value: str) -> bool:
    """Whether the value of a name of this kind can be a secret."""
    if len(value) > _LONGEST_EXEMPT:
        return True
    if not value or value.lower() in _NOTHING or _STAND_IN.fullmatch(value) or _REFERENCE.fullmatch(value):
        return False
    if kind == TOKEN:
        plural = name.lower().rstrip("0123456789").endswith("tokens")
        return not (_NUMBER.match(value) or _MARKUP.match(value) or (plural and _COUNT.match(value)))
    if kind == PASS:
        return not (len(value) < 4 and value.isdigit())
    if kind == KEY:
        return not (_PATH.match(value) and value.count("/") + value.startswith(("~", ".")) > 1)
    if kind == AUTH:
        return "://" not in value and value.lower() not in _AUTH_METHODS
    return not (name.lower() == "pwd" and value.startswith("/"))


_AUTH_METHODS = _set(
    "basic digest bearer token oauth oauth2 ntlm kerberos iam sso ldap saml plain login ssl tls anonymous"
)

# ---- shapes

_SHAPES = LazyPattern(
    r"""-----BEGIN[ ][A-Z0-9 ]{0,40}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----.*?
        (?:-----END[ ][A-Z0-9 ]{0,40}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----|\Z)
    |(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])
    |(?<![A-Za-z0-9_])(?:
        gh[pousr]_[A-Za-z0-9]{16,} | github_pat_\w{16,} | hf_[A-Za-z0-9]{20,} | npm_[A-Za-z0-9]{20,}
        | gsk_[A-Za-z0-9]{20,}
        | r8_[A-Za-z0-9]{20,} | (?:sk|rk)_(?:live|test)_[A-Za-z0-9]{10,} | whsec_[A-Za-z0-9+/]{16,}
        | shp(?:at|ss|ca|pa)_[0-9a-f]{32}
        | dop_v1_[0-9a-f]{32,} | dapi[0-9a-f]{32} | AGE-SECRET-KEY-1[A-Z0-9]{40,}
        | gl(?:sa|c)_\w{20,} | lin_api_\w{20,}
        | hv[sb]\.[\w\-]{20,} | ya29\.[\w\-]{20,} | SG\.[\w\-]{16,64}\.[\w\-]{16,} | \d{8,10}:AA[\w\-]{30,}
    )
    |(?<=[Bb]earer[ ])[\w.~+/\-]{16,}=*
    |(?<![\w\-])(?:
        gl(?:pat|ptt|dt|rt|cbt|ft|soat)-[\w\-]{16,} | xox[a-z]-[\w\-]{10,} | xapp-[\w\-]{10,}
        | AIza[\w\-]{30,}
        | pypi-A[\w\-]{16,} | dckr_(?:pat|oat)_[\w\-]{16,} | nvapi-[\w\-]{20,}
        | (?:xai|pplx|gsk)-[A-Za-z0-9]{20,} | GOCSPX-[\w\-]{16,}
        | ATATT[\w\-=]{20,} | sk-(?:ant|proj|or|svcacct|admin)-[\w\-]{16,} | sk-(?=[\w\-]*\d)[\w\-]{20,}
    )
    |(?<![\w\-.])eyJ[\w\-]{6,}\.eyJ[\w\-]{6,}(?:\.[\w\-]*){1,3}
    |(?<=hooks\.slack\.com/services/)[\w/]{16,}
    |(?<=discord\.com/api/webhooks/)[\w/\-]{16,}""",
    re.S | re.X,
)

#: Each shape has one of these in it.
_SHAPE_MARKS = _set(
    "AKIA ASIA ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ hf_ npm_ gsk_ r8_ _live_ _test_ whsec_ shp dop_v1_ dapi"
    " AGE-SECRET-KEY glsa_ glc_ lin_api_ hvs. hvb. ya29. SG. :AA gl xox xapp- AIza pypi-A dckr_ nvapi- xai-"
    " pplx- gsk- GOCSPX- ATATT sk- eyJ hooks.slack.com discord.com/api/webhooks"
) | {"PRIVATE KEY", "earer "}

# ---- places

_LOGIN = LazyPattern(r"://(?P<user>[^\s/?#'\"<>\\]+)@")
_ASSIGNMENT = LazyPattern(
    r"(?<![A-Za-z0-9_.\-])[0-9.\-]*(?P<name>[A-Za-z_][\w.\-]*)"
    r"(?P<sep>\\*[\"']?\]?[ \t]*(?P<sign>=>?|:)[ \t]*)"
)
_OPTION = LazyPattern(
    r"(?<![\w.\-])(?P<name>--?[A-Za-z][\w.\-]*)(?:(?:[ \t]|\\?\n)+|\\*[\"'],[ \t\n]*(?=\\*[\"']))"
)
_QUOTE = LazyPattern(r"(\\*)([\"'])")
#: A quote within a command line that stands in quotes itself, as `shlex` and people write it.
_QUOTE_WITHIN = LazyPattern(r"'\"'\"'[\\\"']*|'\\''[\\\"']*")
_DOUBLE_QUOTED = LazyPattern(r"\"((?:[^\"\\]|\\.)*)\"", re.S)
_NEXT_PAIR = r"[ \t\n]|\\*[\"']?[A-Za-z_][\w.\-]{0,60}\\*[\"']?[ \t]*[=:]|\\*[\"']|$"
_BARE = LazyPattern(rf"(?:[^\s'\";&|,<\\]|,(?!{_NEXT_PAIR})|<(?!redacted)|\\(?![\"\n]).)+", re.S)
_CLOSERS = {")": "(", "]": "[", "}": "{", ">": "<"}
_ELEMENT = LazyPattern(r"<(?P<name>[\w.:\-]{1,64})>(?P<value>[^<>]+)</")
_SET = LazyPattern(r"\bset[ \t]+(?P<name>[A-Za-z_][\w.\-]*)[ \t]+(?P<value>'[^']+'|\"[^\"]+\"|[^\s'\"]+)")
_NETRC = LazyPattern(r"\blogin[ \t]+\S{1,256}[ \t\n]+password[ \t]+(?P<value>\S+)")
_PIPED = LazyPattern(
    r"\b(?:echo|printf)[ \t]+(?:-\w+[ \t]+|'%s'[ \t]+|\"%s\"[ \t]+|%s[ \t]+)?"
    r"(?P<value>'[^'|]*'|\"[^\"|]*\"|[^\s'\"|;&<>]+)[ \t]*"
    r"\|(?=[^|;&\n]*(?:--(?:password-stdin|with-token|stdin)\b|\bsudo[ \t]+-S\b|\bpasswd\b))"
)
_CALLS = LazyPattern(
    r"(?<![\w\-.])(?:(?P<curl>curl|wget|https?)|(?P<p>sshpass)|"
    r"(?P<mysql>mysql|mysqldump|mysqladmin|mariadb)|(?P<login>login)|(?P<a>redis-cli))"
    r"(?=[ \t])(?P<rest>[^|;&\n]*)"
)
_LETTERS = {
    "curl": LazyPattern(
        r"(?<=[ \t])(?:-u|-U|--user|--proxy-user)[ \t=]*[\"']?(?P<user>[^\s:\"']+):(?P<value>[^\s\"']+)"
    ),
    "p": LazyPattern(r"(?<=[ \t])-p[ \t]*(?P<value>'[^']+'|\"[^\"]+\"|[^\s\"']+)"),
    "mysql": LazyPattern(r"(?<=[ \t])-p(?P<value>'[^']+'|\"[^\"]+\"|[^\s\"']+)"),
    "login": LazyPattern(  # docker login -p x; wandb login x
        r"(?<=[ \t])(?:-p[ \t]+|(?=[0-9a-f]{40}(?!\w)))(?P<value>'[^']+'|\"[^\"]+\"|[^\s\"'-][^\s\"']*)"
    ),
    "a": LazyPattern(r"(?<=[ \t])-a[ \t]+(?P<value>'[^']+'|\"[^\"]+\"|[^\s\"']+)"),
}
#: Names that are secret after ``?`` or ``&`` of a URL only.
_SIGNATURES = _set(
    "signature sig x-amz-signature x-amz-credential x-amz-security-token x-goog-signature"
    " x-goog-credential awsaccesskeyid code"
)
#: Headers whose value is the rest of the line.
_LINES = _set("authorization proxy-authorization cookie set-cookie")
#: Words with which a sentence continues after an option, name or path; also those of system errors.
_PROSE = _set(
    "a an and any are as at be because but by can cannot contains could did does expected expects"
    " failed for from given has have if in invalid into is isn't it its kept may means missing must need"
    " needs never no not of on only option options or rejected required requires set should so stands"
    " takes than that the then there they this to too twice unable unknown unset until value wants was"
    " were when where which who will with without wrong"
    " permission operation input/output read-only connection device stale"
)
_VERSION = LazyPattern(r"v?\d[\w.\-]*$|latest$|main$|master$|nightly$|stable$|edge$")


def find_secrets(text: str, depth: int = 0) -> list[Span]:
    """Return where a text holds secrets: in order, without overlaps."""
    spans: list[Span] = []
    lower = text.lower()
    is_named = any(stem in lower for stem in _STEMS)
    if ("=" in text or ":" in text) and (is_named or any(stem in lower for stem in _SIGNATURE_STEMS)):
        spans += _assignments(text)
    if "-" in text and is_named:
        spans += _options(text)
    if "://" in text:
        spans += _logins(text)
    if "</" in text and is_named:
        spans += [
            (match.start("value"), match.end("value"), match["name"])
            for match in _ELEMENT.finditer(text)
            if _is_secret(match["name"], match["value"])
        ]
    if " " in text and any(stem in lower for stem in _CALL_STEMS):
        spans += _calls(text)
    if is_named and text[:1] in ("{", "[") and text[-1:] in ("}", "]") and len(text) <= _LONGEST_JSON:
        spans += _literals(text)
    if is_named and ("'" in text or '"' in text) and depth < _DEEPEST_QUOTES and len(text) <= _LONGEST_JSON:
        spans += _quoted(text, depth)
    if any(mark in text for mark in _SHAPE_MARKS):
        spans += [(match.start(), match.end(), "") for match in _SHAPES.finditer(text)]
    return _merged(spans)


def _is_secret(name: str, value: str) -> bool:
    kind = _kind(name[-_LONGEST_NAME:])
    return bool(kind) and _is_secret_value(kind, name, value)


def _merged(spans: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end, name in sorted(spans, key=lambda span: (span[0], -span[1])):
        if merged and start < merged[-1][1]:
            first = merged[-1]
            merged[-1] = (first[0], max(first[1], end), first[2] or name)
        elif end > start:
            merged.append((start, end, name))
    return merged


def _assignments(text: str) -> Iterator[Span]:
    """Find ``NAME=value``, ``"name": "value"``, ``Header: value`` and what follows ``?sig=`` in a URL."""
    done = 0
    for match in _ASSIGNMENT.finditer(text):
        name, at = match["name"], match.end()
        before = text[match.start() - 1] if match.start() else ""
        signs = before in ("?", "&") and name.lower() in _SIGNATURES
        if match.start("name") < done or not (signs or _kind(name[-_LONGEST_NAME:])):
            continue
        if match["sign"] == "=" and text[at : at + 1] == "=":  # a comparison
            continue
        if match["sep"] == ":" and before == "/":  # registry/auth-token:tag
            continue
        is_header = match["sign"] == ":" and match["sep"].lstrip(" \t").startswith(":")
        if is_header and before in ('"', "'"):  # curl -H "X-Api-Key: a b"
            start, end = at, _line_end(text, at, before)
        elif is_header and name.lower() in _LINES and not _QUOTE.match(text, at):
            start, end = at, _line_end(text, at, "")
        else:
            start, end = _value_at(text, at)
        start, end = _without_scheme(text, start, end, name)
        value = text[start:end]
        is_quoted = start > at and text[start - 1] in "\"'"
        if not is_quoted and _goes_on(value, match["sep"], name):
            continue
        if _is_expanded(text, start, end, at):
            continue
        if signs or _is_secret(name, value):
            yield start, end, name
            done = end


def _is_expanded(text: str, start: int, end: int, at: int) -> bool:
    """Whether a shell expands a value: ``$name``, ``"$(command)"``."""
    if end - start > _LONGEST_EXEMPT or (start > at and text[start - 1] == "'"):
        return False
    return _EXPANSION.match(text, start, end) is not None


_EXPANSION = LazyPattern(r"\$[A-Za-z_]\w*\Z|\$[({]|`")


def _goes_on(value: str, sep: str, name: str) -> bool:
    """Whether the text after a name is not its value, but prose, code or the tag of an image."""
    if len(value) > _LONGEST_EXEMPT:
        return False
    if sep == ":":
        if len(value) < 6 or _VERSION.match(value):
            return True
    elif sep[-1:] in (" ", "\t") and ":" in sep and _is_prose(value, name):
        return True
    return value == name or bool(_CODE.match(value))


def _is_prose(value: str, name: str) -> bool:
    word = value.split(None, 1)[0].rstrip(".,:;") if value.strip() else ""
    return word.lower() in _PROSE or (word.isupper() and word in name.upper())


_CODE = LazyPattern(
    r"(?:os|self|args|opts?|config|cfg|settings|json|sys|env|getpass)\.\w"
    r"|(?:os\.)?(?:getenv|getpass|input|open)\("
)


def _without_scheme(text: str, start: int, end: int, name: str) -> tuple[int, int]:
    """Exclude ``Bearer`` and the like from what is replaced."""
    if "auth" in name.lower():
        scheme = _SCHEME.match(text, start, end)
        if scheme is not None and scheme.end() < end:
            return scheme.end(), end
        if scheme is None and _SCHEME_ALONE.fullmatch(text, start, end):
            value = _value_at(text, end + (text[end : end + 1] in (" ", "\t")))
            return value if value[1] > value[0] and text[value[0]] != "-" else (start, end)
    return start, end


_SCHEME_ALONE = LazyPattern(r"bearer|basic|digest|token|negotiate", re.I)


def _line_end(text: str, at: int, quote: str) -> int:
    ends = [end for end in (text.find("\n", at), text.find(quote, at) if quote else -1) if end >= 0]
    if not quote:
        ends += [end for end in (text.find(q, at) for q in "\"'") if end >= 0]
    end = min(ends, default=len(text))
    return end - (text[end - 1 : end] == "\\" and end > at)


def _value_at(text: str, at: int) -> tuple[int, int]:
    """Return start and end of the value at a position: within its quotes, or of the bare word."""
    quote = _QUOTE.match(text, at)
    if quote is None:
        return _bare_at(text, at)
    within = _QUOTE_WITHIN.match(text, at)
    if within is not None:
        marks = within[0]
        if marks[: len(marks) // 2] * 2 == marks:  # nothing in quotes
            return within.end(), within.end()
        end = text.find(marks, within.end())
        return within.end(), end if end >= 0 else _line_end(text, within.end(), "\n")
    start = quote.end()
    if quote[0] == '"':
        closed = _DOUBLE_QUOTED.match(text, at)
        end = closed.end() - 1 if closed else -1
    else:
        end = text.find(quote[0], start)
    if end < 0:
        return start, _line_end(text, start, "\n")
    after = end + len(quote[0])
    if after < len(text) and (text[after].isalnum() or text[after] in "_$@%+/=^~-"):  # "a b"c of a shell
        return at, _bare_at(text, after)[1]
    return start, end


def _bare_at(text: str, at: int) -> tuple[int, int]:
    bare = _BARE.match(text, at)
    if bare is None:
        return at, at
    if bare[0] in ("{", "[", "("):  # what is within has names
        return (at + 1, max(text.find("]", at), at + 1)) if bare[0] == "[" else (at, at)  # ['a', 'b']
    end = bare.end()
    while end - at > 1 and text[end - 1] in _CLOSERS and _CLOSERS[text[end - 1]] not in bare[0]:
        end -= 1
    if text[end - 1] == "`" and bare[0].count("`") == 1:
        end -= 1
    return at, end


def _options(text: str) -> Iterator[Span]:
    """Find ``--password value`` in a command line or message, and ``'--password', 'value'``."""
    for match in _OPTION.finditer(text):
        name, at = match["name"], match.end()
        kind = _kind(name[-_LONGEST_NAME:])
        if not kind:
            continue
        start, end = _value_at(text, at)
        start, end = _without_scheme(text, start, end, name)
        value = text[start:end]
        if start == at and (
            value.startswith("--") or (len(value) == 2 and value[0] == "-") or _is_prose(value, name)
        ):
            continue
        if _is_secret_value(kind, name, value) and not _is_expanded(text, start, end, at):
            yield start, end, name


def _logins(text: str) -> Iterator[Span]:
    for match in _LOGIN.finditer(text):
        user, colon, password = match["user"].partition(":")
        if colon and not _STAND_IN.fullmatch(password):
            yield match.end("user") - len(password), match.end("user"), ""
        elif not colon and len(user) >= SHORTEST_URL_TOKEN and not _STAND_IN.fullmatch(user):
            yield match.start("user"), match.end("user"), ""  # not ssh://git@host


def _calls(text: str) -> Iterator[Span]:
    """Find what well-known commands take as a secret under a short name, or from a pipe."""
    yield from map(_unquoted, _PIPED.finditer(text))
    yield from map(_unquoted, _NETRC.finditer(text))
    for match in _SET.finditer(text):
        if _is_secret(match["name"], match["value"]) and not _is_prose(match["value"], match["name"]):
            yield _unquoted(match)
    for call in _CALLS.finditer(text):
        letters = next(pattern for name, pattern in _LETTERS.items() if call[name])
        yield from map(_unquoted, letters.finditer(text, call.start("rest"), call.end("rest")))


def _unquoted(match: re.Match[str]) -> Span:
    start, end = match.span("value")
    value = match["value"]
    if value[:1] in ('"', "'") and value[-1:] == value[:1]:
        start, end, value = start + 1, end - 1, value[1:-1]
    if _STAND_IN.fullmatch(value) or re.fullmatch(r"\$\w+", value):
        return start, start, ""
    return start, end, ""


def _literals(text: str) -> Iterator[Span]:
    """Find secrets in JSON by its structure: in lists of arguments, and in objects below a secret name."""
    import json

    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    found: dict[str, str] = {}

    def collect(name: str, secret: str) -> str:
        found[secret] = name
        return ""

    SecretFilter(collect).json(value)
    if not found:
        return
    for match in _DOUBLE_QUOTED.finditer(text):
        try:
            literal = json.loads(match[0], strict=False)
        except ValueError:
            continue
        if literal in found:
            yield match.start(1), match.end(1), found[literal]


# ---- words of a shell

#: Each level of quotes in quotes makes a command line several times as long.
_DEEPEST_QUOTES = 6
_SHELL_WORDS = LazyPattern(
    r"(?P<single>'[^']*')|(?P<double>\"(?:[^\"\\]|\\.)*\")|(?P<escaped>\\.)"
    r"|(?P<plain>(?:[^\s'\"\\;|&,]|(?<![\"'\]}]),|,(?![\"'\[{]))+)|(?P<between>(?:[\s;|&]|(?<=[\"'\]}]),(?=[\"'\[{]))+)",
    re.S,
)
_ESCAPED = LazyPattern(r"\\([\"\\$`\n])|[^\\]+|\\", re.S)


class _ShellWord:
    """A word as a program gets it, and the place in the command line of each of its characters."""

    def __init__(self) -> None:
        self.text = ""
        self.places: list[int] = []
        #: For each character: start and end of the quoted or bare piece that it is in, and the piece's quote.
        self.pieces: list[tuple[int, int, str]] = []
        self.is_quoted = False

    def add(self, text: str, places: Iterable[int], piece: tuple[int, int, str]) -> None:
        self.text += text
        self.places += places
        self.pieces += [piece] * len(text)
        self.is_quoted = self.is_quoted or bool(piece[2])

    def strip(self) -> None:
        """Leave out the marks between the elements of a list."""
        while self.text[-1:] in (",", "]", "}", ")") and self.text and not self.pieces[-1][2]:
            self.text = self.text[:-1]
            del self.places[-1], self.pieces[-1]

    def span(self, start: int, end: int, name: str) -> Span:
        """Return the span of a part of the word in the command line, so that quotes stay in pairs."""
        first, last = self.places[start], self.places[end - 1] + 1
        if self.pieces[start][2] != self.pieces[end - 1][2]:
            if not start or self.pieces[start - 1] != self.pieces[start]:
                first = self.pieces[start][0]
            if end == len(self.text) or self.pieces[end] != self.pieces[end - 1]:
                last = self.pieces[end - 1][1]
        return first, last, name


def _shell_words(text: str) -> Iterator[_ShellWord]:
    """Split a text as a shell does. It ends at a quote that is never closed."""
    word, done = _ShellWord(), 0
    for match in _SHELL_WORDS.finditer(text):
        if match.start() != done:
            break
        start, done = match.span()
        if match["between"]:
            yield word
            word = _ShellWord()
        elif match["single"]:
            word.add(match[0][1:-1], range(start + 1, done - 1), (start, done, "'"))
        elif match["double"]:
            piece = (start, done, '"')
            for part in _ESCAPED.finditer(text, start + 1, done - 1):
                if part[1] is not None:
                    word.add(part[1], (part.start(1),), piece)
                else:
                    word.add(part[0], range(part.start(), part.end()), piece)
        elif match["escaped"]:
            word.add(match[0][1], (start + 1,), (start, done, "\\"))
        else:
            word.add(match[0], range(start, done), (start, done, ""))
    yield word


def _quoted(text: str, depth: int) -> Iterator[Span]:
    """Find the secrets that are only recognised without the quotes of a shell."""
    flag = ""
    for word in _shell_words(text):
        word.strip()
        value = word.text
        if word.is_quoted and value:
            kind = _kind(flag[-_LONGEST_NAME:]) if flag else ""
            if kind and not value.startswith("--"):
                if _is_secret_value(kind, flag, value) and (
                    word.pieces[0][2] == "'" or not _is_expanded(value, 0, len(value), 0)
                ):
                    yield word.span(0, len(value), flag)
            else:
                whole = _whole(value)
                found = [whole] if whole else find_secrets(value, depth + 1)
                for start, end, name in found:
                    if word.pieces[start][2] == "'" or not (whole and _is_expanded(value, start, end, start)):
                        yield word.span(start, end, name)
        flag = value if value.startswith("-") and "=" not in value and len(value) <= _LONGEST_NAME else ""


def _whole(word: str) -> Span | None:
    """Return the span of the secret in a word that is, as a whole, one option, header or setting."""
    match = _WHOLE.match(word)
    if match is None:
        match = _SETTING.match(word)
        if match is None or not (word.count("'") % 2 or word.count('"') % 2):  # not a line of shell
            return None
    if not _is_secret(match["name"], match["value"]):
        return None
    start, end = _without_scheme(word, match.start("value"), match.end("value"), match["name"])
    return (start, end, match["name"]) if _is_secret(match["name"], word[start:end]) else None


# ---- replacing


class SecretFilter:
    """Replaces secrets in texts, lists of arguments and nested JSON values.

    Args:
        replace: gets the name before a secret, or "", and the secret; returns its replacement.
        known: secrets that are replaced wherever they occur, with the name that ``replace`` gets for each.
    """

    def __init__(self, replace: Callable[[str, str], str], known: Mapping[str, str] | None = None) -> None:
        self._replace = replace
        self._known = dict(known or {})
        # the longest first, so that a secret that contains another one is replaced whole
        ordered = sorted(filter(None, self._known), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> str:
        """Return a text without the secrets in it."""
        if not text:
            return text
        spans = find_secrets(text)
        if self._pattern is not None:
            known = [(match.start(), match.end()) for match in self._pattern.finditer(text)]
            if known:
                return self._replaced(text, _around(spans, known))
        return self._replaced(text, spans) if spans else text

    def _replaced(self, text: str, spans: Iterable[Span]) -> str:
        parts, done = [], 0
        for start, end, name in spans:
            secret = text[start:end]
            parts += [text[done:start], self._replace(self._known.get(secret, name), secret)]
            done = end
        return "".join(parts) + text[done:]

    def json(self, value: Any, depth: int = 0) -> Any:
        """Return nested JSON values without the secrets in them."""
        if isinstance(value, str):
            return self.text(value)
        if depth > _DEEPEST:
            return "<too deep>" if isinstance(value, (dict, list, tuple)) else value
        if isinstance(value, dict):
            # {"name": "HF_TOKEN", "value": "..."} is how requests write variables
            named = next((value[key] for key in _NAME_FIELDS if key in value), None)
            named = named if isinstance(named, str) and not _VALUE_FIELDS.isdisjoint(value) else ""
            return {
                key: self.named(named if named and key in _VALUE_FIELDS else str(key), item, depth + 1)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return self.words(value, depth + 1)
        return value

    def named(self, name: str, value: Any, depth: int = 0) -> Any:
        """Return a named value: replaced if it is a secret by its name, else without those in it.

        Numbers stay: ``max_tokens`` is one. But a long number named ``password`` is replaced.
        """
        kind = _kind(name[-_LONGEST_NAME:])
        if not kind:
            return self.json(value, depth)
        if isinstance(value, str):
            return self._replace(name, value) if _is_secret_value(kind, name, value) else self.text(value)
        if isinstance(value, (dict, list, tuple)):
            return self.secret(name, value, depth)
        if kind == STRONG and isinstance(value, (int, float)) and len(str(value)) > 5:
            return self._replace(name, str(value))
        return value

    def secret(self, name: str, value: Any, depth: int = 0) -> Any:
        """Return the replacement of a value that is a secret whatever it looks like."""
        if depth > _DEEPEST:
            return "<too deep>"
        if isinstance(value, dict):
            if any(key in value for key in _NAME_FIELDS):  # {"name": "X", "valueFrom": "arn:..."}
                return self.json(value, depth)
            return {key: self.secret(str(key), item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.secret(name, item, depth + 1) for item in value]
        if value is None or isinstance(value, bool):
            return value
        text = str(value)
        if not text or _STAND_IN.fullmatch(text) or _REFERENCE.fullmatch(text):
            return value
        return self._replace(name, text)

    def words(self, words: Iterable[Any], depth: int = 0) -> list[Any]:
        """Return a list of arguments without the secrets in it."""
        result: list[Any] = []
        flag = program = ""
        for word in words:
            if not isinstance(word, str):
                result.append(self.json(word, depth))
                flag = ""
                continue
            shown = self._after(flag, program, word) if flag else None
            result.append(self._word(word, program) if shown is None else shown)
            flag = word if word.startswith("-") and "=" not in word and len(word) <= _LONGEST_NAME else ""
            program = _PROGRAMS.get(word.rpartition("/")[2], program)
        return result

    def _after(self, flag: str, program: str, word: str) -> str | None:
        """Return an argument that follows an option; None if the option does not make it a secret."""
        kind = _kind(flag)
        if kind and not word.startswith("--") and _is_secret_value(kind, flag, word):
            return self._replace(flag.lstrip("-"), word)
        if program == "curl" and flag in ("-u", "-U", "--user", "--proxy-user") and ":" in word:
            user, _, password = word.partition(":")
            return f"{user}:{self._replace('', password)}" if password else word
        if (program, flag) in (("p", "-p"), ("login", "-p"), ("a", "-a")) and not word.startswith("-"):
            return self._replace("", word)
        name, equals, value = word.partition("=")
        if flag in _VARIABLE_FLAGS and equals and value and not re.search(r",[A-Za-z_][\w.\-]{0,60}=", value):
            return f"{name}={self.named(name, value)}" if is_secret_name(name) else None
        return None

    def _word(self, word: str, program: str) -> str:
        whole = _whole(word)
        if whole is not None:
            start, end, name = whole
            return word[:start] + self._replace(name.lstrip("-+"), word[start:end]) + word[end:]
        if program == "mysql" and word.startswith("-p") and len(word) > 2:
            return "-p" + self._replace("", word[2:])
        if program == "curl" and word.startswith("-u") and ":" in word:
            return word.partition(":")[0] + ":" + self._replace("", word.partition(":")[2])
        if program == "login" and re.fullmatch("[0-9a-f]{40}", word):
            return self._replace("", word)
        return self.text(word)


#: An argument that is one option, header or ``group.name=`` of Hydra from its first character to its last.
_WHOLE = LazyPattern(
    r"(?P<name>--?[A-Za-z][\w.\-]{0,127}(?==)|\+{0,2}[A-Za-z_]\w{0,63}\.[\w.\-]{1,127}(?==)"
    r"|[A-Za-z][\w\-]{0,127}(?=:[ \t]))(?:=|:[ \t]+)(?P<value>.*)\Z",
    re.S,
)
_SETTING = LazyPattern(r"(?P<name>[A-Za-z_]\w{0,127})=(?P<value>.*)\Z", re.S)
_PROGRAMS = {
    **dict.fromkeys(("curl", "wget", "http", "https"), "curl"),
    **dict.fromkeys(("mysql", "mysqldump", "mysqladmin", "mariadb"), "mysql"),
    "sshpass": "p",
    "login": "login",
    "redis-cli": "a",
}
_VARIABLE_FLAGS = ("-e", "--env", "--build-arg", "--setenv")
_NAME_FIELDS = ("name", "Name", "key", "Key")
_VALUE_FIELDS = _set("value Value valueFrom ValueFrom")
#: What is nested deeper is hostile; `json` of Python takes about as much.
_DEEPEST = 100


def _around(spans: Sequence[Span], known: Sequence[tuple[int, int]]) -> Iterator[Span]:
    """Merge spans with those of known secrets, which stay whole: each has a name by which it is put back."""
    pieces: list[Span] = [(start, end, "") for start, end in known]
    at = 0
    for start, end, name in spans:
        while at < len(known) and known[at][1] <= start:
            at += 1
        begin, index = start, at
        while index < len(known) and known[index][0] < end:
            if known[index][0] > begin:
                pieces.append((begin, known[index][0], name))
            begin = max(begin, known[index][1])
            index += 1
        if begin < end:
            pieces.append((begin, end, name))
    return iter(sorted(pieces))
