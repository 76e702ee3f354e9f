"""One run at a time on one checkpoint, on whichever machine: a file `penstock.lease` in the checkpoint, which its
holder writes again and again with a higher beat. Knows files, processes of this machine, and its own clock; compares no
times of two machines. Spark does not look at the file.

No storage that we write to can be asked to make a file only if it is not there. So whoever wants the lease writes it,
waits a moment, and has it if it is still there. Two cannot both have it: whoever took longer than half of that moment
from the look before his writing to its end withdraws. So if the later of two has not withdrawn, he looked after the
earlier one had written, and saw that.

A holder that does not run, as in a paused machine, cannot know what it lost. It knows when it runs again. Until then
Spark's own log stops one of both: a batch is planned once.
"""

import json
import logging
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock.checkpoints import storage
from penstock.errors import ConnectError, OptionError

log = logging.getLogger("penstock")

FILE = "penstock.lease"
TTL = 30.0
SETTLE = 1.0
ATTEMPTS = 5


class InUseError(OptionError):
    """Another run has the checkpoint."""


@dataclass(frozen=True)
class Holder:
    """Who has a lease. `boot` and `processes` tell where a process id means something: the start of a machine, and the
    container. `started` is for people to read.
    """

    owner: str
    host: str
    boot: str
    processes: str
    pid: int
    started: str
    beat: int

    @classmethod
    def here(cls) -> "Holder":
        """The process that runs this, as a new holder."""
        boot = processes = ""
        with suppress(OSError):
            boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        with suppress(OSError):
            processes = str(Path("/proc/self/ns/pid").readlink())
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(uuid.uuid4().hex, platform.node(), boot, processes, os.getpid(), now, 0)

    def encode(self) -> bytes:
        """The content of the file."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, content: bytes) -> "Holder | None":
        """From the file; None where it is damaged, or is just being written."""
        try:
            body = json.loads(content)
            holder = cls(**{field.name: field.type(body[field.name]) for field in fields(cls)})  # type: ignore[operator]
        except (ValueError, KeyError, TypeError):
            return None
        return holder

    def is_dead(self) -> bool:
        """Whether it was a process of this machine that has ended. False for all that cannot be known."""
        here = Holder.here()
        if (self.host, self.boot, self.processes) != (here.host, here.boot, here.processes):
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        with suppress(OSError):  # ended, but nobody has asked for its exit code
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        return False

    def __str__(self) -> str:
        return f"process {self.pid} on host {self.host} since {self.started}"


class Lease:
    """The right to run on a checkpoint, of which there is one. A thread renews it, six times in `ttl` seconds.

    `on_lost` is called once, by another thread, when another run has it, or when nothing could be written for `ttl`
    seconds: then another run may take it. What is to be stopped must be stopped there. `settle`: the moment that a new
    holder waits; it must be the same for all who want a lease.
    """

    def __init__(
        self, location: str, *, ttl: float = TTL, settle: float = SETTLE, on_lost: Callable[[], None] | None = None
    ):
        self.folder, self.ttl, self.settle, self.on_lost = storage.folder(location), ttl, settle, on_lost
        self._me = Holder.here()
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._ended.set()  # until it is taken
        self._until = 0.0  # by the clock of this process, which others may take over from then on
        self._damaged: bytes | None = None  # what the last look found, where it was no lease
        self._keeper: threading.Thread | None = None

    @property
    def held(self) -> bool:
        """Whether it is taken, and neither lost nor released."""
        return not self._ended.is_set()

    def take(self) -> Self:
        """Take it, and go on renewing it. An InUseError where another run has it.

        That of a dead process of this machine is taken at once. Any other is watched for a little longer than `ttl`,
        and taken if nothing moves: its holder knows by then that it has lost it.
        """
        self._me = Holder.here()
        for _ in range(ATTEMPTS):
            seen = self._read()
            if seen is not None:
                seen = self._outlast(seen)
            if self._claim(seen):
                return self
        raise ConnectError(
            f"no lease on the checkpoint '{self.folder.location}' could be taken in {ATTEMPTS} attempts: to write a "
            f"small file there takes longer than {self.settle / 2:g}s, or others write it too. Try again later."
        )

    def _outlast(self, seen: bytes) -> bytes | None:
        """Wait until a lease is dead, and give what is there of it. An InUseError where it lives."""
        holder = Holder.parse(seen)
        if holder is not None and holder.is_dead():
            return seen
        until = time.monotonic() + self.ttl * 7 / 6
        while time.monotonic() < until:
            time.sleep(self.ttl / 60)
            now = self._read()
            if now is None:
                return None
            if now != seen:
                raise self._in_use(now)
        return seen

    def _claim(self, seen: bytes | None) -> bool:
        """Whether it is ours now. Not if what is there is no longer what was `seen`, or if we were too slow."""
        began = time.monotonic()
        if self._read() != seen:
            return False
        self._write()
        if time.monotonic() - began > self.settle / 2:
            # Perhaps somebody has it since, and we wrote over it: at the next renewal it is written again.
            self._remove_mine()
            time.sleep(self.ttl / 6 + self.settle)
            return False
        time.sleep(self.settle)
        now = self._read()
        if now is None:
            return False
        if now != self._me.encode():
            raise self._in_use(now)
        self._until = began + self.ttl
        self._ended.clear()
        self._keeper = threading.Thread(target=self._keep, name="penstock-lease", daemon=True)
        self._keeper.start()
        # By itself, as storage that hangs holds up whoever waits for it.
        threading.Thread(target=self._watch, name="penstock-lease-watch", daemon=True).start()
        return True

    def renew(self) -> None:
        """Write it once more. A ConnectError where the storage fails; lost is lost, see `held`."""
        began = time.monotonic()
        found = self._read()
        holder = None if found is None else Holder.parse(found)
        if holder is not None and holder.owner != self._me.owner:
            self._lose(f"{holder} has taken it")
            return
        if found is not None and holder is None:
            # Somebody may be writing. Whoever takes so long that it looks the same the next time withdraws, and nobody
            # who has watched us may take it before `_until`: then it is damaged, and ours.
            if found != self._damaged or began >= self._until:
                self._damaged = found
                return
            log.warning("%s was damaged (%r), and is written again by its holder", self._place, found[:40])
        self._damaged = None
        self._me = replace(self._me, beat=self._me.beat + 1)
        self._write()
        if self.held:
            self._until = began + self.ttl
        else:  # lost or released while the storage took its time
            self._remove_mine()

    def release(self) -> None:
        """Give it up. What is written by another holder stays. Storage that fails is no error: nobody renews it."""
        with self._lock:
            self._ended.set()
        if self._keeper is not None and self._keeper is not threading.current_thread():
            self._keeper.join(self.settle)
        try:
            self._remove_mine()
        except ConnectError as error:
            log.warning("the lease on '%s' was not removed, and ends by itself: %s", self.folder.location, error)

    def require(self) -> None:
        """An InUseError where it is not held any more."""
        if not self.held:
            raise InUseError(f"the lease on the checkpoint '{self.folder.location}' was lost: another run may use it.")

    def _keep(self) -> None:
        wait = self.ttl / 6
        while not self._ended.wait(wait):
            try:
                self.renew()
                wait = self.ttl / 6
            except ConnectError as error:
                log.warning("the lease on '%s' could not be renewed: %s", self.folder.location, error)
                wait = self.ttl / 30

    def _watch(self) -> None:
        while not self._ended.wait(max(0.0, self._until - time.monotonic())):
            if time.monotonic() >= self._until:
                self._lose(f"it could not be renewed for {self.ttl:g}s")

    def _lose(self, why: str) -> None:
        with self._lock:
            if self._ended.is_set():
                return
            self._ended.set()
        log.error("the lease on the checkpoint '%s' is lost: %s", self.folder.location, why)
        if self.on_lost is not None:
            self.on_lost()

    def _read(self) -> bytes | None:
        return self.folder.read(FILE)

    def _write(self) -> None:
        self.folder.write(FILE, self._me.encode())

    def _remove_mine(self) -> None:
        holder = Holder.parse(self._read() or b"")
        if holder is not None and holder.owner == self._me.owner:
            self.folder.remove(FILE)

    def _in_use(self, content: bytes) -> InUseError:
        holder = Holder.parse(content)
        if holder is None:
            return InUseError(
                f"pipeline checkpoint '{self.folder.location}' is in use: {self._place} was changed a moment ago. "
                f"Whose it is cannot be read ({content[:40]!r}). Stop that run first; if there is none, try "
                f"again after {self.ttl:g}s."
            )
        return InUseError(f"pipeline checkpoint '{self.folder.location}' is in use by {holder}: stop it first.")

    @property
    def _place(self) -> str:
        return f"the file '{self.folder.location}/{FILE}'"

    def __enter__(self) -> Self:
        return self if self.held else self.take()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.release()
