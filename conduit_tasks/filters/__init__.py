"""Trigger filters: which records a destination wants (SEMANTICS T3), in the CloudEvents subscriptions dialects."""

from conduit_tasks.filters.dialects import compile_filters
from conduit_tasks.filters.matcher import Matcher

__all__ = ["Matcher", "compile_filters"]
