"""The machine and the stack that a recording was made on, and what makes two of them comparable.

The GPU is asked through NVML, never through torch: the pytest process holds no CUDA context.  Without a
driver every answer is None.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import operator
import os
import re
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelperf.errors import NotMeasurable
from kernelperf.protocol import DeviceFacts

# Salted, so that a card's UUID can't be looked up from what is stored.
_CARD_SALT = b"kernelperf card\0"
_CARD_DIGITS = 12
_GIB = 2**30
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
# Where GPUs differ, CUDA numbers them fastest first; NVML numbers them by bus.  Workers get this order.
DEVICE_ORDER = ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")


@dataclass(frozen=True, slots=True)
class Hardware:
    """What keys a baseline: two recordings are compared only if these are equal."""

    gpu: str  # "NVIDIA H200"
    sm_count: int
    memory_bytes: int  # to the nearest GiB: drivers reserve a little more or less of it
    compute_capability: str  # "9.0"
    mig: str  # "" where MIG is off, else the profile, "1g.18gb"
    power_limit_w: int | None

    @property
    def slug(self) -> str:
        """The name of its folder under ``baselines/``: ``nvidia-h200``."""
        named = f"{self.gpu} {self.mig}" if self.mig else self.gpu
        return re.sub(r"[^a-z0-9.]+", "-", named.lower()).strip("-.")


@dataclass(frozen=True, slots=True)
class GpuState:
    """The GPU's state as NVML told it while bursts ran and right after; None where it can't tell."""

    sm_clock_mhz: int | None = None  # the median of one sample a burst
    temperature_c: int | None = None
    power_w: float | None = None
    event_reasons: int | None = None  # every clock-event reason that was set in a sample
    other_processes: int | None = None
    memory_clock_mhz: int | None = None
    ecc: bool | None = None
    uncorrected_errors: int | None = None  # of the memory, since the driver was loaded


@dataclass(frozen=True, slots=True)
class Sample:
    """What changes within a burst's time."""

    sm_clock_mhz: int | None = None
    event_reasons: int | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """Hardware, card and software stack of one recording."""

    hardware: Hardware
    card: str  # a salted hash of the GPU's UUID: tells two cards apart, not which they are
    stack: tuple[tuple[str, str], ...]  # sorted: ("cuda", "13.0"), ("driver", …), ("torch", …), …
    lane: str = ""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """The GPU that a worker would run on, as NVML tells it."""

    name: str
    compute_capability: str  # "9.0"
    memory_bytes: int  # of the whole card, or of the MIG instance
    mig: str  # "" or the instance's profile, "1g.18gb"
    power_limit_w: int | None
    driver: str
    uuid: str  # for this process only: never stored
    exclusive: bool  # the card admits one process at a time

    @property
    def card(self) -> str:
        """A salted hash of the UUID."""
        return card_hash(self.uuid)


def card_hash(uuid: str) -> str:
    """Return what is stored instead of a GPU's UUID, with or without prefix; empty for an empty one."""
    bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
    return hashlib.sha256(_CARD_SALT + bare.encode()).hexdigest()[:_CARD_DIGITS] if bare else ""


def find_gpu(uuid: str = "", environ: Mapping[str, str] = os.environ) -> GpuInfo | None:
    """Return the GPU of this UUID, else the first that ``CUDA_VISIBLE_DEVICES`` admits.

    None without a driver, without a GPU, or where the variable admits none that exists.
    """
    with _nvml() as nvml:
        if nvml is None:
            return None
        try:
            found = _handle(nvml, uuid, environ.get("CUDA_VISIBLE_DEVICES"))
            return None if found is None else _describe(nvml, found)
        except nvml.NVMLError:
            return None


class GpuWatch:
    """Asks NVML about one GPU while workers time on it; NVML stays open in between."""

    def __init__(self, uuid: str) -> None:
        self._opened = contextlib.ExitStack()
        self._nvml: Any = self._opened.enter_context(_nvml())
        self._device = _handle_or_none(self._nvml, uuid) if self._nvml is not None and uuid else None
        self._card = None if self._device is None else _parent(self._nvml, self._device)

    def close(self) -> None:
        """Let NVML go."""
        self._opened.close()

    def sample(self) -> Sample:
        """Return clock and clock-event reasons of this moment: take it while a burst runs."""
        if self._card is None:
            return Sample()
        nvml, card = self._nvml, self._card
        return Sample(
            sm_clock_mhz=_ask(nvml, nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_SM),
            event_reasons=_event_reasons(nvml, card),
        )

    def state(self, samples: Sequence[Sample], own_processes: int) -> GpuState:
        """Return the state that bursts were timed in, from one sample each and the rest as it is now.

        ``own_processes`` is how many of the processes on the GPU are ours.  Other processes read None where
        NVML doesn't show even ours, as in most containers.

        Raises `NotMeasurable` without a sample: nothing is known of a state that nobody looked at.
        """
        if not samples:
            raise NotMeasurable("no sample of the GPU's state was taken; take one in every burst")
        if self._card is None:
            return GpuState()
        nvml, card = self._nvml, self._card
        clocks = [sample.sm_clock_mhz for sample in samples if sample.sm_clock_mhz is not None]
        reasons = [sample.event_reasons for sample in samples if sample.event_reasons is not None]
        power_mw = _ask(nvml, nvml.nvmlDeviceGetPowerUsage, card)
        ecc = _ask(nvml, nvml.nvmlDeviceGetEccMode, card)
        running = _ask(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, self._device)
        return GpuState(
            sm_clock_mhz=statistics.median_low(clocks) if clocks else None,
            temperature_c=_ask(nvml, nvml.nvmlDeviceGetTemperature, card, nvml.NVML_TEMPERATURE_GPU),
            power_w=None if power_mw is None else power_mw / 1000,
            event_reasons=functools.reduce(operator.or_, reasons) if reasons else None,
            other_processes=None
            if running is None or len(running) < own_processes
            else len(running) - own_processes,
            memory_clock_mhz=_ask(nvml, nvml.nvmlDeviceGetClockInfo, card, nvml.NVML_CLOCK_MEM),
            ecc=None if ecc is None else bool(ecc[0]),
            uncorrected_errors=_ask(
                nvml,
                nvml.nvmlDeviceGetTotalEccErrors,
                card,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                nvml.NVML_VOLATILE_ECC,
            ),
        )


def assemble(
    device: DeviceFacts, gpu: GpuInfo | None, stack: Mapping[str, str], lane: str = ""
) -> Environment:
    """Return the environment of a worker from what its torch and what NVML say."""
    versions = dict(stack)
    if gpu is not None:
        versions["driver"] = gpu.driver
    return Environment(
        hardware=Hardware(
            gpu=_base_name(device.name),
            sm_count=device.sm_count,
            memory_bytes=round(device.memory_bytes / _GIB) * _GIB,
            compute_capability=device.compute_capability,
            mig=gpu.mig if gpu else "",
            power_limit_w=gpu.power_limit_w if gpu else None,
        ),
        card=card_hash(device.uuid) or (gpu.card if gpu else ""),
        stack=tuple(sorted(versions.items())),
        lane=lane,
    )


def host_memory_available_bytes() -> int | None:
    """Return how much memory this host, or the container around us, can still give; None if unknown."""
    try:
        free = _field(_MEMINFO, "MemAvailable:") * 1024
    except (OSError, ValueError):
        return None
    try:
        limit = int((_CGROUP / "memory.max").read_text())
        used = int((_CGROUP / "memory.current").read_text()) - _field(
            _CGROUP / "memory.stat", "inactive_file"
        )
    except (OSError, ValueError):  # no version 2 cgroup, or one without a limit ("max")
        return free
    return min(free, limit - used)


def _field(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise ValueError(f"{path} has no {name!r}")


def _base_name(name: str) -> str:
    """``NVIDIA H200 MIG 1g.18gb`` is how torch names an instance; the profile is stored apart."""
    return re.sub(r" MIG .*$", "", name)


@contextlib.contextmanager
def _nvml() -> Iterator[Any]:
    """Give the NVML binding, initialised, or None where there is no driver."""
    import pynvml  # type: ignore[import-untyped]  # it has no annotations

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


def _handle(nvml: Any, uuid: str, visible: str | None) -> Any | None:
    if uuid:
        return _handle_or_none(nvml, uuid)
    if visible is None:
        return _first_device(nvml, 0)
    first = visible.split(",")[0].strip()
    if first.isdigit():
        return _first_device(nvml, int(first))
    return _handle_or_none(nvml, first) or _by_uuid_prefix(nvml, first)


def _first_device(nvml: Any, index: int) -> Any | None:
    """The GPU of this index; its first instance where it is split, since CUDA then shows only that."""
    if index >= nvml.nvmlDeviceGetCount():
        return None
    card = nvml.nvmlDeviceGetHandleByIndex(index)
    return next(iter(_instances(nvml, card)), card)


def _instances(nvml: Any, card: Any) -> Iterator[Any]:
    for index in range(_ask(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, card) or 0):
        instance = _ask(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex, card, index)
        if instance is not None:
            yield instance


def _handle_or_none(nvml: Any, uuid: str) -> Any | None:
    """Look a UUID up as it is, and with the prefixes that torch leaves out."""
    for candidate in (uuid, f"GPU-{uuid}", f"MIG-{uuid}"):
        handle = _ask(nvml, nvml.nvmlDeviceGetHandleByUUID, candidate)
        if handle is not None:
            return handle
    return None


def _by_uuid_prefix(nvml: Any, prefix: str) -> Any | None:
    """CUDA takes an abbreviated UUID, as long as it is unique."""
    if not prefix.startswith(("GPU-", "MIG-")):
        return None
    cards = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    everything = [device for card in cards for device in (card, *_instances(nvml, card))]
    matching = [device for device in everything if nvml.nvmlDeviceGetUUID(device).startswith(prefix)]
    return matching[0] if len(matching) == 1 else None


def _parent(nvml: Any, device: Any) -> Any:
    """The card that a MIG instance is part of: clocks, power and limits are the card's."""
    return _ask(nvml, nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device) or device


def _describe(nvml: Any, device: Any) -> GpuInfo:
    card = _parent(nvml, device)
    named = nvml.nvmlDeviceGetName(device)
    profile = re.search(r" MIG (\S+)$", named)
    limit_mw = _ask(nvml, nvml.nvmlDeviceGetPowerManagementLimit, card)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(card)
    return GpuInfo(
        name=_base_name(named),
        compute_capability=f"{major}.{minor}",
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(device).total),
        mig=profile.group(1) if profile else "",
        power_limit_w=None if limit_mw is None else round(limit_mw / 1000),
        driver=nvml.nvmlSystemGetDriverVersion(),
        uuid=nvml.nvmlDeviceGetUUID(device),
        exclusive=_ask(nvml, nvml.nvmlDeviceGetComputeMode, card) == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS,
    )


def _event_reasons(nvml: Any, card: Any) -> int | None:
    reasons = _ask(nvml, nvml.nvmlDeviceGetCurrentClocksEventReasons, card)
    if reasons is None:  # drivers before 535 know it by its older name
        reasons = _ask(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, card)
    return reasons


def _ask(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any | None:
    """Ask NVML, and take "not supported" and the like for "can't tell"."""
    try:
        return question(*arguments)
    except nvml.NVMLError:
        return None
