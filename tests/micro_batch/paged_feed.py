"""`PagedFeed` as a module of its own, as the registry wants it."""

from tests.micro_batch.folder_queue import PagedFeed

SOURCE = PagedFeed
