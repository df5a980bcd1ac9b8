"""What counts as a secret, in the toolkit and in the launcher: a value whose name says so, or a known shape.

`SecretFilter` replaces secrets in JSON values, in lists of arguments and in texts:

- after a name (`is_secret_name`): as an item of a mapping, as ``--password x``, ``--password=x``,
  ``PASSWORD=x``, ``X-Api-Key: x``, or as a line ``password: x`` of YAML or ``password = "x"`` of a script,
- by place: ``scheme://user:x@host``, ``?sig=x``, ``curl -u user:x``,
- by shape: tokens of well-known services, JSON web tokens, private keys.

Filter values before they are written as JSON or quoted for a shell: there it is known where a secret ends.
In a text the end may be uncertain, and more is replaced rather than less.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

#: A user part of a URL without a password is a token from this length on.
SHORTEST_URL_TOKEN = 16

# ---- names

# Patterns are compiled when they are first used: most commands look at no names and texts.
_CAMEL = r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])"
#: Names are compared as words in small letters, joined by "_", without the numbers at their ends.
_SECRET_NAME = (
    r"passw(?:or)?ds?(?:_|$)|pass_?(?:word|phrase|code)|secrets?(?:_|$)|(?:^|_)cred(?:ential)?s?(?:_|$)"
    r"|conn(?:ection)?_?str|(?:api|access|private|secret|ssh|auth|account|signing|encryption|master|license|storage|service"
    r"|wandb|openai|azure|kaggle)_?keys?(?:_|$)|(?:^|_)(?:jwt|otp|dsn|cookies?|authorization)(?:_|$)"
    r"|(?:^|_|db|ssh|user|my|admin|root|smtp|key|store)pass$|(?:^|_)(?:my|pg)?pwd?$|webhook(?:_ur[li])?$"
    r"|token$|(?:access|api|auth|session|refresh)_tokens$|(?:^|_)o?auth(?:_config)?$|(?:git\w*|gh|azure\w*)_pat$"
)
#: Not secrets: tokens of text, passes over data, keys to look up; what is said about a secret; switches.
_OTHER_NAME = (
    r"(?:^|_)(?:pad|padding|eos|bos|unk|mask|sep|cls|next|stop|start|end|begin|image|img|prompt|initializer"
    r"|concept|separator|newline)_token$"
    r"|(?:^|_)(?:forward|backward|first|second|single|one|two|per|test|compile|fusion|band|low|high)_pass$"
    r"|(?:^|_)(?:primary|foreign|sort|partition|public|pub|cache|text|image|label|target|data|dataset|sample|metric"
    r"|loss|task|seed|rng|row|kms|group|hash|state|dict|optimizer)_key$"
    r"|(?<!secret)_(?:id|ids)$|(?<!webhook)_ur[il]$"
    r"|_(?:files?|filename|path|dir|folder|name|names|types?|endpoint|host|port|arn|ref|header|prefix|env|var|len"
    r"|length|size|count|limit|ttl|expiry|timeout|mode|provider|store|manager|method|policy|version|required|user"
    r"|username|login|sock|stdin|fd|field|column|dim|ratio|loss|dataset|parallelism)$"
    r"|^(?:no|disable|enable|skip|allow|require|show|without|num|n|max|min|is|has)_"
)


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a variable, option, hyperparameter or field of this name holds a secret."""
    if name in ("PWD", "OLDPWD") or "@" in name:
        return False
    parts = re.split(r"[^A-Za-z0-9]+", re.sub(_CAMEL, "_", name))
    words = "_".join(word for word in (part.lower().rstrip("0123456789") for part in parts) if word)
    # a variable in capitals that ends in _KEY gives access
    is_key = name.isupper() and words.endswith("_key") and not name.startswith("SM_HP_")
    return bool(is_key or re.search(_SECRET_NAME, words)) and not re.search(_OTHER_NAME, words)


# ---- values

#: What stands for a value or says how: settings, masks, variables, macros, markup, names of stored secrets.
_STAND_IN = (
    r"(?s)(?i:true|false|none|null|yes|no|on|off|auto|default|basic|bearer|digest|token|oauth2?)?"
    r"|<[^<>]*>|\[\w*\]|\*+|\.{3}|…|\$[A-Z_][A-Z0-9_]*|\$\{.*\}|\$\(.*\)|`.*`|\{\{?[\w. ]*\}?\}"
    r"|arn:aws[\w-]*:(?:secretsmanager|ssm):\S+|ssm:\S+|\{\{resolve:.*\}\}"
)
_NUMBER = r"[+-]?(?:\d+(?:_\d+)*(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?[kKmMbBtT]?"
_PATH = r"(?![A-Za-z0-9/]{40}$)(?:~|\.{0,2})/[\w.\-]+(?:/[\w.\-]+)+|~/[\w.\-]+"


def _is_secret(name: str, value: str) -> bool:
    """Whether a value with this name is a secret."""
    if not is_secret_name(name) or re.fullmatch(_STAND_IN, value) or re.fullmatch(_PATH, value):
        return False
    is_digits = value.isdigit() and len(value) > 5 and "token" not in name.lower()
    return is_digits or not re.fullmatch(_NUMBER, value)


# ---- texts

_SHAPES = r"""(?xs)-----BEGIN[ ][A-Z0-9 ]{0,40}PRIVATE[ ]KEY(?:[ ]BLOCK)?-----.*?
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
    |(?:(?<=[?&]sig=)|(?<=[?&]X-Amz-Signature=)|(?<=[?&]X-Amz-Credential=))[^&\s"'<>]+"""
_URL = rf"""://(?:[^\s/?#"'<>:@]*:(?P<password>[^\s/?#"'<>]+)|(?P<user>[^\s/?#"'<>:@]{{{SHORTEST_URL_TOKEN},}}):?)@"""
#: What some commands take under a short name, from a pipe or without a name.
_COMMANDS = r"""(?x)\bcurl\b[^\n|;&]{0,500}?\s(?:-u|--user|--proxy-user)[ =]?["']?
        [^\s:"'$]{1,80}:(?!\d+\s)(?P<user>[^\s"'$]+)
    |\b(?:sshpass|login)\b[^\n|;&]{0,500}?\s-p[ ]?(?:["']{1,9}(?P<quoted>[^\n"'$]+)|(?P<login>[^\s"'$-]\S*))
    |\bredis-cli\b[^\n|;&]{0,500}?\s-a[ ]?["']?(?P<redis>[^\s"'$-][^\s"']*)
    |\bmysql\w*\s[^\n|;&]{0,500}?-p(?P<mysql>[^\s"'$]+)
    |\bconfigure\s+set\s+\S*(?:secret|token)\S*\s+(?P<set>[^\s"'$]+)
    |\bwandb\s+login\s+(?P<wandb>\w{32,}) | \blogin\s+\S+\s+password\s+(?P<netrc>[^\s"'$]+)
    |\becho\s+["']?(?P<echo>[^\s"'$|]+)["']?\s*\|[^|\n]{0,500}--password-stdin
    |<(?:password|secret|token)>(?P<tag>[^<>]+)</"""
#: ``--password x``, also as items of a list and over two lines; ``ENV PASSWORD x``, ``setenv PASSWORD x``.
_FLAG = r"""(?x)(?<![\w-])(?:--?|(?:ENV|setenv|set[ ]-[a-z]+)[ ]+)(?P<name>[A-Za-z][\w.-]{0,127})
    (?P<between>\\*["'],?\s*|[ \t]*\\?\n[ \t]*(?:-[ \t]+)?|[ \t]+)(?!-)"""
#: ``PASSWORD=x``, ``"password": "x"``, ``password: x``, ``environ["PASSWORD"] = x``, ``password: str = "x"``;
#: ``name: PASSWORD`` and ``value: x`` of YAML, ``key="password" value="x"`` of XML.
_SETTING = r"""(?xm)(?:^(?P<indent>[ \t]*)(?:-[ \t]+|export[ \t]+)*)?(?:(?P<open>["'])(?:--?|\+\+?)?)?
    (?:(?<![\w\\/])(?<!\w[.-])|(?<=\\[nrt]))(?P<name>\w[\w.-]{0,127})(?:(?P<closed>[\\"']{1,9})\]?)?
    (?P<between>[ \t]*
        (?:=>|[:?+]?=(?!=)|:[ \t]*\w[\w.\[\]|, ]{0,40}=[ ]?(?=["'])|:(?:[ \t]|(?=[\\"'][^\s,)\]}]|\n)))
        [ \t]*(?:\$(?='))?
        |[\s,"']{1,80}value["']{0,9}[ \t]*[:=][ \t]*
        |(?:(?<=-[Tt]oken)|(?<=-[Kk]ey)|(?<=[Aa]uthorization)):)"""
#: A part of a word: in quotes, or a character. A word also ends at a bracket, or before the next setting.
_PART = r"""(?:\\+(?P<quote>["']).*?(?:\\+(?P=quote)|\Z) | '[^']*(?:'|\Z) | "(?:[^"\\]|\\.)*(?:"|\Z)
    | \\(?![nrt])[^"'] | [^\s"'`,;&|(){}\[\]<>\\] | ,(?![\w.-]*[=:]|[\s"'\]})]|$))"""
#: A value in a text: in brackets, in quotes of XML, or a word.
_VALUE = rf"""(?xs)(?:[{{\[][^{{}}\[\]]*)+[}}\]]*|"[^"]*"(?=/>)|{_PART}+"""
_SCHEME = re.compile(r"(?:bearer|basic|digest|token|negotiate)[ \t]+(?!-)", re.I)
_QUOTES = "\\\"'"
_CODE = re.compile(r"[A-Za-z_][\w.]*[(\[]")
_TYPE = re.compile(r"(?:str|int|bool|bytes|Any|None|Optional\[\w+\])(?: \| \w+)?(?: = None)?,?")
#: What follows a name in a message rather than a setting.
_PROSE = re.compile(
    "is|are|was|were|must|may|can|cannot|needs?|has|have|not|and|or|for|to|of|in|on|at|from|with|by|as|but|the|an?"
    "|expects?|expected|requires?|required|given|missing|invalid|unknown|argument|option|value"
)


def _named_secret(text: str, setting: re.Match[str]) -> tuple[int, int]:
    """Return start and end of the value after a name in a text; the same place twice if it is no secret."""
    groups = setting.groupdict()
    name, indent, between = groups["name"], groups.get("indent"), groups["between"]
    opened, closed = groups.get("open"), groups.get("closed")
    scheme = _SCHEME.match(text, setting.end())
    start = scheme.end() if scheme else setting.end()
    begins_line = indent is not None or text[: setting.start("name")].endswith("\\n")
    is_yaml = (begins_line and between[:1] == ":") or "value:" in between
    lines = rf"(?P<head>[|>]?[-+\d]*[ \t]*\n)(?:[ \t]*\n|{indent or ''}(?:[ \t]+|- ).*(?:\n|\Z))+"
    block = re.compile(lines).match(text, start) if is_yaml else None
    if block:
        start, pattern = block.end("head"), ""
    elif text[start : start + 1] in _QUOTES:
        pattern = _VALUE
    elif opened and not closed:
        pattern = rf"(?xs)[^{opened}]*(?:{opened}{_PART}+)?"
    elif is_yaml:
        pattern = r"(?:[^\n\\]|\\(?!n))*"
    else:
        pattern = _VALUE
    match = block or re.compile(pattern).match(text, start)
    value = text[start : match.end() if match else start].strip(_QUOTES + " \t\r\n,;")
    start = text.index(value, start)
    is_quoted = text[start - 1] in _QUOTES
    is_other = (
        _TYPE.fullmatch(value)
        or (value[:1] == "$" and text[start - 1] != "'" and not (closed and ":" in between))
        or (not is_quoted and "=" in between and _CODE.match(text, start))
        or (not is_yaml and not is_quoted and "=" not in between and _PROSE.fullmatch(value))
        or value.rpartition(".")[2].lower() == name.lower()
    )
    return start, start if is_other or not _is_secret(name, value) else start + len(value)


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
        if text[:1] in ("{", "["):
            try:
                document = json.loads(text)
            except (ValueError, RecursionError):
                pass
            else:
                filtered = self.json(document)
                separators = (", ", ": ") if ": " in text else (",", ":")
                unchanged = filtered == document
                return (
                    text
                    if unchanged
                    else json.dumps(filtered, ensure_ascii=text.isascii(), separators=separators)
                )
        if self._known:  # the longest first, so that a secret that contains another one is replaced whole
            pattern = "|".join(re.escape(secret) for secret in sorted(self._known, key=len, reverse=True))
            text = re.sub(pattern, lambda match: self._replace(self._known[match[0]], match[0]), text)
        for pattern in (_SHAPES, _URL, _COMMANDS):
            text = re.sub(pattern, self._without_group, text)
        for pattern in (_SETTING, _FLAG):
            parts, done = [], 0
            for match in re.finditer(pattern, text):
                if match.end() >= done and is_secret_name(match["name"]):
                    start, end = _named_secret(text, match)
                    if start < end:
                        parts += [text[done:start], self._replace(match["name"], text[start:end])]
                        done = end
            text = "".join(parts) + text[done:]
        return text

    def _without_group(self, match: re.Match[str]) -> str:
        """Return what a pattern matched, with its named group replaced, or all of it where it has none."""
        group = match.lastgroup or 0
        if re.fullmatch(_STAND_IN, match[group]):
            return match[0]
        start, end = match.start(group) - match.start(), match.end(group) - match.start()
        return match[0][:start] + self._replace("", match[group]) + match[0][end:]

    def json(self, value: Any) -> Any:
        """Return nested JSON values without the secrets in them."""
        return self.named("", value)

    def named(self, name: str, value: Any, *, is_secret: bool = False) -> Any:
        """Return a named value: replaced if it is a secret by its name, else without the secrets in it.

        With ``is_secret`` it is one, or holds some, whatever its name and looks.
        """
        if isinstance(value, (list, tuple)):
            if not is_secret and not is_secret_name(name):
                return self.words(value)
            return [self.named(name, item, is_secret=True) for item in value]
        if isinstance(value, dict):
            # {"name": "HF_TOKEN", "value": "..."} is how requests write variables
            label = value.get("name", value.get("Name", value.get("Key")))
            names = {
                key: label if isinstance(label, str) and key in ("value", "Value") else key for key in value
            }
            is_secret = (is_secret or is_secret_name(name)) and label is None
            return {
                key: self.named(str(names[key]), item, is_secret=is_secret) for key, item in value.items()
            }
        is_secret = is_secret and not re.fullmatch(_STAND_IN, str(value))
        if is_secret or _is_secret(name, str(value)):
            return self._replace(name, str(value))
        return self.text(value) if isinstance(value, str) else value

    def words(self, words: Iterable[Any]) -> list[Any]:
        """Return a list of arguments without the secrets in it."""
        words = list(words)
        line = " ".join(word for word in words if isinstance(word, str))
        positional = [match[match.lastgroup or 0] for match in re.finditer(_COMMANDS, line)]
        return [self._word(word, str(before), positional) for before, word in zip(["", *words], words)]

    def _word(self, word: Any, before: str, positional: list[str]) -> Any:
        if not isinstance(word, str):
            return self.json(word)
        is_value = before[:1] == "-" and "=" not in before and word[:2] != "--"
        if is_value and _is_secret(before, word):
            return self._replace(before.lstrip("-"), word)
        for secret in positional:
            if word.endswith(secret):
                return word[: -len(secret)] + self._replace("", secret)
        setting = re.match(
            r"(?s)([-+]*(\w[\w.-]*)(?:=|:[ \t]*(?!\s))(?:(?i:bearer|basic|token) )?)(.+)", word
        )
        if setting and not re.fullmatch(r"-\w*c", before) and _is_secret(setting[2], setting[3]):
            return setting[1] + self._replace(setting[2], setting[3])
        return self.text(word)


def secrets_in(*values: Any) -> set[str]:
    """Return the secrets in JSON values or lists of arguments."""
    secrets: set[str] = set()

    def collect(name: str, secret: str) -> str:
        secrets.add(secret)
        return "***"

    for value in values:
        SecretFilter(collect).json(value)
    return secrets
