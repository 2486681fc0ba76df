"""The application: settings in, FastAPI out. Resources are opened when it starts, not when it is built."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from fastapi import FastAPI

from api.guard import LOOPBACK_HOSTS, Guard
from api.problems import install
from api.routes import router
from headrace.jobs.config import Config
from headrace.jobs.launcher import DEFAULT_WORKER, Launcher
from headrace.jobs.service import JobService, Planner
from headrace.jobs.store import JobStore
from headrace.jobs.supervisor import Policy, Supervisor


def _compiling(config: Config) -> Planner:
    from headrace.jobs.checking import CompilingPlanner

    return CompilingPlanner(config)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a service is made of.

    Attributes:
        config: Connections and folders, for checks, plans and workers.
        store_url: The job store; None: SQLite in the state folder.
        remote: Serve requests to any host name; else only to loopback names.
        policy: Timeouts and restarts of workers.
        worker: The worker's program.
        planner: Makes what checks and plans jobs.
    """

    config: Config
    store_url: str | None = None
    remote: bool = False
    policy: Policy = field(default_factory=Policy)
    worker: Sequence[str] = DEFAULT_WORKER
    planner: Callable[[Config], Planner] = _compiling

    @property
    def store(self) -> str:
        """The job store's URL."""
        return self.store_url or f"sqlite:///{self.config.state_path / 'service' / 'jobs.db'}"

    @property
    def logs(self) -> Path:
        """Where workers write their logs."""
        return self.config.state_path / "service" / "logs"


def create_app(settings: Settings) -> FastAPI:
    """The service as an ASGI application. Stopping it leaves the workers running; the next one adopts them."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        store = JobStore.connect(settings.store)
        launcher = Launcher(
            settings.store, settings.logs, settings.config.file, settings.config.state_path, settings.worker
        )
        supervisor = Supervisor(store, launcher, settings.policy)
        app.state.supervisor = supervisor
        app.state.service = JobService(store, settings.planner(settings.config), supervisor.wake)
        supervisor.start()
        try:
            yield
        finally:
            supervisor.close()
            store.database.close()

    app = FastAPI(
        title="Headrace",
        summary="Jobs and backfills over lakehouse tables and Kafka topics.",
        version=version("headrace"),
        lifespan=lifespan,
        # Their pages load scripts from a CDN.
        docs_url=None,
        redoc_url=None,
    )
    install(app, router.routes)
    app.include_router(router)
    app.add_middleware(Guard, hosts=None if settings.remote else LOOPBACK_HOSTS)
    return app
