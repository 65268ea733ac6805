#!/usr/bin/env bash
# Fetches the jars of scripts/NAME-pom.xml to .conduit/NAME/jars, for tests and benchmarks; quick where they are there.
set -euo pipefail
name=$1
cd "$(dirname "$0")/.."

jars=.conduit/$name/jars
wanted=$(sha256sum < "scripts/$name-pom.xml" | cut -d' ' -f1)
[ "$(cat "$jars/.fetched" 2>/dev/null || true)" != "$wanted" ] || exit 0
command -v mvn >/dev/null || { echo "missing: maven. Install it (Debian: apt-get install maven), then call this again" >&2; exit 1; }

# To the side and renamed: two callers at once, or one that is killed, leave no half of it.
mkdir -p ".conduit/$name"
fresh=$(mktemp -d ".conduit/$name/fetching.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
mvn -q -B -f "scripts/$name-pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$PWD/$fresh"
echo "$wanted" > "$fresh/.fetched"
chmod 755 "$fresh"
rm -rf "$jars"
mv "$fresh" "$jars"
