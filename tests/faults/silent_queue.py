"""`Messages` as a module of its own, as the registry wants it."""

from tests.faults.silent import Messages

SOURCE = Messages
