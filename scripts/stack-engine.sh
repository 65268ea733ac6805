#!/usr/bin/env bash
# Gives a container engine and compose to run docker-compose.yaml with: what runs or is installed is used, what is
# missing is installed (Debian, as root) and started with data and socket of its own below .conduit/engine.
#   stack-engine.sh start    prints, as lines NAME=value, what its callers need: DOCKER_HOST (where it is ours), COMPOSE
#   stack-engine.sh stop     ends the engine that `start` started, and nothing else
set -euo pipefail
cd "$(dirname "$0")/.."
# A Unix socket's path ends at 107 bytes, so the engine's own files are not below a deep checkout.
root=$PWD/.conduit/engine
run=${TMPDIR:-/tmp}/conduit-engine-$(printf %s "$PWD" | sha256sum | cut -c1-12)
socket=unix://$run/docker.sock

say() { echo "$*" >&2; }

may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

need() { # need COMMAND PACKAGE…
  command -v "$1" >/dev/null && return
  may_install || { say "missing: $1. Install it (Debian: apt-get install ${*:2}), then call this again"; exit 1; }
  say "installing ${*:2}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${@:2}" >/dev/null
}

running() { timeout 20 docker info >/dev/null 2>&1; }

ours() { # whether its folder is there, and nobody else can have put a socket into it
  [ -e "$run" ] || [ -L "$run" ] || return 1
  [ -d "$run" ] && [ ! -L "$run" ] && [ -O "$run" ] && [ $((0$(stat -c %a "$run") & 022)) = 0 ] && return
  say "$run is not ours alone: it is a link, of another user, or others may write to it. Look who made it, and remove it"
  exit 1
}

start_engine() {
  need docker docker.io
  running && return
  ours || mkdir -m 700 "$run"
  export DOCKER_HOST=$socket
  running && return
  need dockerd docker.io iptables
  mkdir -p "$root"
  say "starting dockerd (log: .conduit/engine/dockerd.log)"
  rm -f "$run/docker.pid"
  setsid dockerd --data-root "$root/data" --exec-root "$run/exec" --pidfile "$run/docker.pid" -H "$socket" \
    >> "$root/dockerd.log" 2>&1 < /dev/null &
  for _ in $(seq 120); do running && return; sleep 0.5; done
  say "dockerd did not start:"; tail -n 12 "$root/dockerd.log" >&2
  exit 1
}

# Compose 2 is asked for: 1.x knows no top-level name and no `up --wait`.
find_compose() {
  if docker compose version >/dev/null 2>&1; then compose="docker compose"; return; fi
  compose=$PWD/.conduit/bin/docker-compose
  [ -x "$compose" ] && return
  may_install || { say "missing: docker compose, version 2. Install it, then call this again"; exit 1; }
  say "fetching docker compose"
  # Debian 12 has only version 1; that of the next release needs nothing newer of the system.
  side=$(mktemp -d); trap 'rm -rf "$side"' RETURN
  mkdir -p "$side/lists/partial" "$side/cache/archives/partial"
  mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m1 '/debian/$')
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" > "$side/sources.list"
  options=(-o "Dir::Etc::sourcelist=$side/sources.list" -o "Dir::Etc::sourceparts=-" -o "Dir::State::lists=$side/lists" \
    -o "Dir::Cache=$side/cache" -o "APT::Sandbox::User=root")
  apt-get -qq "${options[@]}" update
  (cd "$side" && apt-get -qq "${options[@]}" download docker-compose && dpkg -x docker-compose_*.deb tree)
  mkdir -p .conduit/bin
  install -m 755 "$side/tree/usr/libexec/docker/cli-plugins/docker-compose" "$compose.new"
  mv "$compose.new" "$compose"
}

case "${1:-}" in
  start)
    start_engine
    find_compose
    [ -z "${DOCKER_HOST:-}" ] || echo "DOCKER_HOST=$DOCKER_HOST"
    echo "COMPOSE=$compose"
    ;;
  stop)
    ours || exit 0
    [ -f "$run/docker.pid" ] || exit 0
    pid=$(cat "$run/docker.pid")
    # The number may belong to another process by now.
    if tr '\0' ' ' < "/proc/$pid/cmdline" 2>/dev/null | grep -q -- "--pidfile $run/docker.pid"; then
      kill "$pid"
      for _ in $(seq 120); do [ -d "/proc/$pid" ] || break; sleep 0.5; done
      [ ! -d "/proc/$pid" ] || { say "dockerd $pid does not end"; exit 1; }
      say "stopped dockerd"
    fi
    rm -rf "$run"
    ;;
  *) say "call it with start or stop"; exit 2 ;;
esac
