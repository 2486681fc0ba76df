"""Object-store settings for Polars' own readers, derived from what catalogs and headrace.toml say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_FROM_ICEBERG: Final = {
    "s3.endpoint": "aws_endpoint_url",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
    "s3.region": "aws_region",
    "client.access-key-id": "aws_access_key_id",
    "client.secret-access-key": "aws_secret_access_key",
    "client.session-token": "aws_session_token",
    "client.region": "aws_region",
    "s3.force-virtual-addressing": "aws_virtual_hosted_style_request",
}
_FROM_BOTO3: Final = {
    "endpoint_url": "aws_endpoint_url",
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
    "region_name": "aws_region",
}


def from_iceberg(properties: Mapping[str, Any]) -> dict[str, str]:
    """Polars ``storage_options`` from the properties of a pyiceberg ``FileIO`` (``s3.*`` before ``client.*``)."""
    return _translate(properties, _FROM_ICEBERG)


def from_boto3(options: Mapping[str, Any]) -> dict[str, str]:
    """Polars ``storage_options`` from boto3 client options (``[object_stores.s3]`` in headrace.toml)."""
    return _translate(options, _FROM_BOTO3)


def _translate(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for theirs, ours in names.items():
        if options.get(theirs) is not None:
            out.setdefault(ours, str(options[theirs]))
    if out.get("aws_endpoint_url", "").startswith("http://"):
        out["aws_allow_http"] = "true"
    return out
