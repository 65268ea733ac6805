"""Fixtures that other folders have, too."""

from tests.s3 import bucket, s3_server  # noqa: F401
