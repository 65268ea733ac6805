"""Reads pipeline files: YAML → keys → topology, with every error located. A broken pipeline breaks only itself."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from conduit_tasks.errors import ConfigError
from conduit_tasks.pipeline import model, validate
from conduit_tasks.pipeline.build import to_pipeline
from conduit_tasks.pipeline.clashes import Declared, without_clashes, without_shared
from conduit_tasks.pipeline.details import report_detail
from conduit_tasks.pipeline.findings import Finding, Findings, Path, nearest
from conduit_tasks.pipeline.lookup import Wanted, can_hold
from conduit_tasks.pipeline.without_faults import drop_doubtful, without_faults
from conduit_tasks.pipeline.yaml import Document, Named, named, read
from conduit_tasks.topology import Pipeline

VERSIONS = ("2.0", "2.1", "2.2")
LATEST = VERSIONS[-1]
_KEPT_EMPTY = ("settings", "filters")


@dataclass
class LoadResult:
    """The pipelines that have no error, in the order of the files, and every finding, warnings too."""

    pipelines: list[Pipeline] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    declared: list[Declared] = field(default_factory=list)
    """All pipelines that have an id, broken ones too."""

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]


def load_file(
    path: str | FilePath,
    *,
    plugins: bool = False,
    records: bool = False,
    env: Mapping[str, str] | None = None,
    check_ids: bool = True,
) -> LoadResult:
    """Loads the pipelines of one file.

    `plugins` also checks plugin names, their settings, filters and conditions, which imports the connectors: not for
    parsing DAGs. `records` also tries conditions, templates and filters on the first records of sources that this
    machine reads by itself. Never raises for the content of the file, nor for a file that cannot be read (E001).
    """
    result = LoadResult()
    variables = os.environ if env is None else env
    try:
        text = FilePath(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        result.findings.append(
            Finding(str(path), 0, 0, "E001", "error", f"cannot be read: {reason}", "check the path and its permissions")
        )
        if isinstance(error, UnicodeDecodeError):
            _declare(named(error.object.decode("utf-8-sig", "replace"), variables), str(path), result)
        return result
    loaded = load_text(text, str(path), plugins=plugins, records=records, env=variables)
    return _checked_ids(loaded, plugins) if check_ids else loaded


def load_text(
    text: str, file: str, *, plugins: bool = False, records: bool = False, env: Mapping[str, str] | None = None
) -> LoadResult:
    """Loads the pipelines of the text of a file, which findings call `file`; as `load_file`, without checks of ids."""
    result = LoadResult()
    for document in read(text, file, os.environ if env is None else env):
        _load_document(document, result, plugins, records)
    return result


def load_folder(
    path: str | FilePath,
    *,
    plugins: bool = False,
    records: bool = False,
    env: Mapping[str, str] | None = None,
    load: Callable[..., LoadResult] = load_file,
    wanted: Wanted | None = None,
    put: Mapping[FilePath, FilePath] | None = None,
) -> LoadResult:
    """Loads the pipelines of all `*.yaml` and `*.yml` (in any case) directly in a folder, in name order. Never raises.

    `load`: function that loads one file; its result is not changed. `wanted`: reads only the files that can hold such
    an id. `put`: path in the folder → file that is read in its place.
    """
    folder, result = FilePath(path), LoadResult()
    if not folder.is_dir():
        result.findings.append(
            Finding(str(path), 0, 0, "E001", "error", "is not a folder", "create it, or run `conduit init`")
        )
        return result
    others = put or {}
    for place in sorted({*others, *pipeline_files(folder)}):
        file = others.get(place, place)
        if wanted is not None and not can_hold(file, wanted):
            continue
        loaded = load(file, plugins=plugins, records=records, env=env, check_ids=False)
        result.pipelines += loaded.pipelines
        result.findings += loaded.findings
        result.declared += loaded.declared
    return _checked_ids(result, plugins)


def pipeline_files(folder: FilePath) -> list[FilePath]:
    """Returns the pipeline files of a folder; `*.test.yaml` are unit tests (`conduit pipelines test`) and left out."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    yaml = (f for f in found if f.suffix.lower() in (".yaml", ".yml") and f.is_file())
    return [f for f in yaml if not f.stem.lower().endswith(".test")]


def get_pipeline(id: str) -> Pipeline:
    """Returns the pipeline of this id from the folder that the settings name. A file is parsed again only if its text,
    the environment or the settings have changed: the steps of one process ask again and again.

    Raises ConfigError with the first error of the pipeline, or with the ids that exist.
    """
    from conduit_tasks.settings import settings

    folder = settings().path(settings().pipelines)
    for pipeline in load_folder(folder, wanted=lambda named: named == id, load=_load_kept).pipelines:
        if pipeline.id == id:
            return pipeline
    result = load_folder(folder)
    for pipeline in result.pipelines:
        if pipeline.id == id:
            return pipeline
    for finding in result.errors:
        if finding.pipeline == id:
            raise ConfigError(f"{finding}; {finding.hint}" if finding.hint else str(finding))
    known = ", ".join(p.id for p in result.pipelines) or "none"
    more = f"; files with errors: see `conduit validate {folder}`" if result.errors else ""
    raise ConfigError(f"no pipeline '{id}' in {folder}; there are: {known}{more}")


def _load_kept(path: FilePath, **_: Any) -> LoadResult:
    """Loads a file as `load_file` does without options and checks of ids; each result is the caller's own."""
    from conduit_tasks.settings import settings

    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return load_file(path, check_ids=False)
    kept = _parsed(text, str(path), tuple(os.environ.items()), settings().model_dump_json())
    return pickle.loads(kept)  # noqa: S301 - of this process


@lru_cache(maxsize=16)
def _parsed(text: str, file: str, env: tuple[tuple[str, str], ...], _settings: str) -> bytes:
    """Returns the result of `load_text`, pickled, as what is made of it may be changed; digests are made already."""
    result = load_text(text, file, env=dict(env))
    for pipeline in result.pipelines:
        pipeline.digest()
    return pickle.dumps(result)


def _load_document(document: Document, result: LoadResult, plugins: bool, records: bool) -> None:
    report, root = document.report, document.value
    ids: dict[int, str] = {}
    _declare(document.named, report.file, result)
    if root is None:
        if not report.found:
            report.add("W106", (), "the document is empty", "remove it, or add version and pipelines")
    elif not isinstance(root, dict):
        report.add("E006", (), "not a pipeline file: it must be a map with version and pipelines", "see `conduit init`")
    else:
        version = _version(root, report)
        if version:
            pipelines = _pipelines(root, report)
            ids = {n: str(p["id"]) for n, p in enumerate(pipelines) if isinstance(p, dict) and p.get("id")}
            _declare([Named(id, report.locate(("pipelines", n))[0]) for n, id in ids.items()], report.file, result)
            for index, keys in enumerate(pipelines):
                pipeline = _load_pipeline(keys, ("pipelines", index), report, version, plugins)
                if pipeline and records:
                    from conduit_tasks.pipeline.validate_records import try_records

                    try_records(pipeline, [c["id"] for c in keys["connectors"]], report, ("pipelines", index))
                if pipeline:
                    result.pipelines.append(pipeline)
    result.findings += report.findings(ids)


def _declare(ids: Iterable[Named], file: str, result: LoadResult) -> None:
    result.declared += [Declared(id, file, line) for id, line in ids]


def _version(root: dict[str, Any], report: Findings) -> str | None:
    """Returns the version to read the file by; None if it cannot be read."""
    version = root.get("version")
    if version is None:
        report.add("W102", (), f"there is no version; read as {LATEST}", f'begin the file with version: "{LATEST}"')
        return LATEST
    if version in VERSIONS:
        return str(version)
    if str(version).split(".")[0] == "1":
        report.add(
            "E005",
            ("version",),
            f"version {version} is not read here, only 2.0 to {LATEST}",
            "turn the maps pipelines, connectors and processors into lists whose items have an id, "
            f'rename a processor\'s type to plugin, and set version: "{LATEST}"',
        )
        return None
    if str(version).split(".")[0] == "2":
        report.add("W102", ("version",), f"version {version} is unknown; read as {LATEST}", f'write "{LATEST}"')
        return LATEST
    report.add("E005", ("version",), f"version '{version}' is unknown", f'write version: "{LATEST}"')
    return None


def _pipelines(root: dict[str, Any], report: Findings) -> list[Any]:
    for key in root.keys() - {"version", "pipelines"}:
        report.add("E101", (key,), f"unknown key '{key}'", nearest(key, ("version", "pipelines")))
    pipelines = root.get("pipelines")
    if isinstance(pipelines, list):
        return pipelines
    if isinstance(pipelines, dict):
        report.add("E006", ("pipelines",), "pipelines must be a list", "write '- id: …' for each, as of version 2.0")
    elif pipelines is not None or "pipelines" not in root:
        report.add("E102", (), "the list of pipelines is missing", "add pipelines: with at least one '- id: …'")
    return []


def _load_pipeline(keys: Any, base: Path, report: Findings, version: str, plugins: bool) -> Pipeline | None:
    if not isinstance(keys, dict):
        report.add("E103", base, "a pipeline must be a map", "write '- id: …' and its connectors")
        return None
    validate.check_version(keys, report, base, version)
    pruned = _pruned(keys)
    try:
        parsed = model.PipelineKeys.model_validate(pruned)
    except ValidationError as error:
        details = error.errors(include_url=False)
        for detail in details:
            report_detail(detail, report, base)
        if rest := without_faults(pruned, details):
            since = len(report.found)
            _check(rest[0], report, base, plugins)
            drop_doubtful(report, since, base, rest[1])
        return None
    _check(parsed, report, base, plugins)
    return None if report.broken(base) else to_pipeline(parsed, report.file, report.locate(base)[0])


def _check(parsed: model.PipelineKeys, report: Findings, base: Path, plugins: bool) -> None:
    validate.check(parsed, report, base)
    if plugins:
        from conduit_tasks.pipeline.validate_plugins import check_plugins

        check_plugins(parsed, report, base)


def _pruned(value: Any) -> Any:
    """Returns the value without keys that have no value: `settings:` alone is the same as no settings."""
    if isinstance(value, dict):
        return {k: v if k in _KEPT_EMPTY else _pruned(v) for k, v in value.items() if v is not None}
    return [_pruned(v) for v in value] if isinstance(value, list) else value


def _checked_ids(result: LoadResult, plugins: bool) -> LoadResult:
    kept, found = without_clashes(result.pipelines, result.declared)
    kept, shared = without_shared(kept, plugins=plugins)
    return replace(result, pipelines=kept, findings=[*result.findings, *found, *shared])
