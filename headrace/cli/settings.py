"""What all commands share: where the configuration and the state are, and how to talk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.jobs.config import Config


@dataclass(frozen=True, slots=True)
class Settings:
    """The common options of one command."""

    config: Path | None = None
    state: Path | None = None
    debug: bool = False
    json_logs: bool = False

    def load(self) -> Config:
        """Read the configuration.

        Raises:
            ConfigError: It is wrong.
        """
        from headrace.jobs.config import load_config

        return load_config(self.config, state_path=self.state)
