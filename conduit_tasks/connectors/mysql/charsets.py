"""Texts of the binary log, decoded as the server converts them for a query."""

from __future__ import annotations

import codecs
from collections.abc import Callable
from functools import partial
from typing import Any

from conduit_tasks.connectors.mysql.client import library

Decode = Callable[[bytes], str]
"""Returns the text of bytes. Raises UnicodeDecodeError if they are none."""

UTF8 = ("utf8mb4", "utf8mb3", "utf8")
_PYTHON = {
    **dict.fromkeys(UTF8, "utf-8"),
    **{"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"},
    **{"cp932": "cp932", "gbk": "gbk", "gb2312": "gb2312", "gb18030": "gb18030", "euckr": "cp949"},
}
"""Charsets of several bytes: the server's name → Python's. Others, such as `sjis`, `ujis` and `big5`, Python decodes
otherwise."""


class Charsets:
    """Charsets that a server knows; it is asked for each once."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._names: dict[int, str] | None = None
        self._known: dict[str, Decode | None] = {}

    def name(self, collation: int) -> str:
        """Returns the charset of the collation of a number; "" if the server knows none."""
        if self._names is None:
            pymysql = library()
            try:
                # MariaDB's newer collations have numbers here only.
                found = self._ask(f"{_COLLATIONS}.collation_character_set_applicability")
            except pymysql.OperationalError:
                found = self._ask(f"{_COLLATIONS}.collations")
            self._names = {int(n): str(charset) for n, charset in found if n is not None}
        return self._names.get(collation, "")

    def decode(self, charset: str) -> Decode | None:
        """Returns the function for texts of a charset; None if they are not read."""
        if charset not in self._known:
            self._known[charset] = self._made(charset)
        return self._known[charset]

    def _made(self, charset: str) -> Decode | None:
        if name := _PYTHON.get(charset):
            return partial(str, encoding=name)
        sizes = self._ask("SELECT maxlen FROM information_schema.character_sets WHERE character_set_name = %s", charset)
        if [int(size) for (size,) in sizes] != [1]:
            return None
        # Python knows some bytes of hebrew, greek, koi8u and cp866 as other characters, and not all of latin1.
        ((table,),) = self._ask(f"SELECT _{charset} X'{bytes(range(256)).hex()}'")
        return partial(_by_table, str(table))

    def _ask(self, statement: str, *values: str) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall()


_COLLATIONS = "SELECT id, character_set_name FROM information_schema"


def _by_table(table: str, data: bytes) -> str:
    return codecs.charmap_decode(data, "strict", table)[0]
