"""The dev stack: a Kafka broker, an S3 store with an Iceberg REST catalog, and PostgreSQL where the machine has it."""

from infra.dev.endpoints import S3, Endpoints, IcebergRest
from infra.dev.settings import catalogs, render_settings
from infra.dev.stack import (
    SERVICE_NAMES,
    STATE_VARIABLE,
    ServiceStatus,
    State,
    default_folder,
    down,
    locate,
    logs,
    start_service,
    status,
    stop_service,
    up,
)

__all__ = [
    "S3",
    "SERVICE_NAMES",
    "STATE_VARIABLE",
    "Endpoints",
    "IcebergRest",
    "ServiceStatus",
    "State",
    "catalogs",
    "default_folder",
    "down",
    "locate",
    "logs",
    "render_settings",
    "start_service",
    "status",
    "stop_service",
    "up",
]
