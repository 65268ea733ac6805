"""TLS contexts, which are read once for all requests with the same options and files."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from conduit_tasks.connectors.http.peer import tls_context
from conduit_tasks.errors import ConfigError
from tests.connectors.tls import Authority


def test_it_is_the_same_one_until_an_option_or_a_file_changes(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given the system's certificates, and those of an authority of ours
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    authority.context("127.0.0.1")
    ca, cert, key = authority.ca, tmp_path / "127.0.0.1.pem", tmp_path / "127.0.0.1.key"
    systems = {"tls.verify": "true"}
    ours = {**systems, "tls.ca-file": str(ca), "tls.cert-file": str(cert), "tls.key-file": str(key)}
    # Then each has a context, which stays
    assert tls_context(systems) is tls_context({**systems})
    first = tls_context(ours)
    assert first is tls_context(ours)
    assert first is not tls_context(systems)
    assert [len(each.get_ca_certs()) for each in (first, tls_context({**systems, "tls.ca-file": str(ca)}))] == [1, 1]
    # And one that checks nothing is another one
    blind = tls_context({**ours, "tls.verify": "false"})
    assert (first.verify_mode, blind.verify_mode) == (ssl.CERT_REQUIRED, ssl.CERT_NONE)
    # When a file is replaced, or the system's are elsewhere, then they are read again
    ca.write_text(ca.read_text() + other.ca.read_text())
    assert len(tls_context(ours).get_ca_certs()) == 2
    before = tls_context(systems)
    monkeypatch.setenv("SSL_CERT_FILE", str(ca))
    assert tls_context(systems) is not before
    assert tls_context(systems) is tls_context(systems)
    # When one is gone, the error says what to look at
    key.unlink()
    with pytest.raises(ConfigError, match=r"tls\.key-file cannot be read"):
        tls_context(ours)
