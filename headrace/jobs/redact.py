"""Keeping secrets out of everything that is printed: plans, logs, JSON, ``repr``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

HIDDEN: Final = "***"

_SECRET_KEY: Final = re.compile(
    r"passw|secret|token|credential|access[-_.]?key|api[-_.]?key|account[-_.]?key|private|"
    r"jaas|key[-_.]pem|sas[-_]|oauthbearer\.config|\.key$|authorization|basic\.auth",
    re.IGNORECASE,
)
_URL_PASSWORD: Final = re.compile(r"(?P<head>[a-zA-Z][a-zA-Z0-9+.-]*://[^/@:\s]*:)[^@/\s]*(?=@)")


def is_secret_key(key: str) -> bool:
    """Whether an option of this name holds something that must not be shown."""
    return _SECRET_KEY.search(key) is not None


def redact_text(text: str) -> str:
    """``text`` without the passwords inside URLs (``scheme://user:password@host``)."""
    return _URL_PASSWORD.sub(rf"\g<head>{HIDDEN}", text)


def redact(value: Any) -> Any:
    """A copy of JSON-like ``value`` in which secrets are hidden, by key and inside URLs."""
    if isinstance(value, Mapping):
        return {key: HIDDEN if is_secret_key(str(key)) and item else redact(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value


def redact_urls(value: Any) -> Any:
    """A copy of JSON-like ``value`` without the passwords inside URLs. Its keys may be names of columns."""
    if isinstance(value, Mapping):
        return {key: redact_urls(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [redact_urls(item) for item in value]
    return redact_text(value) if isinstance(value, str) else value
