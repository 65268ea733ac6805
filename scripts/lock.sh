#!/usr/bin/env bash
# Writes requirements.txt: every package of pyproject.toml with all its extras, each pinned, with the hashes of all files of
# its release, for Python 3.11 and newer on every system. Pins stay where they still fit; `lock.sh --upgrade` or
# `lock.sh --upgrade-package NAME` raises them.
set -euo pipefail
cd "$(dirname "$0")/.."

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"${PYTHON:-python3}" -m venv "$made/venv"
"$made/venv/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.9

[ -n "${PIP_CERT:-}" ] && export SSL_CERT_FILE=$PIP_CERT
# No address of an index or a folder of wheels is written: the file is the same wherever it is made.
"$made/venv/bin/uv" pip compile pyproject.toml --quiet --no-config --all-extras --universal --python-version 3.11 \
  --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command scripts/lock.sh \
  -o requirements.txt "$@"
