"""A script that a framework's own code runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import failure
from .. import script_launch as launching
from ..errors import ExecuteUserScriptError

if TYPE_CHECKING:
    from ..child_process import Outcome


class Running:
    """A script that runs here, or on a thread. ``wait()`` gives its outcome or raises its error."""

    def __init__(self, launch: launching.Launch, distribution: str) -> None:
        self._launch = launch
        self._distribution = distribution
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None

    def run(self) -> Outcome:
        """Run to the end on this thread.

        Raises:
            ExecuteUserScriptError: the script failed.
        """
        outcome = launching.run(self._launch, self._distribution)
        if outcome.status != 0:
            report = failure.from_outcome(outcome, self._launch.name)
            raise ExecuteUserScriptError(
                self._launch.name,
                outcome.status,
                outcome.stderr,
                message=report.text(),
                details=report.fields,
            )
        return outcome

    def start(self) -> None:
        """Start the thread."""
        import threading

        self._thread = threading.Thread(target=self._keep, name="shunter-script", daemon=True)
        self._thread.start()

    def _keep(self) -> None:
        try:
            self._outcome = self.run()
        except BaseException as error:
            self._error = error

    def wait(self) -> Outcome:
        """Wait for the end.

        Raises:
            ExecuteUserScriptError: the script failed.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None while it runs, 1 if it could not be started."""
        if self._thread.is_alive():
            return None
        if self._outcome is not None:
            return self._outcome.status
        status = getattr(self._error, "return_code", None)
        return int(status) if status not in (None, "None") else 1
