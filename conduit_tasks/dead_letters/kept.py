"""Cache of looks (`columns`), kept beside the files of letters: a process that has looked at none yet reads one file.

```
<root>/<pipeline>/_columns/<form>.parquet
```

The files of letters stay the truth: of what is kept, only that of files counts that are there with the same stamp. So
it may be old, torn or gone, and two processes may write it at once. It is named by its form: another version of what
is derived from a letter finds none, and writes its own.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conduit_tasks.dead_letters.extract import VERSION
from conduit_tasks.dead_letters.issues import FORM
from conduit_tasks.dead_letters.store import COLUMNS, write_table
from conduit_tasks.errors import ConduitError
from conduit_tasks.spool.store import Stamp, open_store

log = logging.getLogger(__name__)

FILES = 100
BYTES = 4 << 20
"""Files that are not in what is kept, or their bytes, from which on it is rewritten. So many are read by a first
look besides."""
_FILES = b"files"


@dataclass(frozen=True)
class Kept:
    """Rows of a look, the paths of the files that their column `file` names, and the stamps of these files."""

    rows: pa.Table
    paths: Mapping[int, str]
    stamps: Mapping[str, Stamp]


def worth(files: Mapping[str, Stamp]) -> bool:
    """Returns whether it takes longer to read these files than what is kept of them."""
    return len(files) >= FILES or sum(stamp[1] or 0 for stamp in files.values()) >= BYTES


def load(root: str, pipeline: str, schema: pa.Schema) -> Kept | None:
    """Returns what is kept of a pipeline's letters; None if it is nothing that can be read."""
    path = _path(pipeline, schema)
    try:
        with open_store(root).open(path) as file:
            rows = pq.ParquetFile(file).read(use_threads=False)
        said = orjson.loads(rows.schema.metadata[_FILES])
        stamps: dict[str, Stamp] = {f"{pipeline}/{name}": tuple(stamp) for name, stamp in said}
        return Kept(rows.replace_schema_metadata(None).cast(schema), dict(enumerate(stamps)), stamps)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.info("%s/%s is left out, and rewritten: %s", root, path, error)
        return None


def save(root: str, pipeline: str, kept: Kept) -> bool:
    """Writes what is to be kept, in place of what is there. Returns whether it could."""
    names = [[path.removeprefix(f"{pipeline}/"), kept.stamps[path]] for path in kept.paths.values()]
    numbers = pa.array(list(kept.paths), pa.int64())
    at = kept.rows.schema.get_field_index("file")
    places = pc.index_in(kept.rows["file"], value_set=numbers).cast(pa.int64())
    rows = kept.rows.set_column(at, "file", places).replace_schema_metadata({_FILES: orjson.dumps(names)})
    path = _path(pipeline, kept.rows.schema)
    try:
        store = open_store(root)
        write_table(store, root, path, rows)
        for name, _ in store.names(f"{pipeline}/{COLUMNS}"):
            if name.endswith(".parquet") and not path.endswith(f"/{name}"):
                store.delete(f"{pipeline}/{COLUMNS}/{name}")
    except (ConduitError, OSError) as error:
        # Who may only read looks longer at first, and sees the same.
        log.info("what was found in dead letters is not kept for the next process: %s", error)
        return False
    return True


def _path(pipeline: str, schema: pa.Schema) -> str:
    form = hashlib.blake2b(repr((VERSION, FORM, str(schema.remove_metadata()))).encode(), digest_size=8).hexdigest()
    return f"{pipeline}/{COLUMNS}/{form}.parquet"
