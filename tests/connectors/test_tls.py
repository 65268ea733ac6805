"""Connectors to servers behind TLS: whose certificate is not trusted, or is another host's, is not talked to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conduit_tasks.connectors import aws
from conduit_tasks.connectors.base import Limit
from conduit_tasks.connectors.redis.connector import RedisDestination, RedisSource
from conduit_tasks.connectors.s3.connector import S3Destination
from conduit_tasks.connectors.sqs.connector import SqsSource
from conduit_tasks.errors import SourceError, Unavailable
from tests.connectors.moto_server import MotoServer
from tests.connectors.test_delta import rows
from tests.connectors.tls import Authority, Door
from tests.redis_server import RedisServer

pytestmark = pytest.mark.xdist_group("moto")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture
def secure_redis(authority: Authority, redis_server: RedisServer) -> Iterator[Door]:
    door = Door(authority.context("127.0.0.1"), redis_server.url.removeprefix("unix://"))
    yield door
    door.close()


@pytest.fixture
def secure_moto(authority: Authority, moto: MotoServer) -> Iterator[Door]:
    door = Door(authority.context("127.0.0.1"), ("127.0.0.1", moto.port))
    yield door
    door.close()


def test_redis_is_talked_to_where_its_certificate_is_trusted_and_its_own(
    authority: Authority, secure_redis: Door, redis_server: RedisServer
) -> None:
    url = f"rediss://127.0.0.1:{secure_redis.port}/0"
    trusted = f"{url}?ssl_ca_certs={authority.ca}"
    out = RedisDestination({"url": trusted, "stream": "s", "fields": "payload"})
    out.open(None)
    out.write(rows({"n": 1}))
    out.close()
    source = RedisSource({"url": trusted, "streams": "s", "group": "g"})
    assert len(source.plan({}, Limit())) == 1
    source.close()
    # A certificate nobody vouches for, and one of another host
    other = Door(authority.context("127.0.0.2"), redis_server.url.removeprefix("unix://"))
    try:
        for refused in (url, f"rediss://127.0.0.1:{other.port}/0?ssl_ca_certs={authority.ca}"):
            out = RedisDestination({"url": refused, "stream": "s"})
            with pytest.raises(Unavailable, match="certificate"):
                out.open(None)
            out.close()
    finally:
        other.close()


def test_s3_and_sqs_are_talked_to_where_their_certificate_is_trusted(
    authority: Authority, secure_moto: Door, moto: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aws, "RETRIES", 1)
    settings = {**moto.settings, "endpoint-url": f"https://127.0.0.1:{secure_moto.port}"}
    plain = moto.client("s3")
    plain.create_bucket(Bucket="behind-tls", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"})
    queues = moto.client("sqs")
    queue = queues.create_queue(QueueName="behind-tls")["QueueUrl"]
    queues.send_message(QueueUrl=queue, MessageBody="x")
    out = S3Destination({"bucket": "behind-tls", **settings})
    source = SqsSource({"queue": "behind-tls", **settings})
    try:
        # Given an authority that nobody trusts
        out.open(None)
        with pytest.raises(Unavailable, match="certificate"):
            out.write(rows({"n": 1}))
        with pytest.raises(SourceError, match="certificate"):
            source.plan({}, Limit())
        # When it is named as the libraries of Amazon want it
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.ca))
        source.close()
        out.open(None)
        out.write(rows({"n": 1}))
        # Then both are reached
        assert len(plain.list_objects_v2(Bucket="behind-tls")["Contents"]) == 1
        assert len(source.plan({}, Limit())) == 1
    finally:
        out.close()
        source.close()
        for each in plain.list_objects_v2(Bucket="behind-tls").get("Contents", ()):
            plain.delete_object(Bucket="behind-tls", Key=each["Key"])
        plain.delete_bucket(Bucket="behind-tls")
        plain.close()
        queues.close()
