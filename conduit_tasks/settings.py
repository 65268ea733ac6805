"""Where things are: one object, read from `CONDUIT_*` environment variables."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Settings of one installation, from `CONDUIT_<NAME>` environment variables.

    Durations are seconds. Relative paths are taken from `home`.
    """

    model_config = SettingsConfigDict(env_prefix="CONDUIT_")

    home: Path = Field(default_factory=Path.cwd)
    """The folder that holds `include/`, `dags/` and (embedded stack) `.conduit/`."""
    pipelines: str = "include/pipelines"
    """Folder of the pipeline files."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    """`redis://`, `rediss://`, `unix://`; `redis+sentinel://…/service`, `redis+cluster://…`."""
    redis_durability: str = "check"
    """`check` asks the server (T1); `declared` trusts the user where CONFIG is refused; `unsafe` opts out by name."""
    spool: str = ".conduit/spool"
    """Folder or URL (`file://`, `s3://`, …) of the spool."""
    dead_letters: str = ".conduit/dead-letters"
    """Folder or URL of the project's own dead-letter store."""
    lease_ttl: float = 15.0
    """How long a lease lives without renewal."""
    lease_grace: float = 1.0
    """What a successor waits past expiry."""
    retention: float = 86_400.0
    """Default of `spool.retention`."""

    def path(self, value: str) -> str:
        """`value` as an absolute path below `home`; URLs are returned unchanged."""
        if "://" in value:
            return value
        return str((self.home / value).resolve())


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process (read once; tests call `settings.cache_clear()`)."""
    return Settings()
