"""One worker as a process: start it, send it commands, wait for its replies, and end it for certain.

A worker that dies, hangs or answers nonsense is turned into a `Failed` reply here, so that the conductor
sees one kind of trouble.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from kernelperf.protocol import Command, Failed, Reply

LOG_TAIL_LINES = 40
# How long a worker that has closed its pipe, or was told to stop, may take to be gone.
EXIT_GRACE_S = 10.0
# A worker's death is also looked for at this interval: a child of its own may hold its pipe open.
_POLL_S = 0.5
_CHUNK_BYTES = 1 << 20

_decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


class WorkerProcess:
    """A started worker, in a session of its own, so that ending its group ends all that it started."""

    def __init__(
        self,
        label: str,
        command: Sequence[str],
        *,
        log: Path,
        cwd: Path,
        environ: Mapping[str, str],
        time_limit_s: float,
    ) -> None:
        self.label = label
        self.log = log
        self.time_limit_s = time_limit_s
        self.spent_s = 0.0  # with a command outstanding: waiting for its turn costs a workload nothing
        self._doing = ""
        self._sent_at: float | None = None
        self._received = b""
        self._ended = False
        commands_read, self._commands = os.pipe()
        self._replies, replies_write = os.pipe()
        try:
            with log.open("wb") as output:
                self._process = subprocess.Popen(
                    [*command, str(commands_read), str(replies_write)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(commands_read, replies_write),
                    start_new_session=True,
                    cwd=cwd,
                    env=dict(environ),
                )
        except BaseException:
            os.close(self._commands)
            os.close(self._replies)
            raise
        finally:
            os.close(commands_read)
            os.close(replies_write)

    @property
    def pid(self) -> int:
        """The process id, which is also its session's and group's."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._process.poll() is None

    def fileno(self) -> int:
        """Return the descriptor to wait on for replies."""
        return self._replies

    def send(self, command: Command) -> None:
        """Send a command; a worker that is already gone shows when the reply is taken."""
        self._doing = type(command).__name__
        self._sent_at = time.monotonic()
        with contextlib.suppress(BrokenPipeError):
            os.write(self._commands, msgspec.json.encode(command) + b"\n")

    def remaining_s(self) -> float:
        """Return what is left of its time limit."""
        running = time.monotonic() - self._sent_at if self._sent_at is not None else 0.0
        return self.time_limit_s - self.spent_s - running

    def receive(self) -> None:
        """Take in what the pipe holds; call it when the descriptor is readable."""
        chunk = os.read(self._replies, _CHUNK_BYTES)
        self._received += chunk
        if not chunk:  # it has closed the pipe, so it is ending: wait for how it ends
            self._wait(EXIT_GRACE_S)
            self._process.kill()

    def take_reply(self) -> Reply | None:
        """Return the reply if there is one, or what befell the worker; None while it works."""
        line, newline, rest = self._received.partition(b"\n")
        if newline:
            self._received = rest
            self._settle()
            return self._decode(line)
        if not self.alive:
            return Failed(kind="crash", cause=self._death(), detail=self.log_tail())
        if self.remaining_s() <= 0:
            self.kill()
            return Failed(kind="timeout", cause=self._overdue(), detail=self.log_tail())
        return None

    def stop(self, command: Command) -> None:
        """Tell it to end, wait a little, and make sure."""
        if self.alive:
            self.send(command)
            self._wait(EXIT_GRACE_S)
        self.kill()

    def kill(self) -> None:
        """End the worker and everything in its process group, and close the pipes."""
        if self._ended:
            return
        self._ended = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._wait(EXIT_GRACE_S)  # not for ever: a process stuck in the driver can't be killed
        for descriptor in (self._commands, self._replies):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def log_tail(self) -> str:
        """Return the end of what it printed."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    def _settle(self) -> None:
        if self._sent_at is not None:
            self.spent_s += time.monotonic() - self._sent_at
        self._sent_at = None

    def _decode(self, line: bytes) -> Reply:
        try:
            return _decoder.decode(line)
        except msgspec.MsgspecError as error:
            self.kill()
            cause = f"the worker's answer to {self._doing} can't be read ({error}): {line[:200]!r}"
            return Failed(kind="crash", cause=cause, detail=self.log_tail())

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def _death(self) -> str:
        return f"the worker {_how_it_ended(self._process.returncode)} during {self._doing}"

    def _overdue(self) -> str:
        return (
            f"{self._doing} was still running when the workload's time limit of {self.time_limit_s:g} s "
            f"was used up; raise time_limit_s= in its declaration if it needs longer"
        )


def gather(
    commands: Mapping[WorkerProcess, Command], meanwhile: Callable[[], object] = lambda: None
) -> Iterator[tuple[WorkerProcess, Reply]]:
    """Send each worker its command, do something meanwhile, and give each reply as it comes."""
    with selectors.DefaultSelector() as selector:
        for worker, command in commands.items():
            worker.send(command)
            selector.register(worker, selectors.EVENT_READ)
        meanwhile()
        waiting = list(commands)
        while waiting:
            patience_s = min(_POLL_S, *(worker.remaining_s() for worker in waiting))
            for key, _ in selector.select(max(0.0, patience_s)):
                key.fileobj.receive()  # type: ignore[union-attr]  # only workers are registered
            for worker in list(waiting):
                descriptor = worker.fileno()
                reply = worker.take_reply()
                if reply is not None:
                    waiting.remove(worker)
                    selector.unregister(descriptor)
                    yield worker, reply


def _how_it_ended(status: int) -> str:
    if status >= 0:
        return f"exited with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", as the kernel does when memory runs out," if -status == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
