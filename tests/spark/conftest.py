"""An S3 API of these tests' own."""

from tests.s3 import bucket, s3_server  # noqa: F401
