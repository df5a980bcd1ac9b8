"""Filter patterns of CloudWatch Logs: words, phrases, alternatives, exclusions, regular expressions, and
expressions for events that are JSON: ``{ $.level = "ERROR" && $.step > 10 }``.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/FilterAndPatternSyntax.html
"""

from __future__ import annotations

import glob
import json
import operator
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from shunter.schedulers.sagemaker_local_scheduler.request_validation import ApiError

Matcher = Callable[[str], bool]

_TERM = re.compile(
    r"""\s*(?P<sign>[?-]?)(?:"(?P<phrase>(?:[^"\\]|\\.)*)"|%(?P<regex>[^%]*)%|(?P<word>[^\s"%?-]\S*))(?=\s|$)""",
    re.DOTALL,
)
#: What the service lets regular expressions be made of: no groups, no other symbols.
_REGEX = re.compile(r"(?:[A-Za-z0-9:_#=@/;,\-^$?\[\]{}|*+.\s]|\\.)*", re.DOTALL)


def matcher(pattern: str) -> Matcher:
    """Return a function that tells whether a message matches a pattern. Capitals matter.

    A message must contain all words and phrases, none of those with ``-``, and at least one of those with
    ``?``. If a pattern has other terms too, the service ignores those with ``?``.

    Raises:
        ApiError: the pattern is for columns, or is invalid.
    """
    text = pattern.strip()
    if text.startswith("{"):
        return _json_matcher(text)
    if text.startswith("["):
        raise _refused("it is a pattern for columns, which is not understood on this machine; use words")
    wanted: list[Matcher] = []
    excluded: list[Matcher] = []
    optional: list[Matcher] = []
    place = 0
    while place < len(text):
        term = _TERM.match(text, place)
        if term is None:
            raise _refused(f"expected a term at {text[place:].strip()[:40]!r}")
        {"": wanted, "-": excluded, "?": optional}[term["sign"]].append(_test(term))
        place = term.end()
    if wanted or excluded or not optional:
        return lambda message: (
            all(test(message) for test in wanted) and not any(test(message) for test in excluded)
        )
    return lambda message: any(test(message) for test in optional)


def _test(term: re.Match[str]) -> Matcher:
    if term["regex"] is not None:
        return _expression(term["regex"])
    text = term["word"]
    if text is None:
        text = re.sub(r"\\(.)", r"\1", term["phrase"], flags=re.DOTALL)
    return lambda message: text in message


def _expression(text: str) -> Matcher:
    if not _REGEX.fullmatch(text):
        raise _refused(f"the regular expression {text!r} has characters that the service does not accept")
    try:
        search = re.compile(text).search
    except re.error as error:
        raise _refused(f"the regular expression {text!r} is wrong: {error}") from None
    return lambda message: search(message) is not None


def _refused(reason: str) -> ApiError:
    return ApiError("InvalidParameterException", f"Invalid filter pattern: {reason}")


# ---- JSON

ValueTest = Callable[[Any], bool]

_JSON_TOKEN = re.compile(
    r"""\s*(?:
        (?P<sign>&&|\|\||\(|\)|!=|<=|>=|=|<|>)
      | (?P<selector>\$(?:\.?\[\s*(?:\d+|\*|'[^']*'|"[^"]*")\s*\]|\.[\w-]+)*)
      | "(?P<phrase>(?:[^"\\]|\\.)*)"
      | %(?P<regex>[^%]*)%
      | (?P<word>[^\s()=<>!&|"%]+)
    )""",
    re.VERBOSE | re.DOTALL,
)
_STEP = re.compile(
    r"""\[\s*(?:(?P<index>\d+)|(?P<any>\*)|'(?P<one>[^']*)'|"(?P<two>[^"]*)")\s*\]|\.(?P<name>[\w-]+)"""
)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_ORDERS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_STATES: dict[tuple[str, ...], Callable[[list[Any]], bool]] = {
    ("IS", "NULL"): lambda found: any(value is None for value in found),
    ("IS", "TRUE"): lambda found: any(value is True for value in found),
    ("IS", "FALSE"): lambda found: any(value is False for value in found),
    ("NOT", "EXISTS"): lambda found: not found,
    ("EXISTS",): bool,
}
#: The maximum nesting depth of expressions, far more than fits into a pattern's 1024 characters.
DEEPEST = 100


def _json_matcher(pattern: str) -> Matcher:
    """Return a function that tells whether a message is JSON that satisfies a pattern.

    A comparison is true if any value that its selector finds satisfies it. If the selector finds nothing,
    every comparison is false, even ``!=``, and only ``NOT EXISTS`` is true. ``*`` in a text matches any
    characters.
    """
    if not pattern.endswith("}"):
        raise _refused("the closing } is missing")
    test = _JsonPatternParser(pattern[1:-1]).parse()

    def is_match(message: str) -> bool:
        try:
            event = json.loads(message)
        except (ValueError, RecursionError):
            return False
        return isinstance(event, dict) and test(event)

    return is_match


class _JsonPatternParser:
    """Reads an expression: ``||`` of ``&&`` of comparisons and parentheses."""

    def __init__(self, text: str) -> None:
        self._tokens: list[re.Match[str]] = []
        place, end = 0, len(text.rstrip())
        while place < end:
            token = _JSON_TOKEN.match(text, place)
            if token is None:
                raise _refused(f"expected a term at {text[place:].strip()[:40]!r}")
            self._tokens.append(token)
            place = token.end()
        self._at = 0
        self._depth = 0

    def parse(self) -> ValueTest:
        test = self._either()
        if self._at < len(self._tokens):
            raise _refused(f"unexpected text at {self._tokens[self._at][0].strip()!r}")
        return test

    def _peek(self) -> str:
        return self._tokens[self._at][0].strip() if self._at < len(self._tokens) else ""

    def _next(self, what: str) -> re.Match[str]:
        if self._at >= len(self._tokens):
            raise _refused(f"{what} is missing at the end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _either(self) -> ValueTest:
        tests = [self._both()]
        while self._peek() == "||":
            self._at += 1
            tests.append(self._both())
        return tests[0] if len(tests) == 1 else lambda event: any(test(event) for test in tests)

    def _both(self) -> ValueTest:
        tests = [self._one()]
        while self._peek() == "&&":
            self._at += 1
            tests.append(self._one())
        return tests[0] if len(tests) == 1 else lambda event: all(test(event) for test in tests)

    def _one(self) -> ValueTest:
        if self._peek() == "(":
            self._at += 1
            self._depth += 1
            if self._depth > DEEPEST:
                raise _refused("there are too many parentheses in each other")
            test = self._either()
            if self._next(")")[0].strip() != ")":
                raise _refused("a ) is missing")
            self._depth -= 1
            return test
        token = self._next("a selector")
        if token["selector"] is None:
            raise _refused(f"{token[0].strip()!r} is not a selector, such as $.level")
        select = _selector(token["selector"])
        for words, state in _STATES.items():
            following = [each[0].strip() for each in self._tokens[self._at : self._at + len(words)]]
            if tuple(word.upper() for word in following) == words:
                self._at += len(words)
                return lambda event, state=state: state(select(event))  # type: ignore[misc]
        sign = self._next("an operator")
        if sign["sign"] not in ("=", "!=", *_ORDERS):
            raise _refused(f"{sign[0].strip()!r} is not an operator")
        value = self._comparison(sign["sign"], self._next("a value"))
        return lambda event: any(value(found) for found in select(event))

    def _comparison(self, sign: str, token: re.Match[str]) -> ValueTest:
        """Return a function that compares a value of an event with a value of the pattern."""
        word = token["word"]
        if sign in _ORDERS:
            if word is None or not _NUMBER.fullmatch(word):
                raise _refused(f"{sign} needs a number, not {token[0].strip()!r}")
            return _numeric(_ORDERS[sign], float(word))
        if token["regex"] is not None:
            search = _expression(token["regex"])
            test: ValueTest = lambda found: isinstance(found, (str, int, float)) and search(_text(found))  # noqa: E731
        elif word is not None and _NUMBER.fullmatch(word):
            number, equals = _numeric(operator.eq, float(word)), word
            test = lambda found: number(found) or found == equals  # noqa: E731
        elif word is not None or token["phrase"] is not None:
            wanted = word if word is not None else re.sub(r"\\(.)", r"\1", token["phrase"], flags=re.DOTALL)
            pattern = "*".join(map(glob.escape, wanted.split("*")))
            test = lambda found: found is not None and fnmatchcase(_text(found), pattern)  # noqa: E731
        else:
            raise _refused(f"{token[0].strip()!r} is not a value")
        if sign == "=":
            return test
        return lambda found: not test(found)


def _numeric(compare: Callable[[float, float], bool], wanted: float) -> ValueTest:
    return lambda found: (
        isinstance(found, (int, float)) and not isinstance(found, bool) and compare(found, wanted)
    )


def _text(found: Any) -> str:
    return found if isinstance(found, str) else json.dumps(found)


def _selector(text: str) -> Callable[[Any], list[Any]]:
    """Return what finds the values of an event that a selector names: one, none, or with ``[*]`` several."""
    steps: list[int | str | None] = []
    place = 1
    while place < len(text):
        step = _STEP.match(text, place + (text[place : place + 2] == ".["))
        assert step is not None  # as the token is made
        if step["index"] is not None:
            steps.append(int(step["index"]))
        elif step["any"] is not None:
            steps.append(None)
        else:
            steps.append(next(part for part in step.group("one", "two", "name") if part is not None))
        place = step.end()
    if not steps:
        raise _refused("a selector names a property, such as $.level")

    def select(event: Any) -> list[Any]:
        found = [event]
        for step in steps:
            found = [inner for value in found for inner in _inside(value, step)]
        return found

    return select


def _inside(value: Any, step: int | str | None) -> list[Any]:
    if isinstance(step, str):
        return [value[step]] if isinstance(value, dict) and step in value else []
    if not isinstance(value, list):
        return []
    return value if step is None else value[step : step + 1]
