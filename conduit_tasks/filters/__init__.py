"""Trigger filters: selection of the records for a destination (SEMANTICS T3), in the CloudEvents subscriptions
dialects."""

from conduit_tasks.filters.dialects import compile_filters
from conduit_tasks.filters.matcher import Matcher

__all__ = ["Matcher", "compile_filters"]
