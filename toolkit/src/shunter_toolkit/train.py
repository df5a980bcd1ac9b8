"""``train``: what the platform starts in the container. One run from configuration to report."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from typing import NoReturn

from . import (
    child_process,
    code_download,
    environment_description,
    errors,
    failure,
    framework,
    input_config,
    install,
    job_document,
    log,
    logged_results,
    metrics,
    opt_ml,
    orphans,
    race_lease,
    script_command,
    script_launch,
    script_watch,
    usage_log,
)
from .child_process import DEFAULT_GRACE, STOP_SIGNALS, Outcome, Policy
from .end_notice import EndNotice
from .environment import Environment
from .host_names import HostNames
from .layout import Layout
from .mapping import to_json
from .masking import Masker
from .outputs import Results

Observer = Callable[[bytes], None]


class Training:
    """One run of ``train``.

    Args:
        layout: the paths of the job.
        argv: the script's arguments exactly as given; None maps the hyperparameters.
        job: the path or text of a job document, or None for a prepared base directory.
        refusal: why the script cannot be run, if that is known already.
    """

    def __init__(
        self,
        layout: Layout,
        argv: Sequence[str] | None = None,
        job: str | None = None,
        refusal: errors.ToolkitError | None = None,
    ) -> None:
        self.layout = layout
        self.refusal = refusal
        self.argv = argv
        self.job_source = job
        self.job: job_document.Job | None = None
        self.environment: Environment | None = None
        self.masker = Masker()
        log.set_mask(self.masker.text)
        self.results: Results | None = None
        self.names: HostNames | None = None
        self.watch: script_watch.ScriptWatch | None = None
        self.usage: usage_log.UsageLog | None = None
        self.notice = EndNotice(os.environ)  # takes its variables out of the environment
        self._line: list[str] = []
        self.status = 0
        # taken out of the environment, so that the script does not get it
        self.results_form = os.environ.pop(logged_results.FORM, "")

    def run(self) -> int:
        """Run the job and return the exit code. Never raises."""
        writer = failure.Writer(self.layout)
        writer.prepare()
        report = None
        try:
            report = self._attempt()
        except BaseException as error:  # whatever it is, the report says so
            report = failure.from_error(error)
        report = self._finish(report)
        if report is None:
            writer.succeed()
        else:
            self._complete(report)
            writer.fail(report, self.masker)
            text = report.text() if log.shows(log.INFO) else report.brief()
            if text:
                log.write(log.WARNING if report.stopped else log.ERROR, text)
        if self.job is not None and self.job.output.get("log"):
            self._return_results()
        if self.job is not None:
            self.layout.hand_over(*self.job.local_targets())
        code = 0 if report is None else report.exit_code
        self.notice.send(report, code, self.masker)
        return code

    def _return_results(self) -> None:
        """Send the results by the form that came with the job, or write small ones to the log."""
        if self.results_form:
            from . import posted_results  # its clients of HTTP take longer to load than most jobs need

            if posted_results.send(self.layout, self.results_form):
                return
        logged_results.write(self.layout)

    def _attempt(self) -> failure.Report | None:
        """Prepare and run the script; return the failure, None after success."""
        _on_stop(_raise_stopped)
        if self.refusal is not None:
            raise self.refusal
        if self.job_source:
            self.job = job_document.load(self.job_source)
            # On a platform, users look for these lines in its log; on a terminal, they would be in the way.
            log.set_level(log.INFO if self.job.log_level else log.WARNING)
            self.masker.add(self.job.hyperparameters)
            self._find_hosts(self.job)
            self.job.prepare(self.layout)
            if self.argv is None and "arguments" in self.job.document:
                self.argv = self.job.arguments
        env = self.environment = Environment(layout=self.layout)
        self.masker.add(env.hyperparameters)
        if self.job is None or self.job.log_level:
            log.set_level(env.log_level)
        self.layout.make_writable_dirs()
        variables = script_launch.script_environment(env, os.environ)
        if env.framework_module:
            return self._run_framework(env, variables, env.framework_module)
        return self._run_script(env, env.user_entry_point or "", variables)

    def _find_hosts(self, job: job_document.Job) -> None:
        """Make the hosts' names resolve, or replace them by addresses."""
        self.names = HostNames(job)
        job.addresses = self.names.find()

    def _bring_code(self, env: Environment, name: str, variables: dict[str, str]) -> None:
        """Fetch the code if it is not in the image, and install what it needs."""
        code = self.layout.code
        if env.module_dir != code:
            code_download.fetch_code(env.module_dir, code)
        script_command.check(code, name, anywhere=self.job is not None)
        description = os.environ.get(environment_description.VARIABLE)
        if description:
            from . import environment_store

            environment_store.activate(description, code, variables)
        elif script_command.needs_install(code, name):
            install.install(code, name, variables)

    def _run_script(self, env: Environment, name: str, variables: dict[str, str]) -> failure.Report | None:
        args = env.to_cmd_args() if self.argv is None else list(self.argv)
        self.masker.add(args)
        if self.argv is not None:
            variables["SM_USER_ARGS"] = to_json(args)
        for variable in script_launch.drop_too_long(variables):
            log.warning(f"The variable {variable} is left out: it is longer than the system allows.")
        self._open_results(env)
        recorders = self._recorders()
        self._open_watch(env, variables)
        self.usage = usage_log.asked_for(os.environ)
        run = script_launch.Launch(
            env,
            name,
            args,
            variables,
            self._policy(),
            self.layout.code,
            owns_process=True,
            observers=self._observers({fd: recorder.observe for fd, recorder in recorders.items()}),
        )

        def prepare() -> None:
            self._bring_code(env, name, variables)
            self._announce(env, variables, run.script())

        run.prepare = prepare
        try:
            outcome = script_launch.run(run)
        finally:
            if self.watch is not None:
                self.watch.end()
            if self.usage is not None:
                self.usage.end()
        for recorder in recorders.values():
            recorder.close()
        return self._judge(outcome, run)

    def _run_framework(self, env: Environment, variables: dict[str, str], name: str) -> failure.Report | None:
        """Run a framework's own entry function, named ``package.module:function``, in a child."""
        self._open_results(env)
        command = framework.command(name, variables, self.layout.code)
        self._announce(env, variables, command.argv)
        run = script_launch.Launch(
            env, name, [], variables, self._policy(), self.layout.code, owns_process=True
        )
        return self._judge(run.supervise(command), run)

    def _judge(self, outcome: Outcome, run: script_launch.Launch) -> failure.Report | None:
        ended_by_itself = outcome.stop_signal is None and not outcome.timed_out
        if ended_by_itself:
            self.status = outcome.status
        if self.watch is not None and self.watch.stop_reason and outcome.stop_signal is None:
            return failure.from_hang(outcome, run.name, self.watch.stop_reason)
        if outcome.status == 0 and ended_by_itself:
            return None
        return failure.from_outcome(outcome, run.name, run.memory_kills())

    def _policy(self) -> Policy:
        """Time limits, from the environment and the job document, which wins."""
        policy = Policy(input_config.env_number("SHUNTER_GRACE_SECONDS", DEFAULT_GRACE))
        policy.timeout = input_config.env_number("SHUNTER_TIMEOUT_SECONDS", 0.0) or None
        policy.on_start = self._begin
        if self.job is not None:
            policy.on_stop = self.job.start_stop_hook
            policy.timeout = self.job.timeout_seconds or policy.timeout
            if self.job.grace_seconds is not None:
                policy.grace = self.job.grace_seconds
        if self.watch is not None:
            self.watch.grace = policy.grace
        return policy

    def _begin(self, pid: int) -> None:
        """Watch the script, which runs now, and what it writes. The watch forks; threads start after that."""
        if self.watch is not None:
            self.watch.start(pid)
        if self.results is not None:
            self.results.start()
        if self.usage is not None:
            self.usage.start()

    def _open_watch(self, env: Environment, variables: dict[str, str]) -> None:
        """Prepare to watch the script for hangs, if requested and if its output comes to this host."""
        kind = script_launch.distribution_of(env)
        if kind in (script_launch.MPI, script_launch.SMDDP) and not env.is_master:
            return  # mpirun brings the output to the first host
        folders = [self.layout.model, self.layout.output_data, self.layout.checkpoints]
        self.watch = script_watch.asked_for(os.environ, folders)
        if self.watch is not None:
            self.watch.prepare(variables)

    def _observers(self, recorders: dict[int, Observer]) -> dict[int, Observer]:
        """The functions that get the script's output as it passes, by descriptor."""
        watch = self.watch
        if watch is None:
            return recorders

        def observer(other: Observer | None) -> Observer:
            def observe(data: bytes) -> None:
                watch.observe(data)
                if other is not None:
                    other(data)

            return observe

        return {fd: observer(recorders.get(fd)) for fd in (1, 2)}

    def _recorders(self) -> dict[int, metrics.Recorder]:
        """The recorders of metrics in the output, by descriptor; none if no metrics are defined."""
        text = os.environ.get("SHUNTER_METRICS", "")
        definitions = list(self.job.metrics) if self.job is not None else []
        if not text and not definitions:
            return {}
        if text:
            definitions += metrics.parse_definitions(input_config.decode_value(text))
        path = self.layout.metrics
        return {fd: metrics.Recorder(definitions, path, name) for fd, name in ((1, "stdout"), (2, "stderr"))}

    def _open_results(self, env: Environment) -> None:
        """Begin to watch the folders that are sent while the script runs, if any are."""
        sends = self.job is not None and (self.job.output.get("uri") or self.job.checkpoints.get("uri"))
        if sends or env.sagemaker_s3_output():
            self.results = Results(self.layout, env, self.job)
            self.results.open()

    def _announce(self, env: Environment, variables: dict[str, str], line: Sequence[str]) -> None:
        """Print the contract's variables and the command, secrets masked."""
        self._line = list(line)
        if not log.shows(log.INFO):
            return
        show = self.masker.variable
        lines = [f"{n}={show(n, v)}" for n, v in sorted(variables.items()) if n.startswith("SM_")]
        log.info(f"Environment of the script on {env.current_host}:\n" + "\n".join(lines))
        log.info(f"Running {self.masker.command(line)}")

    def _complete(self, report: failure.Report) -> None:
        """Add what only the run knows to a report."""
        fields = report.fields
        fields["command"] = self.masker.command(self._line) if self._line else None
        if self.environment is not None and fields["host"] is None:
            fields["host"] = script_launch.host_of_rank(self.environment, fields["rank"])

    def _finish(self, report: failure.Report | None) -> failure.Report | None:
        """Send the results.

        If that fails, a successful run becomes a failed one; a failed run keeps its failure.
        """
        _on_stop(_note_stop)
        try:
            if self.results is not None:
                self.results.finish(succeeded=report is None or report.stopped)
        except Exception as error:
            if report is None:
                return failure.from_error(error)
            log.error(f"The results could not all be saved: {error}")
        finally:
            if self.names is not None:
                self.names.close()
        return report


def _on_stop(handler: object) -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, handler)  # type: ignore[arg-type]


def _raise_stopped(number: int, frame: object) -> NoReturn:
    raise errors.StoppedError(number)


def _note_stop(number: int, frame: object) -> None:
    log.warning("Asked to stop while the results are being saved; saving continues.")


def train(argv: Sequence[str] | None = None, job: str | None = None) -> int:
    """Run the job that the base directory, or the job document, describes.

    Args:
        argv: the script's arguments exactly as given; None maps the hyperparameters to arguments.
        job: the path or text of a job document; None reads ``SHUNTER_JOB``.

    Returns:
        The exit code: the script's own, 128 + the signal's number, or that of the error.
    """
    code = race_lease.enter()
    if code:
        return code
    orphans.adopt()
    job = job or os.environ.get("SHUNTER_JOB")
    layout = Layout.for_job() if job else Layout()
    refusal = None
    if opt_ml.is_wanted(os.environ):
        try:
            opt_ml.enter(layout.base)
        except errors.ClientError as error:
            refusal = error
    training = Training(layout, argv, job, refusal)
    code = training.run()
    if job and training.status < 0:
        child_process.end_by(-training.status)  # as the script did: our parent looks at the signal
    return code
