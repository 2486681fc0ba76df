"""Where the services of a stack answer, and how a user names services of their own."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from headrace.kernel.errors import ConfigError

KAFKA_BOOTSTRAP: Final = "HEADRACE_KAFKA_BOOTSTRAP"
S3_ENDPOINT: Final = "HEADRACE_S3_ENDPOINT"
S3_ACCESS_KEY: Final = "HEADRACE_S3_ACCESS_KEY"
S3_SECRET_KEY: Final = "HEADRACE_S3_SECRET_KEY"  # noqa: S105 - the name of a variable
S3_REGION: Final = "HEADRACE_S3_REGION"
S3_BUCKET: Final = "HEADRACE_S3_BUCKET"
ICEBERG_URI: Final = "HEADRACE_ICEBERG_REST_URI"
ICEBERG_WAREHOUSE: Final = "HEADRACE_ICEBERG_REST_WAREHOUSE"
ICEBERG_CREDENTIAL: Final = "HEADRACE_ICEBERG_REST_CREDENTIAL"
POSTGRES_URI: Final = "HEADRACE_POSTGRES_URI"

DEFAULT_REGION: Final = "us-east-1"
DEFAULT_BUCKET: Final = "lake"


@dataclass(frozen=True, slots=True)
class S3:
    """An S3 store with one bucket of ours."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    region: str = DEFAULT_REGION
    bucket: str = DEFAULT_BUCKET


@dataclass(frozen=True, slots=True)
class IcebergRest:
    """An Iceberg REST catalog; ``credential`` is its OAuth2 ``client:secret``, empty for none."""

    uri: str
    warehouse: str
    credential: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where to reach each service; None for one that there is not."""

    kafka_bootstrap: str | None = None
    s3: S3 | None = None
    iceberg: IcebergRest | None = None
    postgres_uri: str | None = field(default=None, repr=False)

    def merged(self, other: Endpoints) -> Endpoints:
        """These endpoints, completed by those of ``other``."""
        return Endpoints(
            kafka_bootstrap=self.kafka_bootstrap or other.kafka_bootstrap,
            s3=self.s3 or other.s3,
            iceberg=self.iceberg or other.iceberg,
            postgres_uri=self.postgres_uri or other.postgres_uri,
        )

    def environment(self) -> dict[str, str]:
        """The environment variables that name these services, for a child process."""
        found: dict[str, str] = {}
        if self.kafka_bootstrap:
            found[KAFKA_BOOTSTRAP] = self.kafka_bootstrap
        if self.s3:
            found |= {
                S3_ENDPOINT: self.s3.endpoint,
                S3_ACCESS_KEY: self.s3.access_key,
                S3_SECRET_KEY: self.s3.secret_key,
                S3_REGION: self.s3.region,
                S3_BUCKET: self.s3.bucket,
            }
        if self.iceberg:
            found |= {ICEBERG_URI: self.iceberg.uri, ICEBERG_WAREHOUSE: self.iceberg.warehouse}
            if self.iceberg.credential:
                found[ICEBERG_CREDENTIAL] = self.iceberg.credential
        if self.postgres_uri:
            found[POSTGRES_URI] = self.postgres_uri
        return found


def from_environment() -> Endpoints:
    """The services that the user runs and names by environment variables.

    Raises:
        ConfigError: A service is named by half: an endpoint without its keys, a catalog without its warehouse.
    """
    s3 = iceberg = None
    if endpoint := os.environ.get(S3_ENDPOINT):
        s3 = S3(
            endpoint=endpoint,
            access_key=_needed(S3_ACCESS_KEY, S3_ENDPOINT),
            secret_key=_needed(S3_SECRET_KEY, S3_ENDPOINT),
            region=os.environ.get(S3_REGION) or DEFAULT_REGION,
            bucket=os.environ.get(S3_BUCKET) or DEFAULT_BUCKET,
        )
    if uri := os.environ.get(ICEBERG_URI):
        iceberg = IcebergRest(
            uri, _needed(ICEBERG_WAREHOUSE, ICEBERG_URI), credential=os.environ.get(ICEBERG_CREDENTIAL, "")
        )
    return Endpoints(
        kafka_bootstrap=os.environ.get(KAFKA_BOOTSTRAP) or None,
        s3=s3,
        iceberg=iceberg,
        postgres_uri=os.environ.get(POSTGRES_URI) or None,
    )


def _needed(variable: str, because: str) -> str:
    value = os.environ.get(variable, "")
    if not value:
        raise ConfigError(
            f"{variable} is not set", detail=f"{because} is, and needs it", hint=f"set {variable}, or unset {because}"
        )
    return value
