"""One attempt at a job, apart from running it: the hosts with their data, and what goes out meanwhile.

Its methods may be called by another thread than the supervisor's, one at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from shunter import system
from shunter._toolkit import channels, store, sync
from shunter.backoff import Backoff
from shunter.parallel import for_all
from shunter.schedulers.sagemaker_local_scheduler.host_making import HostMaker, HostProgram, NotPrepared
from shunter.schedulers.sagemaker_local_scheduler.hosts.host_documents import (
    Situation,
    documents,
    output_directories,
)
from shunter.schedulers.sagemaker_local_scheduler.hosts.layout import Host, Shown, Tree
from shunter.schedulers.sagemaker_local_scheduler.input_data import Channels
from shunter.schedulers.sagemaker_local_scheduler.pipes import PipeFeeder
from shunter.schedulers.supervisor.documents import is_full_disk

T = TypeVar("T")

#: Pause between two attempts to get a network.
SECONDS_BETWEEN_NETWORKS = 1.0


class Attempt:
    """An attempt at a job.

    Args:
        maker: makes the hosts.
        data_store: where data come from, and results go to. It ends what it does when it is cancelled.
        number: which attempt this is, from 1.
        is_alive: whether the program of the host with a number runs, or may run.
        tell: called with a step of the status ladder and its message, "" for the usual one.
    """

    def __init__(
        self,
        maker: HostMaker,
        data_store: store.Store,
        number: int,
        is_alive: Callable[[int], bool],
        tell: Callable[[str, str], None],
    ) -> None:
        self._maker = maker
        self._store = data_store
        self._number = number
        self._is_alive = is_alive
        self._tell = tell
        self.has_started = False
        self.trees: dict[str, Tree] = {}
        self.programs: list[HostProgram | None] = []
        self._mirrors: list[sync.Mirror] = []
        self._pipes: list[PipeFeeder] = []

    # ---- before

    def prepare(self) -> None:
        """Make the hosts with their files and data.

        Raises:
            NotPrepared: something is missing or refused.
            Cancelled: the job is to end.
        """
        try:
            self._prepare()
        except store.StoreError as error:
            raise NotPrepared(f"ClientError: Data download failed: {error}") from error
        except OSError as error:
            text = f"this machine's disk is full: {error}" if is_full_disk(error) else str(error)
            raise NotPrepared(text, is_internal=True) from error

    def _prepare(self) -> None:
        maker, request = self._maker, self._maker.request
        self._connect()
        self._tell("Downloading", "")
        self._check_target()
        maker.prepare()
        self._store.raise_if_cancelled()
        inputs = Channels(request, maker.hosts, self._store, maker.views(), maker.settings.file_systems)
        shown: list[dict[str, Shown]] = []
        for host in maker.hosts:
            tree = maker.tree(host)
            await_room(functools.partial(self._fill_tree, tree, host), self._store, maker.settings.patience)
            self.trees[host.name] = tree
            data = tree.part("input", "data")
            shown.append(inputs.prepare(host, data))
            self._restore(host, tree)
            self._pipes += inputs.pipes(host, data)
        self.programs = for_all(
            lambda host: maker.make(host, self.trees[host.name], shown[host.number]), maker.hosts
        )
        self._store.raise_if_cancelled()

    def _connect(self) -> None:
        """Get a network for the hosts; wait while all addresses are in use."""
        told = ""
        while why := self._maker.connect():
            if why != told:
                told = why
                self._tell("Starting", f"Waiting for a network: {why}")
            self._store.cancelled.wait(SECONDS_BETWEEN_NETWORKS)
            self._store.raise_if_cancelled()

    def _fill_tree(self, tree: Tree, host: Host) -> None:
        maker = self._maker
        situation = Situation(
            maker.hosts, host, maker.arn, self._number, tree.base, tree.interface, maker.names()
        )
        directories = output_directories(maker.request)
        if maker.request.get("CheckpointConfig"):
            directories.append("checkpoints")
        tree.make(directories, documents(maker.request, situation))

    def _check_target(self) -> None:
        """Check that the results can be stored, before the job runs for hours."""
        uri = self._maker.request["OutputDataConfig"]["S3OutputPath"]
        try:
            self._store.check_target(store.Place.parse(uri))
        except store.StoreError as error:
            raise NotPrepared(f"ClientError: the results could not be stored at {uri}: {error}") from error

    def _restore(self, host: Host, tree: Tree) -> None:
        config = self._maker.request.get("CheckpointConfig")
        if config:
            folder, place = tree.part("checkpoints"), store.Place.parse(config["S3Uri"])
            channels.restore(place, folder, self._store)
            mirror = sync.Mirror(
                folder,
                place,
                "checkpoints",
                self._store,
                is_alive=functools.partial(self._is_alive, host.number),
                has_writer=system.has_writer,
                warn=lambda message: None,
            )
            self._mirrors.append(mirror)

    # ---- while it runs, and after

    def start(self) -> None:
        """Begin to send checkpoints, and to feed pipes."""
        self.has_started = True
        for mirror in self._mirrors:
            mirror.start()
        for feeder in self._pipes:
            feeder.start()

    def finish(self, *, was_killed: bool) -> str:
        """Stop what `start` began, and send the last checkpoints; returns why the attempt has failed, or "".

        Args:
            was_killed: whether a program was killed, so that the files that it was writing are incomplete.
        """
        self.stop()
        self._maker.reclaim()
        for mirror in self._mirrors:
            finish = functools.partial(mirror.finish, was_killed=was_killed)
            try:
                await_room(finish, self._store, self._maker.settings.patience, may_cancel=False)
            except (store.StoreError, OSError) as error:
                return f"ClientError: Checkpoint upload failed: {error}"
        problems = [feeder.problem for feeder in self._pipes if feeder.problem]
        return f"ClientError: Data download failed: {problems[0]}" if problems else ""

    def stop(self) -> None:
        """Stop what `start` began."""
        for feeder in self._pipes:
            feeder.stop()
        for mirror in self._mirrors:
            mirror.close()


def await_room(
    action: Callable[[], T], data_store: store.Store, patience: float, *, may_cancel: bool = True
) -> T:
    """Do something, and try again while a disk is full.

    Args:
        action: what to do.
        data_store: tells whether the job is to end.
        patience: for how many seconds it is tried again.
        may_cancel: whether it is given up when the job is to end.

    Raises:
        OSError: the disk stays full.
        StoreError: the same, of a store on this machine.
        Cancelled: the job is to end.
    """
    wait = Backoff(0.2, 5.0, jitter=0, limit=patience, stop=data_store.cancelled if may_cancel else None)
    while True:
        if may_cancel:
            data_store.raise_if_cancelled()
        try:
            return action()
        except (OSError, store.StoreError) as error:
            if not is_full_disk(error) or not wait.pause():
                raise
