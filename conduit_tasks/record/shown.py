"""Records as people look at them: masked, and cut to a bound.

Masked are fields whose name says that they are secret (`secret_names.FIELD`) and those that the pipeline file lists
under `mask`; and from then on every other place in which the text of a masked value is found, such as a field that it
was copied to, or an error that quotes it. What was encoded or hashed in between is not found (see `record.hidden`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from conduit_tasks.record import jsons
from conduit_tasks.record.fields import FieldRef, parse
from conduit_tasks.record.hidden import MASKED, Hidden
from conduit_tasks.record.record import Record
from conduit_tasks.secret_names import FIELD

__all__ = ["MASKED", "Shown"]

LETTERS, ENTRIES, DEPTH = 2_000, 200, 24
"""Characters of a text, entries of a list or map, and levels of maps and lists, that are shown."""


NAMES, VALUES = frozenset({"name", "key", "header", "field"}), frozenset({"value", "values"})
"""Keys of a pair that is written as an object, as lists of headers are: `{"name": "Authorization", "value": …}`."""


class Shown:
    """Makes the forms in which records and texts are shown, of one answer. `mask`: field references.

    `cut` becomes true once something was left out because it is too long. `most`: characters of all records together,
    about; those after it are left out whole.
    """

    def __init__(self, mask: Sequence[str] = (), most: int = 2 << 20) -> None:
        self._mask = [parse(text) for text in mask]
        self._hidden = Hidden()
        self._left = most
        self.cut = False

    def records(self, records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns OpenCDC records as they are shown."""
        out, some = [], list(records)
        for record in some:
            self.learn(record)
        for record in some:
            if self._left <= 0:
                self.cut = True
                break
            shown = self.record(record)
            self._left -= len(jsons.dumps(shown))
            out.append(shown)
        return out

    def record(self, record: dict[str, Any]) -> dict[str, Any]:
        """Returns an OpenCDC record as it is shown; the given one is not changed."""
        shown = {name: self._short(value) for name, value in self._parts(record).items()}
        return {
            "position": shown["Position"],
            "operation": shown["Operation"],
            "metadata": shown["Metadata"],
            "key": shown["Key"],
            "payload": {"before": shown["Payload.Before"], "after": shown["Payload.After"]},
        }

    def learn(self, record: dict[str, Any]) -> None:
        """Takes note of what is masked in a record that is shown later: others may repeat it."""
        self._parts(record)

    def masked(self, record: Record) -> Record:
        """Returns the record as it is shown, but whole: for processors that must see no more than whoever asks."""
        given = record.to_opencdc()
        parts = {name: self._whole(value) for name, value in self._parts(given).items()}
        out = record.copy()
        if parts["Position"] != given["position"]:
            out.position = MASKED.encode()
        if parts["Metadata"] != given["metadata"]:
            own = parts["Metadata"] if isinstance(parts["Metadata"], dict) else {}
            # None hides what the slice has under this name.
            out.metadata = {**dict.fromkeys(out.origin.metadata or ()), **own}  # type: ignore[dict-item]
        for name, key, was in (
            ("key", "Key", given["key"]),
            ("before", "Payload.Before", given["payload"]["before"]),
            ("after", "Payload.After", given["payload"]["after"]),
        ):
            if parts[key] != was:
                setattr(out, name, parts[key].encode() if isinstance(parts[key], str) else parts[key])
        return out

    def _parts(self, record: dict[str, Any]) -> dict[str, Any]:
        """Returns the parts with what their fields' names mask; all of them, so that what a field holds is known where
        another repeats it."""
        payload = {"Before": record["payload"]["before"], "After": record["payload"]["after"]}
        parts = {
            "Position": record["position"],
            "Operation": record["operation"],
            "Metadata": record["metadata"],
            "Key": record["key"],
            **{f"Payload.{name}": value for name, value in payload.items()},
        }
        return {name: self._part(name, value) for name, value in parts.items()}

    def value(self, value: Any) -> Any:
        """Returns a value without what is masked in the records so far, and not longer than shown."""
        return self._short(value)

    def _whole(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._hidden.within(str(k)): self._whole(v) for k, v in value.items()}
        if isinstance(value, list):
            return [self._whole(each) for each in value]
        return self._hidden.within(value) if isinstance(value, str) else self._number(value)

    def _number(self, value: Any) -> Any:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return MASKED if is_number and str(value) in self._hidden else value

    def text(self, text: str) -> str:
        """Returns a text without what is masked in the records so far, and not longer than shown."""
        return self._text(text)

    def _part(self, name: str, value: Any) -> Any:
        fields = [field for field in self._mask if field.root == name or field.root == name.partition(".")[0]]
        if any(not field.path for field in fields):
            return self._hide(value)
        inner = [field for field in fields if field.root == name]
        if isinstance(value, str) and name in ("Key", "Payload.Before", "Payload.After"):
            return self._raw(value, inner)
        value = self._named(value)
        for field in inner:
            value = self._at(value, field.path)
        return value

    def _raw(self, text: str, fields: Sequence[FieldRef]) -> str:
        """Masks in raw data that is JSON; other raw data has no fields, and is masked whole if some are to be."""
        if text.lstrip()[:1] in ("{", "["):
            try:
                value = masked = jsons.exact(text)
            except jsons.JSONDecodeError:
                pass
            else:
                masked = self._named(value)
                for field in fields:
                    masked = self._at(masked, field.path)
                # Of a key given twice the value has one only; the text would show both.
                return text if masked == value and not _repeats_a_key(text) else jsons.dumps(masked).decode()
        return str(self._hide(text)) if fields and text else text

    def _named(self, value: Any) -> Any:
        if isinstance(value, dict):
            secret = _named_secret(value)
            return {
                k: self._hide(v) if FIELD.search(str(k)) or (secret and str(k).lower() in VALUES) else self._named(v)
                for k, v in value.items()
            }
        return [self._named(each) for each in value] if isinstance(value, list) else value

    def _at(self, value: Any, path: Sequence[str]) -> Any:
        """Masks what lies at a path, in every element of lists on the way."""
        if not path:
            return self._hide(value)
        if isinstance(value, list):
            return [self._at(each, path) for each in value]
        if isinstance(value, dict) and path[0] in value:
            return {**value, path[0]: self._at(value[path[0]], path[1:])}
        return value

    def _hide(self, value: Any) -> Any:
        left = [value]
        while left:
            each = left.pop()
            if isinstance(each, dict | list):
                left += each.values() if isinstance(each, dict) else each
            elif each is not None and not isinstance(each, bool):
                self._hidden.add(str(each))
        return value if value is None or value in ("", {}, []) else MASKED

    def _short(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if not isinstance(value, dict | list):
            return self._number(value)
        if depth >= DEPTH:
            self.cut = True
            return "…"
        if len(value) > ENTRIES:
            self.cut = True
        if isinstance(value, list):
            some: list[Any] = [self._short(each, depth + 1) for each in value[:ENTRIES]]
            return [*some, f"… {len(value):,} in all"] if len(value) > ENTRIES else some
        few = {self._text(str(k)): self._short(v, depth + 1) for k, v in list(value.items())[:ENTRIES]}
        return {**few, "…": f"{len(value):,} in all"} if len(value) > ENTRIES else few

    def _text(self, text: str) -> str:
        if len(text) <= LETTERS:
            return self._hidden.within(text)
        self.cut = True
        head, tail, more = LETTERS // 2, LETTERS // 4, self._hidden.longest
        begin, end = self._hidden.within(text[: head + more]), self._hidden.within(text[-(tail + more) :])
        return f"{begin[:head]} … {len(text):,} characters in all … {end[-tail:]}"


def _repeats_a_key(text: str) -> bool:
    """Returns whether an object in this JSON has a key twice."""
    found = False

    def once(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({name for name, _ in pairs}) < len(pairs)

    json.loads(text, object_pairs_hook=once)
    return found


def _named_secret(pair: dict[str, Any]) -> bool:
    """Returns whether an object names, under `name` or the like, something secret that it has beside it."""
    return any(str(k).lower() in NAMES and isinstance(v, str) and FIELD.search(v) for k, v in pair.items())
