"""The module of the plugin `binder` (see `shelf`)."""

from tests.delivery.shelf import Binder

DESTINATION = Binder
