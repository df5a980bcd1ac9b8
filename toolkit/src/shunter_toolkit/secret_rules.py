"""What counts as a secret, in the toolkit and in the launcher: a value whose name says so, or a known shape.

`SecretFilter` replaces secrets in JSON values, in lists of arguments and in texts:

- after a name (`is_secret_name`): as an item of a mapping, as ``--password x``, ``--password=x``,
  ``PASSWORD=x``, ``X-Api-Key: x``, or as a line ``password: x`` of YAML or ``password = "x"`` of a script,
- by place: ``scheme://user:x@host``, ``?sig=x``, ``curl -u user:x``,
- by shape: tokens of well-known services, JSON web tokens, private keys.

A name or place is looked for in the value itself, before it is written as JSON or quoted for a shell: then
it is known where the secret ends. In a text the end may be uncertain, and more is replaced rather than less.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

#: Start and end of a secret in a text, and the name before it; "" if its place or shape gave it away.
Span = tuple[int, int, str]

#: A user part of a URL without a password is a token from this length on.
SHORTEST_URL_TOKEN = 16
_DEEPEST = 100

# ---- names

_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
#: Names are compared as words in small letters, joined by "_", without the numbers at their ends.
_STRONG = re.compile(
    r"passw(?:or)?ds?(?:_|$)|pass_?(?:word|phrase|code)|secrets?(?:_|$)|(?:^|_)cred(?:ential)?s?(?:_|$)"
    r"|conn(?:ection)?_?str|(?:api|access|private|secret|ssh|auth|account|signing|encryption|master|license|storage|service"
    r"|wandb|openai|azure|kaggle)_?keys?(?:_|$)|(?:^|_)(?:jwt|otp|dsn|cookies?|authorization)(?:_|$)"
    r"|webhook(?:_ur[li])?$"
    r"|(?:^|_|db|ssh|user|my|admin|root|smtp|key|store)pass$|(?:^|_)(?:my|pg)?pwd?$"
)
_WEAK = re.compile(
    r"token$|(?:access|api|auth|session|refresh)_tokens$|(?:^|_)o?auth(?:_config)?$|(?:git\w*|gh|azure\w*)_pat$"
)
#: Not secrets: tokens of text, passes over data; names that say something about a secret; switches.
_OTHER = re.compile(
    r"(?:^|_)(?:pad|padding|eos|bos|unk|mask|sep|cls|next|stop|start|end|begin|image|img|prompt|initializer"
    r"|concept|separator|newline)_token$"
    r"|(?:^|_)(?:forward|backward|first|second|single|one|two|per|test|compile|fusion|band|low|high)_pass$"
    r"|(?<!secret)_(?:id|ids)$"
    r"|_(?:files?|filename|path|dir|folder|name|names|types?|ur[il]|endpoint|host|port|arn|ref|header|prefix|env|var"
    r"|len|length|size|count|limit|ttl|expiry|timeout|mode|provider|store|manager|method|policy|version|required"
    r"|user|username|login|sock|stdin|fd|field|column|dim|ratio|loss|dataset|parallelism)$"
    r"|^(?:no|disable|enable|skip|allow|require|show|without|num|n|max|min|is|has)_"
)
#: A variable in capitals that ends in _KEY gives access, unless it is one of these.
_LOOKUP_KEY = re.compile(
    r"(?:^|_)(?:primary|foreign|sort|partition|public|pub|cache|text|image|label|target|data|dataset|sample|metric"
    r"|loss|task|seed|rng|row|kms|group|hash|state|dict|optimizer)_key$"
)


def is_secret_name(name: str) -> bool:
    """Whether a variable, option, hyperparameter or field of this name holds a secret."""
    return bool(_kind(name[-128:]))


@functools.lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    """Return "strong" for the name of a secret, "weak" if numbers with it are none, "" for other names."""
    if name in ("PWD", "OLDPWD") or "@" in name:
        return ""
    in_capitals = name.isupper() and not name.startswith("SM_HP_")
    parts = re.split(r"[^A-Za-z0-9]+", _CAMEL.sub("_", name))
    words = "_".join(word for word in (part.lower().rstrip("0123456789") for part in parts) if word)
    if _OTHER.search(words) and not re.search(r"webhook_ur[il]$", words):
        return ""
    if _STRONG.search(words) or (in_capitals and words.endswith("_key") and not _LOOKUP_KEY.search(words)):
        return "strong"
    return "weak" if _WEAK.search(words) else ""


# ---- values

#: What stands for a value or says how: settings, masks, variables, macros, markup, names of stored secrets.
_STAND_IN = re.compile(
    r"(?i:true|false|none|null|yes|no|on|off|auto|default|basic|bearer|digest|token|oauth2?)"
    r"|<[^<>]*>|\[\w*\]|\*+|\.{3}|…|\$[A-Z_][A-Z0-9_]*|\$\{.*\}|\$\(.*\)|`.*`|\{\{?[\w. ]*\}?\}"
    r"|arn:aws[\w-]*:(?:secretsmanager|ssm):\S+|ssm:\S+|\{\{resolve:.*\}\}",
    re.S,
)
_NUMBER = re.compile(r"[+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?[kKmMbBtT]?")
_PATH = re.compile(r"(?:~|\.{0,2})/[\w.\-]+(?:/[\w.\-]+)+|~/[\w.\-]+")


def _is_secret(name: str, value: str) -> bool:
    """Whether a value with this name is a secret."""
    kind = _kind(name[-128:])
    if not kind or not value or _STAND_IN.fullmatch(value):
        return False
    if _NUMBER.fullmatch(value):
        return kind == "strong" and value.isdigit() and len(value) > 5
    return not _PATH.fullmatch(value) or bool(re.fullmatch(r"[A-Za-z0-9/]{40}", value))  # as AWS's keys are


# ---- texts

_SHAPES = re.compile(
    r"""-----BEGIN[ ][A-Z0-9 ]{0,40}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----.*?
        (?:-----END[ ][A-Z0-9 ]{0,40}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----|\Z)
    |(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?:[\s:,;"']{1,4}[A-Za-z0-9/+]{40})?(?![A-Za-z0-9/+])
    |(?<![A-Za-z0-9_])(?:
        gh[pousr]_[A-Za-z0-9]{16,} | github_pat_\w{16,} | hf_[A-Za-z0-9]{20,} | npm_[A-Za-z0-9]{20,}
        | (?:sk|rk)_(?:live|test)_[A-Za-z0-9]{10,} | gsk_[A-Za-z0-9]{20,} | dop_v1_[0-9a-f]{32,}
        | dapi[0-9a-f]{32} | hv[sb]\.[\w\-]{20,} | ya29\.[\w\-]{20,} | SG\.[\w\-]{16,64}\.[\w\-]{16,}
    )
    |(?<![\w\-])(?:
        gl(?:pat|ptt|dt|rt)-[\w\-]{16,} | xox[a-z]-[\w\-]{10,} | xapp-[\w\-]{10,} | AIza[\w\-]{30,}
        | pypi-A[\w\-]{16,} | dckr_pat_[\w\-]{16,} | nvapi-[\w\-]{20,}
        | sk-(?:ant|proj|or)-[\w\-]{16,} | sk-(?=[\w\-]*\d)[\w\-]{20,}
    )
    |(?<=[Bb]earer[ ])[\w.~+/\-]{16,}=*
    |(?<![\w\-.])eyJ[\w\-]{6,}\.eyJ[\w\-]{6,}(?:\.[\w\-]*){1,3}
    |(?<=hooks\.slack\.com/services/)[\w/]{16,}
    |(?:(?<=[?&]sig=)|(?<=[?&]X-Amz-Signature=)|(?<=[?&]X-Amz-Credential=))[^&\s"'<>]+""",
    re.X | re.S,
)
_URL = re.compile(r"""://(?P<user>[^\s/?#"'<>:@]*)(?::(?P<password>[^\s/?#"'<>]+))?@""")
#: What some commands take under a short name, from a pipe or without a name.
_COMMANDS = re.compile(
    r"""\bcurl\b[^\n|;&]{0,500}?\s(?:-u|--user|--proxy-user)[ =]?["']?
        [^\s:"'$]{1,80}:(?!\d+\s)(?P<user>[^\s"'$]+)
    |\b(?:sshpass|login)\b[^\n|;&]{0,500}?\s-p[ ]?(?P<login>[^\s"'$\\-]\S*)
    |\b(?:sshpass|login)\b[^\n|;&]{0,500}?\s-p[ ]?\\*["'](?P<quoted>[^\n"'$\\]+)
    |\bredis-cli\b[^\n|;&]{0,500}?\s-a[ ]?["']?(?P<redis>[^\s"'$-][^\s"']*)
    |\bmysql\w*\s[^\n|;&]{0,500}?-p(?P<mysql>[^\s"'$]+)
    |\bconfigure\s+set\s+\S*(?:secret|token)\S*\s+(?P<set>[^\s"'$]+)
    |\bwandb\s+login\s+(?P<wandb>\w{32,}) | \blogin\s+\S+\s+password\s+(?P<netrc>[^\s"'$]+)
    |\becho\s+["']?(?P<echo>[^\s"'$|]+)["']?\s*\|[^|\n]{0,500}--password-stdin
    |<(?:password|secret|token)>(?P<tag>[^<>]+)</""",
    re.X,
)
#: ``--password x``, also as items of a list and over two lines; ``ENV PASSWORD x``, ``setenv PASSWORD x``.
_FLAG = re.compile(
    r"""(?<![\w-])(?:--?|(?:ENV|setenv|set[ ]-[a-z]+)[ ]+)(?P<name>[A-Za-z][\w.-]{0,127})
    (?:\\*["'],\s*|[ \t]*\\\n[ \t]*|[ \t]*\n[ \t]*-[ \t]+|[ \t]+)(?!-)""",
    re.X,
)
#: ``PASSWORD=x``, ``"password": "x"``, ``password: x``, ``environ["PASSWORD"] = x``, ``password: str = "x"``.
_SETTING = re.compile(
    r"""(?P<line>^(?P<indent>[ \t]*)(?:-[ \t]+|export[ \t]+)*)?(?P<open>\\*["'])?(?:--?|\+\+?)?
    (?<![A-Za-z0-9_])(?<![A-Za-z0-9_][.-])(?P<name>\w[\w.-]{0,127})(?P<close>\\*["'])?\]?
    (?P<between>[ \t]*(?:=>|[:?+]?=(?!=)|:[ \t]*\w[\w.\[\]|, ]{0,40}=[ ]?(?=["'])|:(?:[ \t]|(?=\\*["']|\n)))
            [ \t]*(?:\$(?=\\*'))?
        |(?:(?<=-[Tt]oken)|(?<=-[Kk]ey)|(?<=[Aa]uthorization)):)""",
    re.X | re.M,
)
#: ``name: PASSWORD`` and ``value: x`` of YAML, ``key="password" value="x"`` of XML.
_PAIR = re.compile(
    r"""(?<![\w-])(?:name|key)[ \t]*[:=][ \t]*["']?(?P<name>[A-Za-z_][\w.-]{0,127})["']?[\s,]{1,80}
    value[ \t]*[:=][ \t]*(?:"(?P<double>[^"\n]+)"|'(?P<single>[^'\n]+)'|(?P<plain>[^\s"'][^\n]*))""",
    re.X | re.I,
)
_QUOTED = re.compile(r"""(?P<quote>\\+["'])(?P<value>.{0,8192}?)(?<!\\)(?P=quote)""", re.S)
#: A word of a shell, or what ends at a bracket or at a comma before the next setting.
_PIECE = r"""'(?:[^'\\]|\\{4,}'|\\)*'|"(?:[^"\\]|\\.)*["]"""
_WORD = re.compile(
    _PIECE.join(("(?:", r"""|\\.|[^\s"'`,;&|(){}\[\]<>\\]|,(?![\w.-]*[=:]|[\s"'\]})]|$))+|["'][^\n]*""")),
    re.S,
)
_QUOTED_WORD = re.compile(_PIECE, re.S)
_SCHEME = re.compile(r"(?:bearer|basic|digest|token|negotiate)[ \t]+(?!-)", re.I)
_CODE = re.compile(r"[\w.]+[(\[].*[)\]][;,:]?")
_TYPE = re.compile(r"(?:str|int|bool|bytes|Any|None|Optional\[\w+\])(?: \| \w+)?(?: = None)?,?")
#: What follows a name in a message rather than a setting.
_PROSE = re.compile(
    "is|are|was|were|must|may|can|cannot|needs?|has|have|not|and|or|for|to|of|in|on|at|from|with|by|as|but|the|an?"
    "|expects?|expected|requires?|required|given|missing|invalid|unknown|argument|option|value"
)


def find_secrets(text: str) -> list[Span]:
    """Return the places of secrets in a text, in order and apart from each other."""
    spans: list[Span] = [(*found.span(), "") for found in _SHAPES.finditer(text)]
    spans += [
        (*found.span("password" if found["password"] else "user"), "")
        for found in _URL.finditer(text)
        if found["password"] or len(found["user"]) >= SHORTEST_URL_TOKEN
    ]
    plain = _plain(text)
    spans += [(*found.span(found.lastgroup or 0), "") for found in _COMMANDS.finditer(plain)]
    for pattern in (_SETTING, _FLAG):
        for found in pattern.finditer(plain):
            is_path = plain[found.start("name") - 1 : found.start("name")] == "/" and ":" in found[0]
            if _kind(found["name"]) and not is_path:
                spans += _named_secret(plain, found)
    for found in _PAIR.finditer(plain):
        value = found.lastgroup or "plain"
        if _is_secret(found["name"], found[value].rstrip()):
            spans.append((*found.span(value), found["name"]))
    return _merged(span for span in spans if not _STAND_IN.fullmatch(text, *span[:2]))


def _plain(text: str) -> str:
    """Return a text of the same length with ends of lines for ``\\n``, and quotes in quotes escaped.

    ``'"'"'`` is how a quote is written within quotes of a shell.
    """
    text = re.sub(r"\\+[nrt]", lambda found: "\n".rjust(len(found[0])), text)
    count = 1
    while count:
        text, count = re.subn(r"""(\\*')"\1"\1""", lambda found: "'".rjust(len(found[0]), "\\"), text)
    return text


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end, name in sorted(spans):
        if merged and start < merged[-1][1]:
            first, last, first_name = merged[-1]
            merged[-1] = (first, max(end, last), first_name or name)
        elif start < end:
            merged.append((start, end, name))
    return merged


def _named_secret(text: str, found: re.Match[str]) -> Iterator[Span]:
    """Find the secret after a name, in a text from `_plain`: it ends where block, quotes, line or word do."""
    at, name = found.end(), found["name"]
    group: dict[str, Any] = {
        "line": None,
        "indent": "",
        "open": None,
        "close": None,
        "between": "",
        **found.groupdict(),
    }
    begins_line, between = group["line"] is not None, group["between"]
    if begins_line and ":" in between:
        below = rf"[-+\d]*[ \t]*\n((?:{group['indent']}(?:[ \t]+|- ).*(?:\n|\Z))+)"
        block = re.compile(("[|>]?" if _kind(name) == "strong" else "[|>]") + below).match(text, at)
        if block:
            lines = block[1]
            start = block.end(1) - len(lines.lstrip(" \t"))
            yield start, block.start(1) + len(lines.rstrip()), name
            return
    quoted = _QUOTED.match(text, at)
    scheme = None if quoted else _SCHEME.match(text, at)
    at = scheme.end() if scheme else at
    word = _WORD.match(text, at)
    is_script = "=" in between and re.search(r"-\w*c[ =]*$", text[max(found.start() - 9, 0) : found.start()])
    to_quote = None
    if group["open"] and not group["close"] and not is_script:
        to_quote = re.compile(rf"(?s)(.{{0,8192}}?)(?<!\\){re.escape(group['open'])}").match(text, at)
    is_quoted = True
    if quoted:
        start, end = quoted.span("value")
    elif to_quote:  # 'X-Api-Key: a b'
        start, end = at, to_quote.end(1)
    elif begins_line and between[:1] in (" ", ":") and text[at : at + 1] not in ('"', "'"):
        start, end, is_quoted = at, at + len(text[at:].partition("\n")[0].rstrip(" \t\r,;")), False
    elif word and _QUOTED_WORD.fullmatch(word[0]):
        start, end = word.start() + 1, word.end() - 1
    elif word:
        start, end = word.span()
        is_quoted = word[0][0] in "\"'"
    else:
        return
    value = text[start:end]
    is_reference = value.rpartition(".")[2].lower() == name.lower() or (
        value[:1] == "$" and text[start - 1] != "'"
    )
    is_code = not is_quoted and (
        _TYPE.fullmatch(value)
        or ("=" in between and (_CODE.fullmatch(value) or text[end : end + 1] in ("(", "[")))
        or ("=" not in between and not begins_line and _PROSE.fullmatch(value))
    )
    if _is_secret(name, value) and not is_reference and not is_code:
        yield start, end, name


# ---- values and texts


class SecretFilter:
    """Replaces secrets in JSON values, lists of arguments and texts.

    Args:
        replace: gets the name before a secret, or "", and the secret; returns its replacement.
        known: secrets that are replaced wherever they occur, with the name that ``replace`` gets for each.
    """

    def __init__(self, replace: Callable[[str, str], str], known: Mapping[str, str] | None = None) -> None:
        self._replace = replace
        self._known = {secret: name for secret, name in (known or {}).items() if secret}

    def text(self, text: str) -> str:
        """Return a text without the secrets in it."""
        known = {**self._known, **_secrets_in_json(text)}
        spans = find_secrets(text)
        # the longest first, so that a secret that contains another one is replaced whole
        pattern = "|".join(re.escape(secret) for secret in sorted(known, key=len, reverse=True))
        if pattern:
            spans = _merged(
                [*spans, *((*found.span(), known[found[0]]) for found in re.finditer(pattern, text))]
            )
        parts, done = [], 0
        for start, end, name in spans:
            secret = text[start:end]
            parts += [text[done:start], self._replace(known.get(secret, name), secret)]
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
            label = value.get("name", value.get("Name", value.get("Key")))
            label = label if isinstance(label, str) else ""
            return {
                key: self.named(label if label and key in ("value", "Value") else str(key), item, depth + 1)
                for key, item in value.items()
            }
        return self.words(value, depth + 1) if isinstance(value, (list, tuple)) else value

    def named(self, name: str, value: Any, depth: int = 0) -> Any:
        """Return a named value: replaced if it is a secret by its name, else without the secrets in it."""
        kind = _kind(name[-128:])
        if kind and isinstance(value, (str, int, float)) and not isinstance(value, bool):
            is_secret = _is_secret(name, str(value))
            return self._replace(name, str(value)) if is_secret else self.json(value)
        if kind and isinstance(value, (dict, list, tuple)):
            return self.secret(name, value, depth)
        return self.json(value, depth)

    def secret(self, name: str, value: Any, depth: int = 0) -> Any:
        """Return the replacement of a value that is a secret whatever it looks like."""
        if depth > _DEEPEST:
            return "<too deep>"
        if isinstance(value, dict):
            if "name" in value or "Name" in value:  # {"name": "X", "valueFrom": "arn:..."}
                return self.json(value, depth)
            return {key: self.secret(str(key), item, depth + 1) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.secret(name, item, depth + 1) for item in value]
        is_secret = (
            value is not None
            and not isinstance(value, bool)
            and str(value)
            and not _STAND_IN.fullmatch(str(value))
        )
        return self._replace(name, str(value)) if is_secret else value

    def words(self, words: Iterable[Any], depth: int = 0) -> list[Any]:
        """Return a list of arguments without the secrets in it."""
        words = list(words)
        line = " ".join(word for word in words if isinstance(word, str))
        from_commands = {found[found.lastgroup or 0] for found in _COMMANDS.finditer(line)}
        result: list[Any] = []
        before = ""
        for word in words:
            if not isinstance(word, str):
                result.append(self.json(word, depth))
            elif before[:1] == "-" and "=" not in before and word[:2] != "--" and _is_secret(before, word):
                result.append(self._replace(before.lstrip("-"), word))
            else:
                result.append(self._word(word, from_commands, is_script=bool(re.fullmatch(r"-\w*c", before))))
            before = word if isinstance(word, str) else ""
        return result

    def _word(self, word: str, from_commands: set[str], is_script: bool) -> str:
        setting = None if is_script else _WHOLE.fullmatch(word)
        if setting and _is_secret(setting["name"], setting["value"]):
            return word[: setting.start("value")] + self._replace(setting["name"], setting["value"])
        for secret in from_commands:
            if word.endswith(secret):
                return word[: -len(secret)] + self._replace("", secret)
        return self.text(word)


#: An argument that is one option, setting or header from its first character to its last.
_WHOLE = re.compile(
    r"(?:--?|\+\+?)?(?P<name>[A-Za-z_][\w.-]{0,127})"
    r"(?:=|:[ \t]+(?:(?i:bearer|basic|digest|token)[ \t]+)?)(?P<value>.*)",
    re.S,
)


def _secrets_in_json(text: str) -> dict[str, str]:
    """Return the secrets that only the structure of JSON in a text shows, as they are written in it."""
    secrets: dict[str, str] = {}
    done = 0
    for found in re.finditer(r"(?<![^\s'\"=])[{\[](?=[\s{\[\"])", text):
        import json

        def collect(name: str, secret: str) -> str:
            secrets[json.dumps(secret)[1:-1]] = secrets[json.dumps(secret, ensure_ascii=False)[1:-1]] = name
            return ""

        if found.start() >= done:
            try:
                value, done = json.JSONDecoder().raw_decode(text, found.start())
            except (ValueError, RecursionError):
                continue
            SecretFilter(collect).json(value)
    return secrets
