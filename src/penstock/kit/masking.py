"""Secrets in words of others: what looks like one is not shown. Pure text.

Errors of ours show no secrets. Those of Spark, of Java and of drivers may, and so may options of formats that are not
ours, whose secrets nothing declares.
"""

import re

_NAMES = (
    r"(?:password|passwd|passphrase|pwd|secret|token|credential|jaas|(?:api|access|private|encryption|account).?key)"
)
_NAME = re.compile(rf"(?i){_NAMES}|seed|sas\b|\.key$")
# name=value, as in addresses and settings, and "name": value, as in JSON. A sentence may go on behind `token:`.
_VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s,;&}\"']+)"
_PAIR = re.compile(rf"(?i)({_NAMES}[\w.-]*\s*=\s*|[\"'][\w.-]*{_NAMES}[\w.-]*[\"']\s*:\s*){_VALUE}")
_HEADER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_LOGIN = re.compile(r"://[^/@\s]*@")
HIDDEN = "***"
# The most letters of such words that are shown.
MOST_TEXT = 1000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")


def masked(text: str) -> str:
    """Text without what looks like a secret in it."""
    return _LOGIN.sub("://", _HEADER.sub(rf"\1 {HIDDEN}", _PAIR.sub(rf"\1{HIDDEN}", text)))


def is_secret(name: str) -> bool:
    """Whether the name of an option says that it is one."""
    return _NAME.search(name) is not None


def harmless(text: object) -> str:
    """Text of others as it may be shown: one line, not too long, and without what looks like a secret."""
    line = _CONTROL.sub(" ", str(text or "")[: 10 * MOST_TEXT]).strip()
    line = masked(line)
    return line if len(line) <= MOST_TEXT else f"{line[:MOST_TEXT]}..."
