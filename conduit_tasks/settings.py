"""Settings of the installation: one object, read from `CONDUIT_*` environment variables; if they name no Redis, it is
that of the embedded stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit

from pydantic import AliasChoices, Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from conduit_tasks.errors import ConfigError
from conduit_tasks.private import check_file, check_socket

STORES = ("file", "s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
"""Schemes of addresses at which a spool or dead letters can be (`pyarrow.fs.FileSystem.from_uri`)."""
STORE_HINT = (
    f"write a folder, or an address that begins with {', '.join(f'{each}://' for each in STORES)} or fsspec+…://"
)
"""Advice on an address at which something is to be stored."""


def nothing_stored(path: str) -> str:
    """Says that nothing can be stored at this address; "" if it is a folder, or the address of a store."""
    scheme, separator, _ = path.partition("://")
    if not separator or scheme in STORES or scheme.startswith("fsspec+"):
        return ""
    return f"nothing is stored at {scheme[:40]}://"


class Settings(BaseSettings):
    """Settings of one installation, from `CONDUIT_<NAME>` environment variables. Raises ConfigError.

    Durations are seconds. Relative paths are taken from `home`.
    """

    model_config = SettingsConfigDict(env_prefix="CONDUIT_", populate_by_name=True)

    home: Path = Field(default_factory=Path.cwd)
    """The folder that holds `include/`, `dags/` and (embedded stack) `.conduit/`."""
    pipelines: str = "include/pipelines"
    """Folder of the pipeline files."""
    redis_url: str = "redis://127.0.0.1:6379/0"
    """`redis://`, `rediss://`, `unix://`; `redis+sentinel://…/service`, `redis+cluster://…`. If it is not given and
    the embedded stack was started in `home`, that stack's."""
    redis_durability: str = "check"
    """`check` asks the server (T1); `declared` trusts the user if CONFIG is refused; `unsafe` opts out by name."""
    redis_share: float = Field(default=0.85, gt=0, le=1)
    """Share of Redis' `maxmemory` from which on nothing new is read: work in flight needs the rest to finish."""
    spool: str = ".conduit/spool"
    """Folder or URL (`file://`, `s3://`, …) of the spool."""
    dead_letters: str = ".conduit/dead-letters"
    """Folder or URL of the project's own dead-letter store."""
    connectors: Path = Field(
        default=Path("connectors"), validation_alias=AliasChoices("CONDUIT_CONNECTORS", "CONDUIT_CONNECTORS_PATH")
    )
    """Folder of the programs of standalone connectors; Conduit's `CONDUIT_CONNECTORS_PATH` is the same."""
    connectors_message: int = Field(default=64 << 20, ge=1 << 10)
    """Bytes of one message from or to a standalone connector."""
    connectors_timeout: float = Field(default=60.0, gt=0)
    """Seconds in which a standalone connector answers a call: to open, to stop."""
    lease_ttl: float = 15.0
    """Seconds that a lease lives without renewal."""
    lease_grace: float = 1.0
    """Seconds that a successor waits after a lease expired."""
    retention: float = 86_400.0
    """Default of `spool.retention`."""
    ledger_retention: float = 30 * 86_400.0
    """Seconds that the delivery ledger is kept."""
    batch_bytes: int = Field(default=64 << 20, ge=1)
    """Bytes of records that are held, passed to a destination or written as a row group at once. A single record may be
    larger, up to 64 MiB."""
    small_records: int = Field(default=20_000, ge=0)
    """Records up to which a micro-batch is small: a child process of the node's application works on it, without Spark.
    0: all work is done in Spark, as it is by default where Spark runs on other machines."""
    small_bytes: int = Field(default=4 << 20, ge=0)
    """Bytes, as stored at the source or in the spool, up to which it is small; 0 as above."""
    log: Literal["json", "text"] = "text"
    """Format of log records: an object per line, or lines for people."""

    @model_validator(mode="after")
    def _embedded_redis(self) -> Settings:
        if "redis_url" not in self.model_fields_set:
            found = self.redis_of_stack()
            if found.startswith("unix://"):
                check_socket(Path(unquote(urlsplit(found).path)))
            self.redis_url = found or self.redis_url
        return self

    @model_validator(mode="after")
    def _stores(self) -> Settings:
        for name in ("spool", "dead_letters"):
            if wrong := nothing_stored(getattr(self, name)):
                raise ConfigError(f"CONDUIT_{name.upper()}: {wrong}; {STORE_HINT}")
        return self

    def redis_of_stack(self) -> str:
        """Returns the Redis of the embedded stack that was started in `home`; "" if there was none. Raises ConfigError
        if somebody else may have written that."""
        stack = self.home / ".conduit" / "stack.json"
        if not stack.exists():
            return ""
        check_file(stack)
        return str(json.loads(stack.read_text()).get("redis_url") or "")

    def path(self, value: str) -> str:
        """Returns `value` as an absolute path below `home`; URLs are returned unchanged."""
        if "://" in value:
            return value
        return str((self.home / value).resolve())

    def use(self) -> None:
        """Makes these the settings of this process: an executor works with its driver's."""
        global _current  # noqa: PLW0603 - one process, one installation
        _current = self


_current: Settings | None = None


def settings() -> Settings:
    """Returns the settings of this process, read from the environment once (`forget` makes them be read again)."""
    global _current  # noqa: PLW0603 - see Settings.use
    if _current is None:
        _current = Settings()
    return _current


def forget() -> None:
    """Drops the cached settings: the next call of `settings` reads the environment again."""
    global _current  # noqa: PLW0603 - see Settings.use
    _current = None


settings.cache_clear = forget  # type: ignore[attr-defined]
