"""Classes for one standalone connector, made when it is named: its program is started only when it is needed, and told
when it is deleted."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from conduit_tasks.connectors.base import Option, Spec
from conduit_tasks.connectors.standalone import found, specs
from conduit_tasks.connectors.standalone.client import Client
from conduit_tasks.connectors.standalone.found import Program

if TYPE_CHECKING:
    from conduit_tasks.spool.told import Told


class _WithSpec(type):
    """The specification of a class comes from its program, when it is asked for."""

    @property
    def spec(cls) -> Spec:
        program = found.find(cls.plugin)  # type: ignore[attr-defined]
        return _spec(cls.plugin, cls.side, program, cls.ours)  # type: ignore[attr-defined]


class Standalone(metaclass=_WithSpec):
    """Base of both sides. `plugin`: the reference in the file; `side`: source or destination; `ours`: options that
    are not the connector's own."""

    plugin: ClassVar[str] = ""
    side: ClassVar[str] = ""
    ours: ClassVar[tuple[Option, ...]] = ()
    pipeline: str
    connector: str
    told: Told | None

    def __init__(self, settings: Mapping[str, str]) -> None:
        self.spec = type(self).spec
        super().__init__(settings)  # type: ignore[call-arg]
        given = {k: str(v) for k, v in settings.items() if not k.startswith("cloudevents.")}
        self.config = specs.check(self.spec.name, self.parameters(), given)
        """The settings that the connector gets."""

    def program(self) -> Program:
        """Returns the connector's program."""
        return found.find(self.plugin)

    def parameters(self) -> Mapping[str, Any]:
        """Returns the parameters of this side."""
        return _parameters(self.program(), self.side)

    @property
    def own_name(self) -> str:
        """Name that the connector gives itself: the same in all of its versions."""
        return str(self.program().specification.name)

    @property
    def id(self) -> str:
        """Id of the connector, as its process gets it."""
        return f"{self.pipeline}:{self.connector}" if self.pipeline else self.side

    def started(self) -> Client:
        """Starts the connector, and gives it its settings."""
        from conduit_tasks.connectors.standalone.client import configured
        from conduit_tasks.connectors.standalone.settled import hiding_of

        client = Client(self.program().file, self.spec.name, self.id, hiding_of(self.config))
        try:
            configured(client, self.side.capitalize(), self.config)
        except BaseException:
            client.kill()
            raise
        return client

    def teardown(self) -> list[str]:
        """Tells the connector that it is deleted (`conduit connectors teardown`)."""
        client, side = self.started(), self.side.capitalize()
        done = [f"what {self.spec.name} made for itself (LifecycleOnDeleted)"]
        try:
            client.call(side, "LifecycleOnDeleted", config=self.config)
        except NotImplementedError:
            done = []
        except BaseException:
            client.kill()
            raise
        if self.told is not None:
            # Should it be opened again, it is new.
            self.told.note(self.own_name, None)
        client.optional(side, "Teardown")
        client.finish()
        return done

    def __reduce__(self) -> tuple[Any, tuple[type[Any], str, dict[str, Any]]]:
        kept = {name: value for name, value in self.__dict__.items() if name != "spec"}
        return _restored, (type(self).__bases__[0], self.plugin, kept)


def _restored(base: Any, plugin: str, kept: Mapping[str, Any]) -> Any:
    cls = variant(base, plugin)
    made: Any = object.__new__(cls)
    made.__dict__.update(kept)
    made.spec = cls.spec
    return made


def _parameters(program: Program, side: str) -> Mapping[str, Any]:
    named: Mapping[str, Any] = getattr(program.specification, f"{side}_params")
    return named


def _spec(plugin: str, side: str, program: Program, ours: tuple[Option, ...]) -> Spec:
    return specs.spec_of(plugin.partition("@")[0], program.specification, _parameters(program, side), ours)


@lru_cache(maxsize=512)
def variant(base: type[Any], plugin: str) -> type[Any]:
    """Returns the class of one side (`base`) for one plugin; starts nothing."""
    return type(base.__name__, (base,), {"plugin": plugin, "__module__": base.__module__})
