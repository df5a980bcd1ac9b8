"""What counts as a secret, in the toolkit and in the launcher: a value whose name says so, or a known shape.

`SecretFilter` replaces secrets in JSON values, in lists of arguments and in texts:

- after a name (`is_secret_name`): as an item of a mapping, as ``--password x``, ``--password=x``,
  ``PASSWORD=x``, ``X-Api-Key: x``, or as a line ``password: x`` of YAML or ``password = "x"`` of a script,
- by place: ``scheme://user:x@host``, ``?sig=x``, ``curl -u user:x``,
- by shape: tokens of well-known services, JSON web tokens, private keys.

Values are best filtered before they are written as JSON or quoted for a shell: then it is known where a
secret ends. JSON and quoted words in a text are read to the same end; elsewhere in a text the end may be
uncertain, and more is replaced rather than less.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

#: Start and end of a secret in a text, and the name before it; "" if its place or shape gave it away.
Span = tuple[int, int, str]

#: A user part of a URL without a password is a token from this length on.
SHORTEST_URL_TOKEN = 16
_MOST_QUOTES = 8

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
    |\b(?:sshpass|login)\b[^\n|;&]{0,500}?\s-p[ ]?(?:["'](?P<quoted>[^\n"'$]+)|(?P<login>[^\s"'$-]\S*))
    |\bredis-cli\b[^\n|;&]{0,500}?\s-a[ ]?["']?(?P<redis>[^\s"'$-][^\s"']*)
    |\bmysql\w*\s[^\n|;&]{0,500}?-p(?P<mysql>[^\s"'$]+)
    |\bconfigure\s+set\s+\S*(?:secret|token)\S*\s+(?P<set>[^\s"'$]+)
    |\bwandb\s+login\s+(?P<wandb>\w{32,}) | \blogin\s+\S+\s+password\s+(?P<netrc>[^\s"'$]+)
    |\becho\s+["']?(?P<echo>[^\s"'$|]+)["']?\s*\|[^|\n]{0,500}--password-stdin
    |<(?:password|secret|token)>(?P<tag>[^<>]+)</"""
#: ``--password x``, also as items of a list and over two lines; ``ENV PASSWORD x``, ``setenv PASSWORD x``.
_FLAG = r"""(?x)(?<![\w-])(?:--?|(?:ENV|setenv|set[ ]-[a-z]+)[ ]+)(?P<name>[A-Za-z][\w.-]{0,127})
    (?P<between>["'],\s*|[ \t]*\\?\n[ \t]*(?:-[ \t]+)?|[ \t]+)(?!-)(?P<indent>(?!))?"""
#: ``PASSWORD=x``, ``"password": "x"``, ``password: x``, ``environ["PASSWORD"] = x``, ``password: str = "x"``;
#: ``name: PASSWORD`` and ``value: x`` of YAML, ``key="password" value="x"`` of XML.
_SETTING = r"""(?xm)(?:^(?P<indent>[ \t]*)(?:-[ \t]+|export[ \t]+)*)?(?P<quote>["'])?(?:--?|\+\+?)?
    (?<![A-Za-z0-9_])(?<![A-Za-z0-9_][.-])(?P<name>\w[\w.-]{0,127})(?(quote)(?P=quote))\]?
    (?P<between>[ \t]*
        (?:=>|[:?+]?=(?!=)|:[ \t]*\w[\w.\[\]|, ]{0,40}=[ ]?(?=["'])|:(?:[ \t]|(?=["'][^\s,)\]}]|\n)))
        [ \t]*(?:\$(?='))?
        |[\s,"']{1,80}value["']?[ \t]*[:=][ \t]*
        |(?:(?<=-[Tt]oken)|(?<=-[Kk]ey)|(?<=[Aa]uthorization)):)"""
_QUOTES = "\\\"'"
_QUOTED = r"""(?:'[^']*'|"(?:[^"\\]|\\.)*")"""
#: A word of a shell, and a value: it also ends at a bracket, or at a comma before the next setting.
_WORD = rf"""(?s)(?:{_QUOTED}|\\.|[^\s"'`;&|\\]|["'].*)+"""
_VALUE = rf"""(?xs){_QUOTED}(?=/>)
    |(?:{_QUOTED}|\\.|[^\s"'`,;&|(){{}}\[\]<>\\]|,(?![\w.-]*[=:]|[\s"'\]}})]|$))+
    |["'][^\n]*"""
_SCHEME = re.compile(r"(?:bearer|basic|digest|token|negotiate)[ \t]+(?!-)", re.I)
_CODE = re.compile(r"[\w.]+[(\[].*[)\]][;,:]?")
_TYPE = re.compile(r"(?:str|int|bool|bytes|Any|None|Optional\[\w+\])(?: \| \w+)?(?: = None)?,?")
#: What follows a name in a message rather than a setting.
_PROSE = re.compile(
    "is|are|was|were|must|may|can|cannot|needs?|has|have|not|and|or|for|to|of|in|on|at|from|with|by|as|but|the|an?"
    "|expects?|expected|requires?|required|given|missing|invalid|unknown|argument|option|value"
)


def _find_secrets(text: str, *, is_word: bool = False, depth: int = 0) -> Iterator[Span]:
    """Yield the places of secrets in a text; they may overlap.

    With ``is_word`` the text is one argument of a command: a setting at its beginning extends to its end.
    """
    text = re.sub(r"\\+[nrt]", lambda match: "\n".rjust(len(match[0])), text)
    for pattern in (_SHAPES, _URL, _COMMANDS):
        for match in re.finditer(pattern, text):
            yield *match.span(match.lastgroup or 0), ""
    for pattern in (_SETTING, _FLAG):
        for match in re.finditer(pattern, text):
            if is_secret_name(match["name"]):
                yield from _named_secret(text, match, to_end=is_word and match.start() == 0)
    for match in re.finditer(_WORD, text) if depth < _MOST_QUOTES else ():
        if not any(quote in match[0] for quote in _QUOTES):
            continue
        word, places = _unquoted(match[0], match.start())
        is_script = re.search(r"-\w*c[ =]*$", text[max(match.start() - 9, 0) : match.start()])
        for start, end, name in _find_secrets(word, is_word=not is_script, depth=depth + 1):
            yield places[start], places[end - 1] + 1, name


def _unquoted(word: str, at: int) -> tuple[str, list[int]]:
    """Return what a shell makes of a word, and for each character of that its place in the text."""
    characters, places, quote = [], [], ""
    escaped = False
    for place, character in enumerate(word, at):
        if not escaped and character == quote:
            quote = ""
        elif not escaped and not quote and character in "'\"":
            quote = character
        elif not escaped and character == "\\" and quote != "'":
            escaped = True
            continue
        else:
            characters.append(character)
            places.append(place)
        escaped = False
    return "".join(characters), places


def _named_secret(text: str, setting: re.Match[str], to_end: bool) -> Iterator[Span]:
    """Find the secret after a name: it ends where the text, a block of lines, the line or the word does."""
    name, indent, between = setting["name"], setting["indent"], setting["between"]
    if ":" in between and text[setting.start("name") - 1] == "/":  # cat: /etc/passwd: not found
        return
    scheme = _SCHEME.match(text, setting.end())
    at = scheme.end() if scheme else setting.end()
    block = None
    if indent is not None and ":" in between:
        block = re.compile(rf"[|>]?[-+\d]*[ \t]*\n((?:{indent}(?:[ \t]+|- ).*(?:\n|\Z))+)").match(text, at)
    begins_line = (indent is not None and between[:1] in (" ", ":")) or "value:" in between
    is_code = False
    if to_end and re.fullmatch(r"=|:[ \t]+", between):
        value = text[at:]
    elif block:
        value = block[1].strip()
        at = text.index(value, block.start(1))
    elif begins_line and text[at : at + 1] not in ("'", '"'):
        value = text[at:].partition("\n")[0].rstrip(" \t\r,;")
        is_code = "=" in between and bool(_CODE.fullmatch(value))
    else:
        word = re.compile(_VALUE).match(text, at)
        value = word[0] if word else ""
        if "=" in between:
            is_code = text[at + len(value) :][:1] in ("(", "[")
        elif not begins_line:
            is_code = bool(_PROSE.fullmatch(value))
    at += len(value) - len(value.lstrip(_QUOTES))
    value = value.strip(_QUOTES)
    is_variable = value[:1] == "$" and text[at - 1] != "'"
    is_code = is_code or bool(_TYPE.fullmatch(value)) or value.rpartition(".")[2].lower() == name.lower()
    if _is_secret(name, value) and not is_variable and not is_code:
        yield at, at + len(value), name


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end, name in sorted(spans):
        if merged and start < merged[-1][1]:
            first, last, first_name = merged[-1]
            merged[-1] = (first, max(end, last), first_name or name)
        else:
            merged.append((start, end, name))
    return merged


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

    def text(self, text: str, *, is_word: bool = False) -> str:
        """Return a text without the secrets in it. See `_find_secrets`."""
        text = self._without_secrets_in_json(text)
        spans = [*_find_secrets(text, is_word=is_word)]
        # the longest first, so that a secret that contains another one is replaced whole
        pattern = "|".join(re.escape(secret) for secret in sorted(self._known, key=len, reverse=True))
        if pattern:
            spans += ((*match.span(), self._known[match[0]]) for match in re.finditer(pattern, text))
        parts, done = [], 0
        for start, end, name in _merged(spans):
            start += len(text[start:end]) - len(text[start:end].lstrip(_QUOTES))
            secret = text[start:end].rstrip(_QUOTES)
            if not re.fullmatch(_STAND_IN, secret):
                parts += [text[done:start], self._replace(self._known.get(secret, name), secret)]
                done = start + len(secret)
        return "".join(parts) + text[done:]

    def _without_secrets_in_json(self, text: str) -> str:
        """Return a text without the secrets of the JSON documents in it."""
        parts, done, end = [], 0, 0
        for match in re.finditer(r"(?<![^\s'\"=])[{\[](?=[\s{\[\"])", text):
            start = match.start()
            if start < end:
                continue
            try:
                document, end = json.JSONDecoder().raw_decode(text, start)
            except (ValueError, RecursionError):
                continue
            filtered = self.json(document)
            if filtered != document:
                separators = (", ", ": ") if ": " in text[start:end] else (",", ":")
                written = json.dumps(filtered, ensure_ascii=text.isascii(), separators=separators)
                parts += [text[done:start], written]
                done = end
        return "".join(parts) + text[done:]

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
        return self.text(word, is_word=not re.fullmatch(r"-\w*c", before))
