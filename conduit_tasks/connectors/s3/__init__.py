"""Amazon S3 and servers that speak its protocol."""
