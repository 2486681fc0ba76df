"""The one place where an error becomes what the user sees and an exit code."""

from __future__ import annotations

import json
import sys
import traceback
from typing import TextIO

from headrace.kernel.errors import ExitCode, HeadraceError, InternalError


def report(error: BaseException, *, debug: bool, as_json: bool = False, stream: TextIO | None = None) -> ExitCode:
    """Write an error to standard error and give the exit code for it.

    Args:
        error: Any error; those that are not Headrace's own are reported as internal ones.
        debug: Show the traceback, too.
        as_json: Write one JSON object instead of text.
        stream: Where to; standard error when not given.
    """
    stream = stream or sys.stderr
    known = error if isinstance(error, HeadraceError) else _internal(error)
    if debug:
        traceback.print_exception(error, file=stream)
    text = json.dumps({"error": known.to_dict()}, default=str) if as_json else error_text(known)
    stream.write(text + "\n")
    return known.exit_code


def error_text(error: HeadraceError) -> str:
    """Code, message, detail and hint as lines."""
    lines = [f"error[{error.code}]: {error.message}"]
    lines += [f"  detail: {error.detail}"] if error.detail else []
    lines += [f"  hint: {error.hint}"] if error.hint else []
    return "\n".join(lines)


def _internal(error: BaseException) -> HeadraceError:
    return InternalError(
        f"unexpected {type(error).__name__}",
        detail=str(error),
        hint="this is a fault of headrace; run again with --debug and report the traceback",
    )
