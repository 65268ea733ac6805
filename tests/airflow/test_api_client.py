"""The client of Airflow's REST API: which certificates it reads."""

from __future__ import annotations

import ssl

import pytest

from conduit_tasks.stack.api import Api


@pytest.mark.parametrize(("url", "reads"), [("http://a:1", 0), ("HTTP://a", 0), ("https://a", 1), ("HTTPS://a", 1)])
def test_certificates_are_read_for_https_alone(monkeypatch: pytest.MonkeyPatch, url: str, reads: int) -> None:
    own, made = ssl.create_default_context, []

    def made_for(*arguments: object, **options: object) -> ssl.SSLContext:
        made.append(own(*arguments, **options))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(ssl, "create_default_context", made_for)
    with Api(url, token="t") as api:
        assert api.url == url
    # Then they are for the API itself, and trusted as ever
    assert len([c for c in made if c.verify_mode is ssl.CERT_REQUIRED and c.check_hostname]) >= reads
    assert bool(made) is bool(reads)
