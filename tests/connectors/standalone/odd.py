"""A connector in Python, over TCP, that breaks its contract in the way that the setting `mode` names.

Started by a script of `started_by`; `argv[1]` names a way to break the handshake.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import grpc

from conduit_tasks.connectors.standalone.messages import message, method

MODES = "good,crash,hang,open-hang,twice,large,unplaced,end,structured,child,env,stop-hang,tells"


class Odd:
    """Both sides; the same methods for both, as far as they go."""

    def __init__(self) -> None:
        self.config: dict[str, str] = {}
        self.at = 0
        self.stop = threading.Event()

    def specify(self, request: Any, context: Any) -> Any:
        parameter = {"default": "good", "type": 1, "validations": [{"type": 4, "value": MODES}]}
        count = {"default": "5", "type": 2, "validations": [{"type": 2, "value": "0"}, {"type": 3, "value": "100000"}]}
        secret = {"type": 1, "validations": [{"type": 1}]}
        params = {"mode": parameter, "count": count, "token": secret, "notes": {"type": 1}}
        spec = {"name": "odd", "summary": "Odd", "version": "1.0.0"}
        _, _, response = method("connector.v2.SpecifierPlugin", "Specify")
        return response(specification={**spec, "source_params": params, "destination_params": params})

    def note(self, **what: Any) -> None:
        if path := self.config.get("notes"):
            with open(path, "a") as file:
                file.write(json.dumps(what) + "\n")

    def configure(self, request: Any, context: Any) -> Any:
        self.config = dict(request.config)
        self.note(pid=os.getpid(), environment=sorted(os.environ))
        if self.config["mode"] == "child":
            child = subprocess.Popen(["sleep", "600"])
            self.note(child=child.pid)
        if self.config["mode"] == "tells":
            said = f"no login as {self.config['token']}, nor to db://u:{quote(self.config['token'], safe='')}@h"
            print(said, file=sys.stderr, flush=True)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, said)
        print(
            json.dumps({"level": "warn", "message": "configured", "count": self.config.get("count")}), file=sys.stderr
        )

    def open(self, request: Any, context: Any) -> Any:
        position = getattr(request, "position", b"")
        self.note(open=position.decode())
        if Path(self.config.get("notes", "") + ".shut").exists():
            context.abort(grpc.StatusCode.UNAVAILABLE, "it cannot be opened now")
        self.at = int(position or b"0")
        if self.config["mode"] == "open-hang":
            time.sleep(600)

    def run_source(self, requests: Any, context: Any) -> Any:
        response, record = message("connector.v2.Source.Run.Response"), message("opencdc.v1.Record")
        acks = threading.Thread(target=self.take_acks, args=(requests,), daemon=True)
        acks.start()
        mode, count = self.config["mode"], int(self.config.get("count", "5"))
        while self.at < count:
            self.at += 1
            position = b"" if mode == "unplaced" and self.at == 3 else str(self.at).encode()
            one = record(position=position, operation=1, payload={"after": {"raw_data": b"odd %d" % self.at}})
            if mode == "structured":
                one.payload.after.structured_data.update(
                    {"n": self.at, "half": 0.5, "on": True, "no": None, "of": {"deep": [1, "two", {"x": 3}]}}
                )
            if mode == "large" and self.at == 3:
                one.payload.after.raw_data = b"x" * (1 << 20)
            if mode == "crash" and self.at == 3:
                print("about to die", file=sys.stderr, flush=True)
                os._exit(7)
            yield response(records=[one])
            if mode == "twice" and self.at == 3:
                yield response(records=[one])
            if mode == "hang" and self.at == 3:
                time.sleep(600)
        if mode == "end":
            return
        self.stop.wait()
        acks.join()

    def take_acks(self, requests: Any) -> None:
        for request in requests:
            for position in request.ack_positions:
                self.note(ack=position.decode())

    def run_destination(self, requests: Any, context: Any) -> Any:
        response = message("connector.v2.Destination.Run.Response")
        for request in requests:
            for n, record in enumerate(request.records):
                if self.config["mode"] == "crash" and n == 2:
                    self.wait_for_the_acks()
                    os._exit(7)
                if self.config["mode"] == "hang" and n == 2:
                    time.sleep(600)
                self.note(record=record.payload.after.raw_data.decode() or sorted(record.payload.after.structured_data))
                yield response(
                    acks=[{"position": b"none of yours" if self.config["mode"] == "twice" else record.position}]
                )

    def wait_for_the_acks(self) -> None:
        """What was acked is on its way until the other side has it."""
        deadline = time.monotonic() + 60
        while not Path(self.config["notes"] + ".acked").exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    def created(self, request: Any, context: Any) -> None:
        self.note(created=dict(request.config)["mode"])
        if Path(self.config["notes"] + ".dies").exists():
            os._exit(7)

    def updated(self, request: Any, context: Any) -> None:
        self.note(updated=dict(request.config_after)["mode"])

    def stopped(self, request: Any, context: Any) -> Any:
        if self.config["mode"] == "stop-hang":
            time.sleep(600)
        self.stop.set()
        self.note(stop=True)

    def teardown(self, request: Any, context: Any) -> Any:
        self.note(teardown=True)


def serve(odd: Odd) -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    calls = {
        "connector.v2.SpecifierPlugin": {"Specify": odd.specify},
        "connector.v2.SourcePlugin": {
            "Configure": odd.configure,
            "Open": odd.open,
            "Run": odd.run_source,
            "Stop": odd.stopped,
            "Teardown": odd.teardown,
        },
        "connector.v2.DestinationPlugin": {
            "Configure": odd.configure,
            "LifecycleOnCreated": odd.created,
            "LifecycleOnUpdated": odd.updated,
            "Open": odd.open,
            "Run": odd.run_destination,
            "Stop": odd.stopped,
            "Teardown": odd.teardown,
        },
    }
    for service, methods in calls.items():
        handlers = {}
        for name, function in methods.items():
            _, request, response = method(service, name)
            make = grpc.stream_stream_rpc_method_handler if name == "Run" else grpc.unary_unary_rpc_method_handler

            def answered(given: Any, context: Any, function: Any = function, response: Any = response) -> Any:
                return function(given, context) or response()

            handlers[name] = make(
                function if name == "Run" else answered,
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"1|2|tcp|127.0.0.1:{port}|grpc", flush=True)
    server.wait_for_termination()


def main() -> None:
    if "CONDUIT_PLUGIN_MAGIC_COOKIE" not in os.environ:
        sys.exit("this is a connector, which is started by Conduit")
    match sys.argv[1:]:
        case ["garbage"]:
            print("\x00\x01 hello |", flush=True)
            time.sleep(600)
        case ["nothing"]:
            print("what shall I say?", file=sys.stderr)
            sys.exit(3)
        case ["silent"]:
            time.sleep(600)
        case ["protocol-1"]:
            print("1|1|tcp|127.0.0.1:1|grpc", flush=True)
            time.sleep(600)
        case ["nobody"]:
            print("1|2|tcp|127.0.0.1:9|grpc", flush=True)
            time.sleep(600)
        case _:
            serve(Odd())


if __name__ == "__main__":
    main()
