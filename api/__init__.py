"""The HTTP service: routes over headrace.jobs. No logic of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.kernel.errors import DependencyError

if TYPE_CHECKING:
    from api.app import Settings, create_app
    from api.server import serve

__all__ = ["Settings", "create_app", "serve"]


def __getattr__(name: str) -> Any:
    """Loads the service's libraries when it is asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'api' has no attribute {name!r}")
    try:
        from api import app, server
    except ModuleNotFoundError as error:
        if error.name not in {"fastapi", "uvicorn", "sqlalchemy", "starlette"}:
            raise
        raise DependencyError(
            "the service is not installed", detail=str(error), hint="pip install 'headrace[server]'"
        ) from error
    return getattr(server if name == "serve" else app, name)
