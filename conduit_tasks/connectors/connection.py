"""Settings that an Airflow connection gives a connector, by the connection's type; what the pipeline file sets wins
(docs/connections.md).

A connector says in its specification which connections it takes (`Spec(…, connection=POSTGRES)`). What the pipeline
file itself sets wins over what the connection gives.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

from conduit_tasks.connections import SETTING, Connection, lookup
from conduit_tasks.errors import ConfigError

if TYPE_CHECKING:
    from conduit_tasks.connectors.base import Spec

T = TypeVar("T")


@dataclass(frozen=True)
class Takes:
    """Connections that a connector takes. `give`: function that returns the settings of one; it also gets those of the
    file. `sample`: such a connection, by which settings are checked where Airflow cannot be asked."""

    types: tuple[str, ...]
    give: Callable[[Connection, Mapping[str, str]], dict[str, str]]
    sample: Connection
    gives: str
    """Words for the parts of a connection that are used."""

    def settings(self, connection: Connection, written: Mapping[str, str]) -> dict[str, str]:
        """Returns the settings of a connection, and those of the file. Raises ConfigError if it is of another type."""
        # Airflow makes it generic where the provider of its type is not installed.
        if connection.type not in (*self.types, "generic"):
            raise ConfigError(
                f"option 'connection': the Airflow connection '{connection.id}' is of type '{connection.type}'; it "
                f"must be {' or '.join(self.types)}"
            )
        rest = {name: value for name, value in written.items() if name != SETTING}
        return {**self.give(connection, rest), **rest}


def named(spec: Spec, settings: Mapping[str, str]) -> str:
    """Returns the name of the connection that these settings name; "" if they name none, or the connector takes
    none."""
    return settings.get(SETTING, "").strip() if spec.connection is not None else ""


def resolved(spec: Spec, settings: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the settings with what their connection gives. They hold secrets then: they are for the connector alone.
    Raises ConfigError, ConnectionMissing."""
    name = named(spec, settings)
    if not name or spec.connection is None:
        return settings
    try:
        return spec.connection.settings(lookup(name), settings)
    except ConfigError as error:
        raise ConfigError(f"{spec.name}: {error}") from None


def made(cls: Callable[[Mapping[str, str]], T], settings: Mapping[str, str]) -> T:
    """Makes a connector from the settings of the file. Raises as `resolved` and as its constructor."""
    spec: Spec = cls.spec  # type: ignore[attr-defined]  # of every connector's class
    return cls(resolved(spec, settings))


def sampled(spec: Spec, settings: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the settings as they would be with some connection of the right type."""
    if not named(spec, settings) or spec.connection is None:
        return settings
    return spec.connection.settings(spec.connection.sample, settings)


def _host(connection: Connection, default: str = "localhost") -> str:
    host = connection.host or default
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{shown}:{connection.port}" if connection.port else shown


def _login(connection: Connection) -> str:
    if not (connection.login or connection.password):
        return ""
    password = f":{quote(connection.password, safe='')}" if connection.password else ""
    return f"{quote(connection.login, safe='')}{password}@"


def _text(value: Any) -> str:
    """Returns a value of `extra` as a setting."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


LIBPQ = (
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl", "sslnegotiation", "gssencmode", "krbsrvname"),
    *("options", "target_session_attrs", "channel_binding", "require_auth"),
)
"""Fields of `extra` that PostgreSQL's own library reads from a URL."""
SCHEMES = {
    **{"postgres": "postgresql", "postgresql": "postgresql", "sqlite": "sqlite"},
    **{"mysql": "mysql", "mssql": "mssql", "oracle": "oracle"},
}
"""Type of connection → SQLAlchemy's name of the database."""


def database_url(connection: Connection, _: Mapping[str, str]) -> dict[str, str]:
    """Returns `url`. Raises ConfigError if the connection signs in by a token that would have to be asked for."""
    extra = connection.extra
    if str(extra.get("iam", "false")).lower() == "true":
        raise ConfigError(
            f"option 'connection': the Airflow connection '{connection.id}' signs in by AWS (iam: true), which is not "
            "supported; give it a password"
        )
    scheme = str(extra.get("sqlalchemy_scheme") or SCHEMES.get(connection.type, "postgresql"))
    if connection.type == "sqlite":
        return {"url": f"{scheme}:///{connection.host or connection.schema}"}
    query = {name: _text(extra[name]) for name in LIBPQ if name in extra} if scheme.startswith("postgres") else {}
    if scheme.startswith(("mysql", "mariadb")):
        query = _pymysql(extra)
    tail = f"?{urlencode(query, quote_via=quote)}" if query else ""
    return {"url": f"{scheme}://{_login(connection)}{_host(connection)}/{quote(connection.schema, safe='')}{tail}"}


def _pymysql(extra: Mapping[str, Any]) -> dict[str, str]:
    """Returns what `extra` of a MySQL connection says about TLS and the socket, by PyMySQL's names."""
    tls = extra.get("ssl") or {}
    tls = json.loads(tls) if isinstance(tls, str) else tls
    named = {"ca": "ssl_ca", "cert": "ssl_cert", "key": "ssl_key"}
    found = {ours: _text(tls[name]) for name, ours in named.items() if name in tls}
    return found | ({"unix_socket": _text(extra["unix_socket"])} if extra.get("unix_socket") else {})


def redis_url(connection: Connection, _: Mapping[str, str]) -> dict[str, str]:
    """Returns `url`."""
    extra = connection.extra
    scheme = "rediss" if str(extra.get("ssl", "false")).lower() == "true" else "redis"
    names = ("ssl_cert_reqs", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
    query = {name: _text(extra[name]) for name in names if extra.get(name)} if scheme == "rediss" else {}
    database = extra.get("db") or connection.schema or 0
    tail = f"?{urlencode(query, quote_via=quote)}" if query else ""
    return {"url": f"{scheme}://{_login(connection)}{_host(connection)}/{database}{tail}"}


HTTP_CLIENT = frozenset(
    {"proxies", "timeout", "allow_redirects", "verify", "cert", "stream", "trust_env", "max_redirects"}
    | {"check_response", "auth_type", "auth_kwargs", "headers", "tcp_keep_alive", "retry_args"}
)
"""Fields of `extra` that say how Airflow's own client works; every other one is a header."""


def http(connection: Connection, written: Mapping[str, str]) -> dict[str, str]:
    """Returns `url` (a path in the file is one below the connection's address), headers, and the login: a password
    alone is a bearer token."""
    host = connection.host
    if "://" not in host:
        host = f"{connection.schema or 'http'}://{host}"
    scheme, _, rest = host.partition("://")
    place, slash, path = rest.partition("/")
    if connection.port:
        place = f"{place}:{connection.port}"
    base = f"{scheme}://{place}{slash}{path}"
    out = {"url": base}
    headers = {name: value for name, value in connection.extra.items() if name not in HTTP_CLIENT}
    headers |= connection.extra.get("headers") or {}
    out |= {f"headers.{name}": _text(value) for name, value in headers.items()}
    signs = any(name.startswith("auth.") for name in written)
    if connection.login and not signs:
        out |= {"auth.basic.username": connection.login, "auth.basic.password": connection.password}
    elif connection.password and not signs:
        out["auth.bearer"] = connection.password
    return out


class _Http(Takes):
    """As `Takes`; a `url` of the file that is only a path is joined with the connection's."""

    def settings(self, connection: Connection, written: Mapping[str, str]) -> dict[str, str]:
        found = super().settings(connection, written)
        path = written.get("url", "")
        if path and "://" not in path:
            base = http(connection, written)["url"]
            found["url"] = f"{base.rstrip('/')}/{path.lstrip('/')}" if not path.startswith("?") else base + path
        return found


def kafka(connection: Connection, _: Mapping[str, str]) -> dict[str, str]:
    """Returns `servers`, and librdkafka's own options for the rest of `extra`; those that the connector decides, such
    as `group.id`, are left out."""
    from conduit_tasks.connectors.kafka.options import OURS, PASSED_ON, canonical

    out: dict[str, str] = {}
    if connection.host:
        out["servers"] = ",".join(
            part if ":" in part or not connection.port else f"{part}:{connection.port}"
            for part in connection.host.split(",")
        )
    if connection.login:
        out |= {f"{PASSED_ON}sasl.username": connection.login, f"{PASSED_ON}sasl.password": connection.password}
    for name, value in connection.extra.items():
        option = canonical(name)
        if option == "bootstrap.servers":
            out["servers"] = _text(value)
        elif option not in OURS and not option.endswith("_cb"):
            out[PASSED_ON + option] = _text(value)
    return out


def aws(connection: Connection, _: Mapping[str, str]) -> dict[str, str]:
    """Returns the credentials, region and endpoint. Raises ConfigError for a role to assume."""
    extra = connection.extra
    if extra.get("role_arn"):
        raise ConfigError(
            f"option 'connection': the Airflow connection '{connection.id}' has a role to assume (role_arn), which is "
            "not supported; name a profile that assumes it (profile_name)"
        )
    found = {
        "access-key-id": connection.login or extra.get("aws_access_key_id"),
        "secret-access-key": connection.password or extra.get("aws_secret_access_key"),
        "session-token": extra.get("aws_session_token"),
        "region": extra.get("region_name"),
        "endpoint-url": extra.get("endpoint_url") or extra.get("host"),
        "profile": extra.get("profile_name"),
    }
    return {name: str(value) for name, value in found.items() if value}


def store(connection: Connection, _: Mapping[str, str]) -> dict[str, str]:
    """Returns the options of the object store of a table (`storage.*`): Amazon's, Azure's or Google's."""
    extra = connection.extra
    if connection.type == "aws":
        names = {
            "access-key-id": "AWS_ACCESS_KEY_ID",
            "secret-access-key": "AWS_SECRET_ACCESS_KEY",
            "session-token": "AWS_SESSION_TOKEN",
            "region": "AWS_REGION",
            "endpoint-url": "AWS_ENDPOINT_URL",
        }
        found: dict[str, Any] = {names[n]: v for n, v in aws(connection, {}).items() if n in names}
    elif connection.type == "google_cloud_platform":
        keys = extra.get("keyfile_dict")
        found = {"GOOGLE_SERVICE_ACCOUNT_KEY": keys and _text(keys), "GOOGLE_SERVICE_ACCOUNT": extra.get("key_path")}
    else:
        found = {
            "AZURE_STORAGE_ACCOUNT_NAME": extra.get("account_name") or connection.login,
            "AZURE_STORAGE_ACCOUNT_KEY": extra.get("account_key") or connection.password,
            "AZURE_STORAGE_SAS_TOKEN": extra.get("sas_token"),
        }
    return {f"storage.{name}": str(value) for name, value in found.items() if value}


def iceberg(connection: Connection, _: Mapping[str, str]) -> dict[str, str]:
    """Returns the properties of a catalog, as Airflow's own hook has them: the address of a REST catalog, the client
    and its secret, and further properties in `extra`."""
    found = {name: _text(value) for name, value in connection.extra.items() if value is not None}
    if connection.host:
        found["uri"] = connection.host
    if connection.login or connection.password:
        found["credential"] = f"{connection.login}:{connection.password}" if connection.login else connection.password
    return {f"catalog.{name}": value for name, value in found.items()}


_DATABASE = Connection("sample", "postgres", "localhost", "user", "password", schema="database")
POSTGRES = Takes(("postgres", "postgresql"), database_url, _DATABASE, "`url`")
MYSQL = Takes(
    ("mysql",), database_url, Connection("sample", "mysql", "localhost", "user", "password", schema="database"), "`url`"
)
SQL = Takes(tuple(SCHEMES), database_url, _DATABASE, "`url`")
REDIS = Takes(("redis",), redis_url, Connection("sample", "redis", "localhost"), "`url`")
HTTP = _Http(
    ("http", "https"),
    http,
    Connection("sample", "http", "localhost"),
    "`url` (the file's may be a path below it), `auth.*`, `headers.*`",
)
KAFKA = Takes(
    ("kafka",),
    kafka,
    Connection("sample", "kafka", "localhost:9092"),
    "`servers`, `librdkafka.*`",
)
AWS = Takes(
    ("aws", "s3", "sqs"),
    aws,
    Connection("sample", "aws", "", "key", "secret", extra={"region_name": "eu-central-1"}),
    "`access-key-id`, `secret-access-key`, `session-token`, `region`, `endpoint-url`, `profile`",
)
STORE = Takes(("aws", "google_cloud_platform", "wasb", "adls"), store, Connection("sample", "aws"), "`storage.*`")
ICEBERG = Takes(
    ("iceberg",),
    iceberg,
    Connection("sample", "iceberg", "http://localhost:8181", "client", "secret"),
    "`catalog.*`",
)
