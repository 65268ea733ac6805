"""Micro-batch storage: parts are written aside and renamed, described by manifests, read, and collected."""
