"""What all of the runner's calls share: schedulers, history and configuration, each made when needed."""

from __future__ import annotations

import builtins

from trainyard.schedulers.registry import get_default_scheduler_name, get_scheduler_factory

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any, Self

    from trainyard.git import GitProbe
    from trainyard.progress import Progress
    from trainyard.runner.config import Config
    from trainyard.runner.history import History
    from trainyard.schedulers.base import Scheduler
    from trainyard.schedulers.registry import SchedulerFactory
    from trainyard.specs.options import runopts

DEFAULT_SESSION = "trainyard"


class Session:
    """A context manager that holds what the runner uses; `close` frees it.

    Args:
        name: name of the session.
        scheduler_factories: what makes each scheduler, by name; None for all that are installed.
        component_defaults: values of component parameters that are not given, by component.
        scheduler_params: given to every scheduler that is made.
        history: where submissions are recorded; by default the history of the state directory.
    """

    def __init__(
        self,
        name: str = DEFAULT_SESSION,
        scheduler_factories: Mapping[str, SchedulerFactory] | None = None,
        component_defaults: Mapping[str, Mapping[str, str]] | None = None,
        scheduler_params: Mapping[str, Any] | None = None,
        history: History | None = None,
    ) -> None:
        self._name = name
        self._factories = scheduler_factories
        self._component_defaults = component_defaults or {}
        self._scheduler_params = dict(scheduler_params or {})
        self._history = history
        self._config: Config | None = None
        self._schedulers: dict[str, Scheduler[Any]] = {}
        self._late_facts: list[tuple[str, GitProbe]] = []
        #: Is told how far code is that is being shipped; None if nobody looks.
        self.progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the schedulers and the history. May be called more than once."""
        self._collect_late_facts()
        for scheduler in self._schedulers.values():
            scheduler.close()
        self._schedulers.clear()
        if self._history is not None:
            self._history.close()

    def name(self) -> str:
        """Return the name of the session."""
        return self._name

    @property
    def history(self) -> History:
        """The history of submissions. Opened when it is first read or written."""
        if self._history is None:
            from trainyard.runner.history import History

            self._history = History()
        return self._history

    @property
    def config(self) -> Config:
        """The configuration that holds in the current directory, read once."""
        if self._config is None:
            from trainyard.runner.config import load_config

            self._config = load_config()
        return self._config

    # ---- schedulers

    def scheduler(self, name: str) -> Scheduler[Any]:
        """Return the scheduler of this name, made when it is first asked for.

        Raises:
            UnknownSchedulerException: there is none.
        """
        if name not in self._schedulers:
            scheduler = self._factory(name)(self._name, **self._scheduler_params)
            scheduler.backend = name  # by which handles find it again, whatever its class calls itself
            scheduler.recall = lambda app_id: self._native_id(scheduler, app_id)
            scheduler.configured = lambda: self._configured(scheduler, name)
            self._schedulers[name] = scheduler
        return self._schedulers[name]

    def _configured(self, scheduler: Scheduler[Any], name: str) -> dict[str, Any]:
        from trainyard.runner.config import effective_options
        from trainyard.runner.config_sources import DEFAULT

        options = effective_options(self.config, name, scheduler.run_opts())
        return {key: setting.value for key, setting in options.items() if setting.kind != DEFAULT}

    def _native_id(self, scheduler: Scheduler[Any], app_id: str) -> str | None:
        from trainyard.errors import StateStoreError
        from trainyard.specs.handles import make_app_handle

        try:
            record = self.history.find(make_app_handle(scheduler.backend, scheduler.session_name, app_id))
        except StateStoreError:
            return None  # the backend can be asked
        return None if record is None else record.native_id

    def scheduler_backends(self) -> builtins.list[str]:
        """Return the names of all schedulers, the default one first."""
        if self._factories is not None:
            return list(self._factories)
        from trainyard.schedulers.registry import get_scheduler_factories

        return list(get_scheduler_factories())

    def scheduler_run_opts(self, scheduler: str) -> runopts:
        """Return the options of a scheduler."""
        return self.scheduler(scheduler).run_opts()

    def cfg_from_str(self, scheduler: str, *cfg_literals: str) -> dict[str, Any]:
        """Read ``key=value,...`` texts as options of a scheduler; later ones win."""
        opts = self.scheduler_run_opts(scheduler)
        cfg: dict[str, Any] = {}
        for literal in cfg_literals:
            cfg |= opts.cfg_from_str(literal)
        return cfg

    def _factory(self, name: str) -> SchedulerFactory:
        if self._factories is None:
            return get_scheduler_factory(name)
        if name in self._factories:
            return self._factories[name]
        from trainyard.errors import UnknownSchedulerException, did_you_mean

        raise UnknownSchedulerException(
            f"there is no scheduler {name!r}", hint=did_you_mean(name, self._factories)
        )

    def _default_scheduler(self) -> str:
        return get_default_scheduler_name() if self._factories is None else next(iter(self._factories))

    def _collect_late_facts(self, only_done: bool = False) -> None:
        """Record what git had to say of jobs that were submitted before it had finished."""
        if not self._late_facts:
            return
        from trainyard.runner.submission import record_git_facts

        late, self._late_facts = self._late_facts, []
        for key, probe in late:
            if only_done and not probe.done():
                self._late_facts.append((key, probe))
            else:
                record_git_facts(self.history, key, probe)
