"""Filter patterns of CloudWatch Logs: words, phrases, alternatives, exclusions and regular expressions; those
for JSON are in `json_patterns`.

https://docs.aws.amazon.com/AmazonCloudWatch/latest/logs/FilterAndPatternSyntax.html
"""

from __future__ import annotations

import re
from collections.abc import Callable

from trainyard.schedulers.aws.sagemaker_local.endpoint.errors import ApiError
from trainyard.schedulers.aws.sagemaker_local.endpoint.json_patterns import PatternError, json_matcher

Matcher = Callable[[str], bool]

_TERM = re.compile(
    r"""\s*(?P<sign>[?-]?)(?:"(?P<phrase>(?:[^"\\]|\\.)*)"|%(?P<regex>[^%]*)%|(?P<word>[^\s"%?-]\S*))(?=\s|$)""",
    re.DOTALL,
)
#: What the service lets regular expressions be made of: no groups, no other symbols.
_REGEX = re.compile(r"(?:[A-Za-z0-9:_#=@/;,\-^$?\[\]{}|*+.\s]|\\.)*", re.DOTALL)


def matcher(pattern: str) -> Matcher:
    """Return what tells whether a message matches a pattern. Capitals matter.

    All words and phrases have to be in the message, none with ``-`` may be, and of those with ``?`` one has
    to be; where there are others beside them, the service pays no heed to those with ``?``.

    Raises:
        ApiError: the pattern is for columns, or makes no sense.
    """
    text = pattern.strip()
    if text.startswith("{"):
        try:
            return json_matcher(text, _expression)
        except PatternError as error:
            raise _refused(str(error)) from None
    if text.startswith("["):
        raise _refused("it is a pattern for columns, which is not understood on this machine; use words")
    wanted: list[Matcher] = []
    excluded: list[Matcher] = []
    optional: list[Matcher] = []
    place = 0
    while place < len(text):
        term = _TERM.match(text, place)
        if term is None:
            raise _refused(f"there is no term at {text[place:].strip()[:40]!r}")
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
        raise _refused(f"the regular expression {text!r} has characters that the service does not take")
    try:
        search = re.compile(text).search
    except re.error as error:
        raise _refused(f"the regular expression {text!r} is wrong: {error}") from None
    return lambda message: search(message) is not None


def _refused(reason: str) -> ApiError:
    return ApiError("InvalidParameterException", f"Invalid filter pattern: {reason}")
