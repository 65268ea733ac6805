"""A Singer tap for tests: `--config` says what it does, step by step, or how many rows of a stream it has.

Run as a program, with the standard library alone; nothing of it is ours.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time


def say(kind, **more):
    print(json.dumps({"type": kind, **more}), flush=True)


def schema(stream="rows", keys=("id",)):
    properties = {"id": {"type": "integer"}, "name": {"type": ["null", "string"]}, "price": {"type": "number"}}
    say("SCHEMA", stream=stream, schema={"type": "object", "properties": properties}, key_properties=list(keys))


def counted(config, state):
    """Rows behind the state, a STATE after every few; the row at the bookmark comes again, as taps do."""
    schema()
    at = state.get("bookmarks", {}).get("rows", {}).get("id")
    first = 0 if at is None else at + bool(config.get("behind"))
    for n in range(first, config["rows"]):
        say("RECORD", stream="rows", record={"id": n, "name": f"row {n}"}, time_extracted="2026-01-02T03:04:05Z")
        if n % config.get("every", 10) == 0:
            say("STATE", value={"bookmarks": {"rows": {"id": n}}})
        if n == config.get("dies_at"):
            print("it is over", file=sys.stderr, flush=True)
            sys.exit(3)


def act(step, config):
    kind, *rest = step
    if kind == "schema":
        schema(*rest)
    elif kind == "record":
        say("RECORD", stream=rest[0] if len(rest) > 1 else "rows", record=rest[-1])
    elif kind == "state":
        say("STATE", value=rest[0])
    elif kind == "raw":
        sys.stdout.write(rest[0])
        sys.stdout.flush()
    elif kind == "big":
        sys.stdout.write("x" * rest[0])
        sys.stdout.flush()
    elif kind == "log":
        print(rest[0].format(**config), file=sys.stderr, flush=True)
    elif kind == "exit":
        sys.exit(rest[0])
    elif kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "sleep":
        time.sleep(rest[0])
    elif kind == "spawn":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        with open(rest[0], "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
    elif kind == "env":
        say("RECORD", stream="rows", record={"id": 0, "env": dict(os.environ)})
    elif kind == "files":
        found = {name: oct(os.stat(name).st_mode & 0o777) for name in sys.argv if name.endswith(".json")}
        folder = oct(os.stat(os.path.dirname(next(iter(found)))).st_mode & 0o777)
        say("RECORD", stream="rows", record={"id": 0, "files": found, "folder": folder})
    else:
        raise SystemExit(f"unknown step {kind}")


def read(name):
    if not name:
        return {}
    with open(name) as file:
        return json.load(file)


def main():
    parser = argparse.ArgumentParser()
    for name in ("--config", "--state", "--catalog", "--properties"):
        parser.add_argument(name)
    parser.add_argument("--discover", action="store_true")
    given = parser.parse_args()
    config, state = read(given.config), read(given.state)
    if given.discover:
        print(json.dumps(config.get("catalog", CATALOG)))
        sys.exit(config.get("discover_exit", 0))
    if given.catalog or given.properties:
        catalog = read(given.catalog or given.properties)
        for stream in catalog["streams"]:
            own = [m["metadata"] for m in stream["metadata"] if m["breadcrumb"] == []]
            if own and own[0].get("selected"):
                fields = [(m["breadcrumb"][1], m["metadata"]) for m in stream["metadata"] if m["breadcrumb"]]
                out = [name for name, of in fields if not of.get("selected", True)]
                schema(stream["tap_stream_id"])
                row = {name: 1 for name in stream["schema"]["properties"] if name not in out}
                say("RECORD", stream=stream["tap_stream_id"], record=row)
        return
    if "rows" in config:
        counted(config, state)
    for step in config.get("steps", []):
        act(step, config)


CATALOG = {
    "streams": [
        {
            "tap_stream_id": name,
            "stream": name,
            "key_properties": ["id"],
            "schema": {"type": "object", "properties": {"id": {"type": "integer"}, "secret": {"type": "string"}}},
            "metadata": [
                {"breadcrumb": [], "metadata": {"inclusion": "available", "forced-replication-method": "FULL_TABLE"}},
                {"breadcrumb": ["properties", "id"], "metadata": {"inclusion": "automatic"}},
            ],
        }
        for name in ("users", "shop.orders")
    ]
}

if __name__ == "__main__":
    main()
