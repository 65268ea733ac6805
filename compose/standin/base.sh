#!/usr/bin/env bash
# base.sh TAG: a stand-in for the base image, made from Debian's packages where no registry can be reached. It has what
# python:3.11-slim-bookworm has that the Dockerfile needs, and trusts what this machine trusts.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "debootstrap needs root" >&2; exit 1; }
command -v debootstrap >/dev/null || {
  apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null; }
tree=$(mktemp -d); trap 'rm -rf "$tree"' EXIT
chmod 755 "$tree"
mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep -m1 '/debian/$' || true)
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,python3-pip bookworm "$tree" ${mirror:+"$mirror"} >/dev/null
cat > "$tree/etc/apt/sources.list" <<LIST
deb $mirror bookworm main
deb ${mirror%/debian/}/debian-security bookworm-security main
LIST
ln -sf python3 "$tree/usr/bin/python"
rm -f "$tree"/usr/lib/python3*/EXTERNALLY-MANAGED
# The certificates that this machine has beyond Debian's: those of a proxy, say.
python3 - "$tree" <<'PYTHON'
import re, sys
from pathlib import Path
tree = Path(sys.argv[1])
block = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----\n?", re.S)
known = set(block.findall((tree / "etc/ssl/certs/ca-certificates.crt").read_text()))
here = Path("/etc/ssl/certs/ca-certificates.crt")
more = [c for c in dict.fromkeys(block.findall(here.read_text())) if c not in known] if here.exists() else []
for number, certificate in enumerate(more):
    (tree / f"usr/local/share/ca-certificates/machine-{number}.crt").write_text(certificate)
PYTHON
chroot "$tree" update-ca-certificates >/dev/null 2>&1
rm -rf "$tree"/var/lib/apt/lists/* "$tree"/var/cache/apt/archives/*.deb
tar -C "$tree" -c . | docker import - "$1" >/dev/null
