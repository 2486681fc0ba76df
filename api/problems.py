"""Errors as problem details (RFC 9457): every answer that is not a success is ``application/problem+json``."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from api.numbers import with_text_integers
from headrace.kernel.errors import (
    AccessDeniedError,
    DependencyError,
    ExternalError,
    FencedError,
    HeadraceError,
    InternalError,
    UserError,
)

MEDIA_TYPE: Final = "application/problem+json"

_BY_CODE: Final = {
    "JOB_NOT_FOUND": HTTPStatus.NOT_FOUND,
    "CHECKPOINT_NOT_FOUND": HTTPStatus.NOT_FOUND,
    "SEAM_NOT_FOUND": HTTPStatus.NOT_FOUND,
    "JOB_DELETED": HTTPStatus.GONE,
    "JOB_ACTIVE": HTTPStatus.CONFLICT,
    "JOB_OVER": HTTPStatus.CONFLICT,
    "UID_IN_USE": HTTPStatus.CONFLICT,
    "BACKFILL_OVERLAPS": HTTPStatus.CONFLICT,
    "IDEMPOTENCY_KEY_REUSED": HTTPStatus.CONFLICT,
    "IDEMPOTENCY_KEY_INVALID": HTTPStatus.BAD_REQUEST,
    "BODY_TOO_LARGE": HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    "HOST_REFUSED": HTTPStatus.MISDIRECTED_REQUEST,
}
_BY_KIND: Final[Sequence[tuple[type[HeadraceError], HTTPStatus]]] = (
    (AccessDeniedError, HTTPStatus.FORBIDDEN),
    (DependencyError, HTTPStatus.INTERNAL_SERVER_ERROR),
    (ExternalError, HTTPStatus.SERVICE_UNAVAILABLE),
    (FencedError, HTTPStatus.CONFLICT),
    (InternalError, HTTPStatus.INTERNAL_SERVER_ERROR),
    (HeadraceError, HTTPStatus.UNPROCESSABLE_ENTITY),
)
RETRY_AFTER_S: Final = 5


class Fault(BaseModel):
    """One wrong thing in a request."""

    detail: str = Field(description="What is wrong.")
    pointer: str | None = Field(default=None, description="JSON pointer into the request's body.")
    parameter: str | None = Field(default=None, description="Query parameter or header.")


class Problem(BaseModel):
    """Problem details (RFC 9457), with the members of Headrace's error tree."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:headrace:problem:COLUMN_NOT_FOUND",
                    "title": "Unprocessable Entity",
                    "status": 422,
                    "detail": "steps[0].filter: no column 'dep_dealy'",
                    "instance": "/v1/jobs",
                    "code": "COLUMN_NOT_FOUND",
                    "domain": "user",
                    "retryable": False,
                    "hint": "did you mean 'dep_delay'?",
                    "errors": [
                        {"detail": "steps[0].filter: no column 'dep_dealy'", "pointer": "#/spec/steps/0/filter"}
                    ],
                }
            ]
        }
    )

    type: str = Field(description="urn:headrace:problem:CODE")
    title: str = Field(description="The status in words.")
    status: int = Field(description="The status of the answer.")
    detail: str = Field(description="What is wrong.")
    instance: str = Field(description="The path that was asked for.")
    code: str = Field(description="Stable; see docs/api.md.")
    domain: str = Field(description="Who must act: user, data, external or internal.")
    retryable: bool = Field(description="Whether the same request may succeed later.")
    seen: str | None = Field(default=None, description="What was seen, in the failing library's own words.")
    hint: str | None = Field(default=None, description="What to do about it.")
    context: dict[str, Any] | None = Field(default=None, description="Machine-readable facts; integers as strings.")
    errors: list[Fault] | None = Field(default=None, description="Each wrong thing, where there are several.")


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Let every error of an app become a problem; ``routes`` are the app's, for what a path allows."""
    app.state.routes = routes
    app.add_exception_handler(HeadraceError, _on_headrace)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(Exception, _on_fault)
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        """The framework adds a model to the schema only under its own media type."""
        schema = generate()
        known = schema.setdefault("components", {}).setdefault("schemas", {})
        described = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        known |= described.pop("$defs", {}) | {"Problem": described}
        return schema

    app.openapi = openapi  # type: ignore[method-assign] # the documented way to extend the schema


def respond(path: str, error: HeadraceError, faults: Sequence[Fault] = ()) -> JSONResponse:
    """An error of the tree as an answer."""
    status = _BY_CODE.get(error.code) or next(status for kind, status in _BY_KIND if isinstance(error, kind))
    where = error.context.get("path")
    if where and not faults:
        faults = [Fault(detail=error.message, pointer=pointer(where))]
    context = {key: value for key, value in error.context.items() if key != "path"}
    problem = Problem(
        type=f"urn:headrace:problem:{error.code}",
        title=status.phrase,
        status=status.value,
        detail=error.message,
        instance=path,
        code=error.code,
        domain=error.domain.value,
        retryable=error.retryable,
        seen=error.detail or None,
        hint=error.hint or None,
        context=with_text_integers(context) or None,
        errors=list(faults) or None,
    )
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status is HTTPStatus.SERVICE_UNAVAILABLE else None
    return JSONResponse(problem.model_dump(exclude_none=True), status.value, headers, MEDIA_TYPE)


def pointer(path: Sequence[str | int]) -> str:
    """A path as a JSON pointer in URI fragment form (RFC 6901)."""
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _path(request: Request) -> str:
    return request.url.path


async def _on_headrace(request: Request, error: Exception) -> JSONResponse:
    return respond(_path(request), _known(error))


async def _on_invalid(request: Request, error: Exception) -> JSONResponse:
    details = error.errors() if isinstance(error, RequestValidationError) else []
    faults = [_fault(item["loc"], item["msg"]) for item in details]
    first = faults[0].detail if faults else "request cannot be read"
    problem = UserError(f"request is not valid: {first}", code="REQUEST_INVALID")
    return respond(_path(request), problem, faults)


def _fault(where: Sequence[str | int], message: str) -> Fault:
    place, *path = where
    text = _uncapitalised(message)
    if place == "body":
        return Fault(detail=text, pointer=pointer(path))
    return Fault(detail=text, parameter=".".join(str(part) for part in path))


def _uncapitalised(message: str) -> str:
    """A message as part of a sentence; abbreviations keep their letters."""
    return message if message[1:2].isupper() else message[:1].lower() + message[1:]


async def _on_http(request: Request, error: Exception) -> JSONResponse:
    """Errors that the framework raises itself: unknown paths, wrong methods."""
    status = HTTPStatus(error.status_code) if isinstance(error, HTTPException) else HTTPStatus.INTERNAL_SERVER_ERROR
    told = str(error.detail) if isinstance(error, HTTPException) else status.phrase
    detail = told.lower() if told == status.phrase else _uncapitalised(told)
    code = f"HTTP_{status.name}"
    problem = Problem(
        type=f"urn:headrace:problem:{code}",
        title=status.phrase,
        status=status.value,
        detail=detail,
        instance=_path(request),
        code=code,
        domain="user" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "internal",
        retryable=False,
    )
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods(request))
    return JSONResponse(problem.model_dump(exclude_none=True), status.value, headers, MEDIA_TYPE)


def _methods(request: Request) -> list[str]:
    """What may be asked of a path: the framework names the methods of its first route only."""
    routes = [route for route in request.app.state.routes if route.matches(request.scope)[0] is not Match.NONE]
    found = {method for route in routes for method in getattr(route, "methods", None) or ()}
    return sorted(found | ({"HEAD"} if "GET" in found else set()))


async def _on_fault(request: Request, _error: Exception) -> JSONResponse:
    """A fault of ours: the traceback goes to the log, not to the client."""
    return respond(_path(request), InternalError("service failed", hint="see the service's log"))


def _known(error: Exception) -> HeadraceError:
    return error if isinstance(error, HeadraceError) else InternalError("service failed")
