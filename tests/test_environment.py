"""The GPU is found through NVML as CUDA would choose it, and every answer is None where NVML can't tell."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from kernelperf.environment import (
    GpuState,
    GpuWatch,
    Hardware,
    assemble,
    card_hash,
    find_gpu,
    host_memory_available_bytes,
)
from kernelperf.errors import NotMeasurable
from kernelperf.protocol import DeviceFacts

A = "GPU-a33884df-6f51-bb7a-adbc-e267c962ebc2"
B = "GPU-b11184df-0000-bb7a-adbc-e267c962ebc2"
MIG = "MIG-c0ffee00-1111-5222-9333-444455556666"
H200 = Hardware("NVIDIA H200", 132, 140 * 2**30, "9.0", "", 700)
DEVICE = DeviceFacts("NVIDIA H200", 132, 150109880320, "9.0", uuid=A.removeprefix("GPU-"))


class NvmlError(Exception):
    pass


def card(uuid: str, name: str = "NVIDIA H200", **more: Any) -> SimpleNamespace:
    defaults = {
        "instances": (),
        "parent": None,
        "mode": 0,
        "limit_mw": 700_000,
        "processes": 0,
        "ecc": [1, 1],
    }
    defaults |= {"clocks": [1980] * 9, "reasons": [4] * 9}
    return SimpleNamespace(uuid=uuid, name=name, **{**defaults, **more})


class Nvml:
    """Answers as pynvml does, for a host with these cards; what a card can't tell raises."""

    NVMLError = NvmlError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 1, 2, 0, 3
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC = 1, 0

    def __init__(self, *cards: SimpleNamespace, driver: bool = True) -> None:
        self.cards, self.driver, self.open = cards, driver, 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NvmlError("Driver Not Loaded")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimpleNamespace:
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> SimpleNamespace:
        for each in self.cards:
            for device in (each, *each.instances):
                if device.uuid == uuid:
                    return device
        raise NvmlError("Not Found")

    def nvmlDeviceGetMaxMigDeviceCount(self, device: SimpleNamespace) -> int:
        return len(device.instances)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, device: SimpleNamespace, index: int) -> SimpleNamespace:
        return device.instances[index]

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, device: SimpleNamespace) -> SimpleNamespace:
        return self._told(device.parent)

    def nvmlDeviceGetName(self, device: SimpleNamespace) -> str:
        return device.name

    def nvmlDeviceGetUUID(self, device: SimpleNamespace) -> str:
        return device.uuid

    def nvmlDeviceGetPowerManagementLimit(self, device: SimpleNamespace) -> int:
        return self._told(device.limit_mw)

    def nvmlDeviceGetCudaComputeCapability(self, device: SimpleNamespace) -> tuple[int, int]:
        return (9, 0)

    def nvmlDeviceGetMemoryInfo(self, device: SimpleNamespace) -> SimpleNamespace:
        return SimpleNamespace(total=150754820096)

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetComputeMode(self, device: SimpleNamespace) -> int:
        return device.mode

    def nvmlDeviceGetPowerUsage(self, device: SimpleNamespace) -> int:
        return 131_062

    def nvmlDeviceGetClockInfo(self, device: SimpleNamespace, kind: int) -> int:
        return {self.NVML_CLOCK_SM: device.clocks.pop(0), self.NVML_CLOCK_MEM: 3201}[kind]

    def nvmlDeviceGetEccMode(self, device: SimpleNamespace) -> list[int]:
        return self._told(device.ecc)

    def nvmlDeviceGetTotalEccErrors(self, device: SimpleNamespace, error: int, counter: int) -> int:
        return {(1, 0): 7}[error, counter]

    def nvmlDeviceGetTemperature(self, device: SimpleNamespace, sensor: int) -> int:
        return 41

    def nvmlDeviceGetCurrentClocksEventReasons(self, device: SimpleNamespace) -> int:
        raise NvmlError("Function Not Found")

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: SimpleNamespace) -> int:
        return device.reasons.pop(0)

    def nvmlDeviceGetComputeRunningProcesses(self, device: SimpleNamespace) -> list[int]:
        return list(range(self._told(device.processes)))

    def _told(self, value: Any) -> Any:
        if value is None:
            raise NvmlError("Not Supported")
        return value


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Any:
    def install(*cards: SimpleNamespace, driver: bool = True) -> Nvml:
        nvml = Nvml(*cards, driver=driver)
        monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
        return nvml

    return install


def test_without_a_driver_every_answer_is_none(host: Any) -> None:
    host(driver=False)
    assert find_gpu(environ={}) is None
    assert state() == GpuState()


def test_without_a_gpu_none_is_found(host: Any) -> None:
    nvml = host()
    assert find_gpu(environ={}) is None
    assert nvml.open == 0


def test_what_nvml_tells_of_the_first_gpu(host: Any) -> None:
    nvml = host(card(A), card(B))
    found = find_gpu(environ={})
    assert found is not None
    assert (found.name, found.compute_capability, found.mig) == ("NVIDIA H200", "9.0", "")
    assert (found.power_limit_w, found.driver, found.exclusive) == (700, "580.159.04", False)
    assert found.uuid == A
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("visible", "uuid"),
    [("0", A), ("1", B), ("1,0", B), (B, B), (B[:12], B), (MIG, MIG), ("7", None), ("", None), ("-1", None)],
)
def test_cuda_visible_devices_chooses_the_gpu(host: Any, visible: str, uuid: str | None) -> None:
    split = card("GPU-split")
    split.instances = (card(MIG, "NVIDIA H200 MIG 1g.18gb", parent=split),)
    host(card(A), card(B), split)
    found = find_gpu(environ={"CUDA_VISIBLE_DEVICES": visible})
    assert (found.uuid if found else None) == uuid


def test_an_ambiguous_abbreviation_finds_none(host: Any) -> None:
    host(card(A), card(B))
    assert find_gpu(environ={"CUDA_VISIBLE_DEVICES": "GPU-"}) is None


def test_a_split_card_is_its_first_instance(host: Any) -> None:
    split = card(A)
    split.instances = (card(MIG, "NVIDIA H200 MIG 1g.18gb", parent=split, limit_mw=None),)
    host(split)
    found = find_gpu(environ={})
    assert found is not None
    assert (found.name, found.mig, found.uuid, found.power_limit_w) == ("NVIDIA H200", "1g.18gb", MIG, 700)


def test_a_uuid_is_found_as_torch_writes_it(host: Any) -> None:
    host(card(A), card(B))
    found = find_gpu(B.removeprefix("GPU-"), environ={"CUDA_VISIBLE_DEVICES": "0"})
    assert found is not None
    assert found.uuid == B


def test_exclusive_compute_mode_is_seen(host: Any) -> None:
    host(card(A, mode=Nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS))
    found = find_gpu(environ={})
    assert found is not None
    assert found.exclusive


def test_a_limit_that_nvml_does_not_know_is_none(host: Any) -> None:
    host(card(A, limit_mw=None))
    found = find_gpu(environ={})
    assert found is not None
    assert found.power_limit_w is None


def state(uuid: str = A, own_processes: int = 3, samples: int = 3) -> GpuState:
    watch = GpuWatch(uuid)
    try:
        return watch.state([watch.sample() for _ in range(samples)], own_processes)
    finally:
        watch.close()


def test_the_state_is_that_of_the_bursts_and_counts_processes_that_are_not_ours(host: Any) -> None:
    host(card(A, processes=5))
    assert state() == GpuState(1980, 41, 131.062, 4, 2, 3201, True, 7)


def test_the_clock_is_the_median_of_the_samples_and_every_reason_counts(host: Any) -> None:
    host(card(A, clocks=[1980, 1650, 1665, 0], reasons=[0, 4, 32]))
    told = state()
    assert (told.sm_clock_mhz, told.event_reasons) == (1665, 36)


@pytest.mark.parametrize("seen", [None, 1])
def test_other_processes_are_unknown_where_even_ours_are_not_shown(host: Any, seen: int | None) -> None:
    host(card(A, processes=seen, ecc=None))
    assert state() == GpuState(1980, 41, 131.062, 4, None, 3201, None, 7)


def test_a_state_that_nobody_looked_at_is_an_error(host: Any) -> None:
    host(card(A))
    with pytest.raises(NotMeasurable, match="no sample of the GPU's state was taken"):
        state(samples=0)


def test_a_gpu_that_nvml_does_not_know_has_no_state(host: Any) -> None:
    host(card(A))
    assert state(B) == GpuState()


def test_a_watch_lets_nvml_go(host: Any) -> None:
    nvml = host(card(A))
    watch = GpuWatch(A)
    assert nvml.open == 1
    watch.close()
    assert nvml.open == 0


@pytest.mark.parametrize(
    ("gpu", "mig", "slug"),
    [
        ("NVIDIA H200", "", "nvidia-h200"),
        ("NVIDIA A100-SXM4-80GB", "", "nvidia-a100-sxm4-80gb"),
        ("NVIDIA H200", "1g.18gb", "nvidia-h200-1g.18gb"),
        ("Tesla T4 / (GRID)", "", "tesla-t4-grid"),
    ],
)
def test_the_slug_is_a_folder_name(gpu: str, mig: str, slug: str) -> None:
    assert dataclasses.replace(H200, gpu=gpu, mig=mig).slug == slug


def test_the_environment_joins_what_torch_and_nvml_tell(host: Any) -> None:
    host(card(A))
    seen = assemble(DEVICE, find_gpu(environ={}), {"torch": "2.11.0", "cuda": "13.0"}, "nightly")
    assert seen.hardware == H200
    assert seen.stack == (("cuda", "13.0"), ("driver", "580.159.04"), ("torch", "2.11.0"))
    assert seen.lane == "nightly"


def test_the_card_is_told_apart_but_not_named(host: Any) -> None:
    host(card(A))
    gpu = find_gpu(environ={})
    with_nvml, without = assemble(DEVICE, gpu, {}), assemble(DEVICE, None, {})
    assert gpu is not None
    assert with_nvml.card == without.card == gpu.card == card_hash(A)
    assert with_nvml.card != card_hash(B)
    assert len(with_nvml.card) == 12
    assert with_nvml.card not in A


def test_a_driver_that_reserves_a_little_more_memory_is_the_same_hardware() -> None:
    less = DeviceFacts("NVIDIA H200", 132, DEVICE.memory_bytes - 2**26, "9.0", uuid="")
    assert assemble(less, None, {}).hardware == assemble(DEVICE, None, {}).hardware


def test_an_instance_as_torch_names_it_is_the_hardware_that_nvml_names(host: Any) -> None:
    split = card(A)
    split.instances = (card(MIG, "NVIDIA H200 MIG 1g.18gb", parent=split),)
    host(split)
    instance = DeviceFacts("NVIDIA H200 MIG 1g.18gb", 16, 17 * 2**30, "9.0", uuid=MIG.removeprefix("MIG-"))
    hardware = assemble(instance, find_gpu(instance.uuid, environ={}), {}).hardware
    assert (hardware.gpu, hardware.mig, hardware.slug) == ("NVIDIA H200", "1g.18gb", "nvidia-h200-1g.18gb")


def test_host_memory_is_what_the_container_has_left(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       24634060 kB\nMemAvailable:   20971520 kB\n")
    monkeypatch.setattr("kernelperf.environment._MEMINFO", meminfo)
    monkeypatch.setattr("kernelperf.environment._CGROUP", tmp_path)
    assert host_memory_available_bytes() == 20 * 2**30
    (tmp_path / "memory.max").write_text(f"{8 * 2**30}\n")
    (tmp_path / "memory.current").write_text(f"{6 * 2**30}\n")
    (tmp_path / "memory.stat").write_text(f"anon {2**30}\ninactive_file {2**30}\n")
    assert host_memory_available_bytes() == 3 * 2**30
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory_available_bytes() == 20 * 2**30


def test_host_memory_is_unknown_where_the_host_does_not_tell(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernelperf.environment._MEMINFO", tmp_path / "nothing")
    assert host_memory_available_bytes() is None
