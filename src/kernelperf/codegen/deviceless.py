"""Everything that touches torch's and Triton's internals to generate CUDA code where there is no CUDA.

Inductor asks the device for its properties, and Triton's driver for its target, but neither needs a GPU to
write code or to assemble it.  So the questions are answered here for a named architecture, tensors are fake,
and what would be launched is compiled and kept instead.  The answers outlive their context, since torch and
Triton cache them: one process a check.

Each internal that is taken is looked up through `internal`, so that one that has moved is one error which
names it.  Tested on torch 2.11 to 2.14 and the Triton that goes with each.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from kernelperf.codegen.cubin import read_cubin
from kernelperf.codegen.records import Candidate, CodegenRecord, GeneratedKernel
from kernelperf.errors import KernelperfError, NotDeterminable, UnusableInput


@dataclass(frozen=True, slots=True)
class Architecture:
    """What Inductor and Triton ask of a device, from the vendor's tables of compute capabilities."""

    name: str
    major: int
    minor: int
    multiprocessors: int
    threads_per_multiprocessor: int
    shared_bytes_optin: int  # a block may ask for
    memory_bytes: int


ARCHITECTURES = {
    "sm_80": Architecture("NVIDIA A100", 8, 0, 108, 2048, 166_912, 80 << 30),
    "sm_90": Architecture("NVIDIA H200", 9, 0, 132, 2048, 232_448, 141 << 30),
    "sm_100": Architecture("NVIDIA B200", 10, 0, 148, 2048, 232_448, 180 << 30),
}
_WARP = 32


def internal(module: str, path: str) -> Any:
    """Return an internal of torch or Triton.

    Raises `UnusableInput` where this version has it no more, or elsewhere.
    """
    try:
        found = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UnusableInput(
            f"{module}.{path} is missing in torch {version('torch')}, triton {version('triton')}: with these "
            "versions no code can be generated without a GPU; upgrade pytest-kernelperf, or skip these checks"
        ) from error
    return found


def version(package: str) -> str:
    """Return a loaded package's own version."""
    return str(importlib.import_module(package).__version__)


@dataclass(slots=True)
class Generated:
    """What was generated so far."""

    sources: list[str] = field(default_factory=list)
    extern_calls: list[str] = field(default_factory=list)
    launches: list[Callable[[], GeneratedKernel]] = field(default_factory=list)
    refusal: KernelperfError | None = None

    def refuse(self, error: KernelperfError) -> KernelperfError:
        """Keep an error to raise: Inductor wraps what is raised inside it, and sometimes swallows it."""
        self.refusal = self.refusal or error
        return self.refusal


def generate(build: Callable[[], Callable[[], Any]], arch: str) -> CodegenRecord:
    """Build a step on fake tensors, call it once, and return what that generated.

    Raises `NotDeterminable` for what only a GPU can tell, `UnusableInput` for an unknown architecture or an
    internal that moved.
    """
    if arch not in ARCHITECTURES:
        raise UnusableInput(f"architecture {arch!r} is unknown; use one of {', '.join(ARCHITECTURES)}")
    import torch

    # Fake tensors have shapes and no memory; the step may have built real ones on the CPU before.
    fake_mode = internal("torch._subclasses.fake_tensor", "FakeTensorMode")
    generated = Generated()
    with pretended(ARCHITECTURES[arch]):
        try:
            with fake_mode(allow_non_fake_inputs=True), torch.no_grad():
                # Only while building: Inductor would trace its patterns on a device that "is available".
                with mock.patch.object(torch.cuda, "is_available", _always(True)), unfilled():
                    step = build()
                with captured(generated), handwritten(generated):
                    step()
        except Exception as error:
            _raise_refusal(generated, error)
            raise
        _raise_refusal(generated, None)
        kernels = [launch() for launch in generated.launches]
    return CodegenRecord(
        graphs=len(generated.sources),
        extern_calls=generated.extern_calls,
        kernels=kernels,
        arch=arch,
        torch=version("torch"),
        triton=version("triton"),
        sources=generated.sources,
    )


def _raise_refusal(generated: Generated, error: Exception | None) -> None:
    if generated.refusal is not None:
        raise generated.refusal from error
    why = _why_undeterminable(error) if error is not None else ""
    if why:
        raise undeterminable(why) from error


def undeterminable(why: str) -> NotDeterminable:
    """Return the error that says so."""
    return NotDeterminable(f"cannot be determined without a GPU: {why}")


_BY_TIMING = (
    "Inductor decides by timing candidates on the device (max-autotune, or padding of unaligned shapes)"
)
# What torch says when something wants a real device or a real number, and what that means.
_SAID = (
    ("_local_scalar_dense", "the step reads a number from the device"),
    ("data-dependent", "the step depends on numbers, not on shapes alone"),
    ("not linked with support for cuda devices", ""),
    ("Torch not compiled with CUDA enabled", ""),
    ("Found no NVIDIA driver", ""),
    ("No CUDA GPUs are available", ""),
    ("from the 'CUDA' backend", ""),
    ("Cannot access data pointer of Tensor (e.g. FakeTensor", ""),
    ("libcuda.so", ""),
)


def _why_undeterminable(error: BaseException) -> str:
    """Return why an error means that only a GPU can tell, "" where it is an error of the step's own."""
    link: BaseException | None = error
    while link is not None:
        for phrase, meaning in _SAID:
            if phrase in str(link):
                said = meaning or f"the step needs the CUDA driver: {_first_line(link)}"
                return _BY_TIMING if _is_timing(link) else said
        link = link.__cause__ or link.__context__
    return ""


def _is_timing(error: BaseException) -> bool:
    """Whether it was raised while Inductor prepared to time candidates."""
    files = {frame.filename.rpartition("/")[2] for frame in traceback.extract_tb(error.__traceback__)}
    return bool(files & {"select_algorithm.py", "pad_mm.py", "autotune_process.py", "benchmarking.py"})


def _first_line(error: BaseException) -> str:
    """Return an error's first sentence that says something: Inductor puts a heading over another's."""
    lines = [line for line in str(error).strip().splitlines() if not line.endswith(" raised:")]
    return lines[0].partition(". ")[0] if lines else type(error).__name__


class PretendedDriver:
    """All that Inductor and Triton ask of Triton's driver while they only compile."""

    def __init__(self, arch: Architecture) -> None:
        target = internal("triton.backends.compiler", "GPUTarget")
        self._target = target("cuda", 10 * arch.major + arch.minor, _WARP)

    def get_current_target(self) -> Any:
        """Return what is compiled for."""
        return self._target

    def get_current_device(self) -> int:
        """Return the only device."""
        return 0

    def get_current_stream(self, _: int) -> int:
        """Return a stream that nothing is launched on."""
        return 0

    def get_active_torch_device(self) -> Any:
        """Return where hand-written kernels would allocate."""
        import torch

        return torch.device("cuda", 0)


@contextlib.contextmanager
def pretended(arch: Architecture) -> Iterator[None]:
    """Answer for a device of this architecture."""
    import torch

    properties = SimpleNamespace(
        name=arch.name,
        major=arch.major,
        minor=arch.minor,
        multi_processor_count=arch.multiprocessors,
        total_memory=arch.memory_bytes,
        regs_per_multiprocessor=65_536,
        max_threads_per_multi_processor=arch.threads_per_multiprocessor,
        max_threads_per_block=1024,
        warp_size=_WARP,
        shared_memory_per_block=49_152,
        shared_memory_per_block_optin=arch.shared_bytes_optin,
        gcnArchName="",
    )
    with contextlib.ExitStack() as patches:
        for patch in (*_device_answers(torch, properties, arch), *_inductor_answers(properties)):
            patches.enter_context(patch)
        driver = internal("triton.runtime.driver", "driver")
        driver.set_active(PretendedDriver(arch))
        yield


def _device_answers(torch: Any, properties: Any, arch: Architecture) -> Iterator[Any]:
    """What code asks through torch.cuda: the device's properties, and leave to use it."""
    answers: dict[str, Any] = {
        "device_count": 1,
        "current_device": 0,
        "get_device_properties": properties,
        "get_device_capability": (arch.major, arch.minor),
        "get_device_name": arch.name,
        "is_bf16_supported": True,
        "_lazy_init": None,  # a build without CUDA refuses, one with CUDA finds no device
        "synchronize": None,
        "manual_seed": None,
        "manual_seed_all": None,
        # Dynamo keeps the generator's state over a trace.
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
    }
    for name, answer in answers.items():
        yield mock.patch.object(torch.cuda, name, _always(answer))
    # Entering a device's context asks the driver; there is only one device to enter.
    yield mock.patch.object(torch.cuda, "device", _no_context)
    yield mock.patch.object(torch.cuda, "device_of", _no_context)
    # A parameter that wants a gradient asks for a device guard, which a build without CUDA ends itself over.
    # Nothing here is trained: a step that is, is refused before.
    new_parameter = torch.nn.Parameter.__new__

    def without_gradient(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:  # noqa: ARG001
        return new_parameter(cls, data, False)

    yield mock.patch.object(torch.nn.Parameter, "__new__", without_gradient)
    # A CUDA generator needs a device; fake tensors draw no numbers, so one of the CPU will do.
    yield mock.patch.object(torch, "Generator", _pretending_generator(torch))


# Fake tensors hold no numbers; to fill one in place, a build without CUDA wants a device guard.
_FILLING = ("normal_", "uniform_", "random_", "bernoulli_", "exponential_", "fill_", "zero_")


@contextlib.contextmanager
def unfilled() -> Iterator[None]:
    """Leave out what gives parameters their first values."""
    import torch

    with contextlib.ExitStack() as patches:
        for name in dir(torch.nn.init):
            if name.endswith("_") and not name.startswith("_"):
                patches.enter_context(mock.patch.object(torch.nn.init, name, _itself))
        for name in _FILLING:
            patches.enter_context(mock.patch.object(torch.Tensor, name, _itself))
        yield


def _itself(tensor: Any, *_: Any, **__: Any) -> Any:
    return tensor


def _pretending_generator(torch: Any) -> Any:
    """A CPU's generator that says which device it was made for; a class, since Inductor asks for its kind."""
    base: Any = torch.Generator

    class Generator(base):  # type: ignore[misc]  # torch's own
        def __new__(cls, device: Any = "cpu") -> Any:
            made = base.__new__(cls)
            made.made_for = torch.device(device)
            return made

        @property
        def device(self) -> Any:
            return self.made_for

    return Generator


def _inductor_answers(properties: Any) -> Iterator[Any]:
    """What Inductor asks past torch.cuda."""
    import torch

    # Dynamo's registry of devices answers for graphs and for the workers that compile.
    interface = internal("torch._dynamo.device_interface", "CudaInterface")
    for name, answer in {
        "is_available": True,
        "get_device_properties": properties,
        "is_bf16_supported": True,
        "current_device": 0,
    }.items():
        yield mock.patch.object(interface, name, staticmethod(_always(answer)))
    worker = internal("torch._dynamo.device_interface", "caching_worker_device_properties")
    yield mock.patch.dict(worker, {"cuda": [properties]})
    current = internal("torch._dynamo.device_interface", "caching_worker_current_devices")
    yield mock.patch.dict(current, {"cuda": 0})
    # A fake tensor on CUDA starts the real context, where there "is" a device.
    fakes = importlib.import_module("torch._subclasses.fake_tensor")
    internal("torch._subclasses.fake_tensor", "init_gpu_context")
    yield mock.patch.object(fakes, "init_gpu_context", _always(None))
    # Generated kernels switch Triton back to the real driver when they are loaded.
    internal("torch._inductor.runtime.triton_helpers", "set_driver_to_gpu")
    helpers = importlib.import_module("torch._inductor.runtime.triton_helpers")
    yield mock.patch.object(helpers, "set_driver_to_gpu", _always(None))
    # Inductor computes constants on the device; their values don't depend on where.
    folder = internal("torch._inductor.constant_folding", "ConstantFolder")
    fold = internal("torch._inductor.constant_folding", "ConstantFolder.run_node")
    on_cpu = _on_cpu()

    def fold_on_cpu(folding: Any, node: Any) -> Any:
        with on_cpu():
            return fold(folding, node)

    yield mock.patch.object(folder, "run_node", fold_on_cpu)
    if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]  # torch's
        # This pattern traces randperm on CUDA, for which a build without CUDA has no device guard.
        internal("torch._inductor.fx_passes.misc_patterns", "_misc_patterns_init")
        patterns = importlib.import_module("torch._inductor.fx_passes.misc_patterns")
        yield mock.patch.object(patterns, "_misc_patterns_init", _always(None))


def _on_cpu() -> Any:
    """Return a mode in which tensors that would be made on CUDA are made on the CPU."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class OnCpu(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = dict(kwargs or {})
            if given.get("device") is not None and torch.device(given["device"]).type == "cuda":
                given["device"] = "cpu"
            return op(*args, **given)

    return OnCpu


def _no_context(*_: Any) -> Any:
    return contextlib.nullcontext()


def _drop_launch(keywords: dict[str, Any]) -> None:
    """Nothing is launched, so neither the grid counts nor whether it would only be compiled."""
    for name in ("grid", "warmup"):
        keywords.pop(name, None)


def _always(answer: Any) -> Callable[..., Any]:
    return lambda *_, **__: answer


@contextlib.contextmanager
def captured(generated: Generated) -> Iterator[None]:
    """Keep what Inductor generates, and run nothing of it: a graph returns fake tensors of its shapes."""
    lowering = internal("torch._inductor.graph", "GraphLowering")
    benchmarker = internal("torch._inductor.runtime.benchmarking", "Benchmarker")

    def compile_to_module(graph: Any) -> Any:
        code, _ = graph.codegen()
        _keep_graph(generated, graph, code.value)
        outputs = list(graph.graph_outputs)
        return SimpleNamespace(
            call=lambda _: [_fake_output(output, generated) for output in outputs],
            __file__="generated.py",
            partitions=[],
        )

    def benchmark(*_: Any, **__: Any) -> float:
        raise generated.refuse(undeterminable(_BY_TIMING))

    with contextlib.ExitStack() as patches:
        patches.enter_context(mock.patch.object(lowering, "compile_to_module", compile_to_module))
        for name in ("benchmark", "benchmark_gpu", "benchmark_cpu"):
            if hasattr(benchmarker, name):
                patches.enter_context(mock.patch.object(benchmarker, name, benchmark))
        yield


def _fake_output(output: Any, generated: Generated) -> Any:
    """Return what a graph would: a tensor of the output's size and stride."""
    import torch

    if not hasattr(output, "get_size") or output.maybe_get_size() is None:
        return None
    try:
        size, stride = ([int(each) for each in part] for part in (output.get_size(), output.get_stride()))
    except TypeError:
        raise generated.refuse(undeterminable("the graph's shapes are symbolic")) from None
    return torch.empty_strided(size, stride, dtype=output.get_dtype(), device=output.get_device())


_EXTERN = re.compile(r"(extern_kernels\.\w+|torch\.ops\.[\w.]+)\(")
_LAUNCH = re.compile(r"^\s+(\w+)\.run\(", re.MULTILINE)
_DEFINITION = re.compile(r"^(\w+) = async_compile\.triton\('\w+', '''(.*?)'''", re.MULTILINE | re.DOTALL)


def _keep_graph(generated: Generated, graph: Any, source: str) -> None:
    """Take in one graph: its source, its extern calls, and its launches beside the nodes they compute."""
    call = source[source.index("def call(") :]
    call = call[: call.find("\ndef ")] if "\ndef " in call else call
    devices = {str(node.get_device()) for node in graph.scheduler.nodes if node.get_device() is not None}
    if any(not device.startswith("cuda") for device in devices):
        where = ", ".join(sorted(devices))
        raise generated.refuse(
            UnusableInput(f"the step computes on {where}, not on CUDA: put its module and inputs there")
        )
    if any(_is_attention(node) for node in graph.graph.nodes):
        raise generated.refuse(undeterminable("which attention runs, fused or not, is chosen for the device"))
    generated.sources.append(source)
    generated.extern_calls += _EXTERN.findall(call)
    bodies = dict(_DEFINITION.findall(source))
    launched = [name for name in _LAUNCH.findall(call) if name in bodies]
    nodes = [node for node in graph.scheduler.nodes if _launches_triton(node)]
    if len(launched) != len(nodes):
        counts = f"{len(launched)} launches for {len(nodes)} scheduled nodes"
        raise generated.refuse(undeterminable(f"{counts}, which can't be told apart"))
    for name, node in zip(launched, nodes, strict=True):
        size = int(node.get_read_write_buffers_sizes())
        generated.launches.append(_inductor_launch(name, bodies[name], _fused_ops(node), size))


def _is_attention(node: Any) -> bool:
    """Whether a node comes of an attention, which a build without CUDA takes apart otherwise."""
    made_by = [str(each) for each in (node.target, node.meta.get("original_aten"))]
    made_by += [str(name) for name, _ in node.meta.get("source_fn_stack", ())]
    return any("scaled_dot_product" in each or "_safe_softmax" in each for each in made_by)


def _launches_triton(node: Any) -> bool:
    """Whether a scheduled node becomes a Triton launch: not a library's call, and not nothing."""
    nothing = internal("torch._inductor.scheduler", "NopKernelSchedulerNode")
    written = internal("torch._inductor.ir", "UserDefinedTritonKernel")
    if isinstance(node, nothing):
        return False
    return not node.is_extern() or isinstance(node.node, written)


def _fused_ops(node: Any) -> list[str]:
    """Return the ATen ops that a node computes, each once, in order."""
    ops: dict[str, None] = {}
    for part in node.get_nodes():
        for origin in sorted(part.node.get_origins(), key=lambda origin: _position(origin)):
            op = origin.meta.get("original_aten")
            if op is not None:
                ops[str(op).removeprefix("aten.").partition(".")[0]] = None
    return list(ops)


def _position(origin: Any) -> int:
    return list(origin.graph.nodes).index(origin)


def _inductor_launch(name: str, body: str, ops: Sequence[str], size: int) -> Callable[[], GeneratedKernel]:
    """Return what compiles every candidate of a kernel; Inductor's own autotuner knows them."""

    def compiled() -> GeneratedKernel:
        import torch

        module = internal("torch._inductor.codecache", "PyCodeCache").load(body)
        tuner = getattr(module, _function_in(body))
        configs = list(tuner.configs)
        # The static launcher would load the cubin onto a device.
        config = torch._inductor.config
        static = (
            {"use_static_triton_launcher": False} if hasattr(config, "use_static_triton_launcher") else {}
        )
        with config.patch(static):
            tuner.precompile(warm_cache_only=True)
        results = [result.kernel for result in tuner.compile_results]
        texts = [_config_text(each) for each in configs]
        candidates = [_candidate(text, kernel) for text, kernel in zip(texts, results, strict=True)]
        return GeneratedKernel(name, list(ops), size, candidates)

    return compiled


def _function_in(body: str) -> str:
    functions = re.findall(r"^def (\w+)\(", body, re.MULTILINE)
    if not functions:
        raise UnusableInput(f"Inductor's kernel holds no function: {body[:80]!r}")
    return str(functions[-1])  # what a scan combines by stands before it


def _config_text(config: Any) -> str:
    """As traces have it: ``XBLOCK=1024 warps=4 stages=1``."""
    blocks = [f"{key}={value}" for key, value in config.kwargs.items()]
    return " ".join([*blocks, f"warps={config.num_warps}", f"stages={config.num_stages}"])


def _candidate(config: str, kernel: Any) -> Candidate:
    code = read_cubin(kernel.asm["cubin"])
    target = f"sm_{kernel.metadata.target.arch}"
    if code.arch != target:
        raise UnusableInput(f"a kernel was assembled for {code.arch}, expected {target}")
    return Candidate(
        config=config,
        registers=code.registers,
        spills=code.spills,
        shared_bytes=int(kernel.metadata.shared),
        loads_128bit=code.loads_128bit,
        stores_128bit=code.stores_128bit,
    )


@contextlib.contextmanager
def handwritten(generated: Generated) -> Iterator[None]:
    """Compile hand-written kernels where they would be launched, and launch nothing."""
    function = internal("triton.runtime.jit", "JITFunction")
    autotuner = internal("triton.runtime.autotuner", "Autotuner")
    stand_in = internal("triton.runtime.jit", "MockTensor")
    run = function.run

    def compile_one(kernel: Any, arguments: Any, keywords: Any) -> Candidate:
        import torch

        def shown(value: Any) -> Any:
            return stand_in(value.dtype) if isinstance(value, torch.Tensor) else value

        keywords = {key: shown(value) for key, value in keywords.items()}
        compiled = run(kernel, *map(shown, arguments), grid=(1,), warmup=True, **keywords)
        names = kernel.arg_names
        constants = {
            name: value
            for name, value in {**dict(zip(names, arguments, strict=False)), **keywords}.items()
            if name in names and kernel.params[names.index(name)].is_constexpr
        }
        blocks = [f"{name}={value}" for name, value in constants.items()]
        told = compiled.metadata
        return _candidate(
            " ".join([*blocks, f"warps={told.num_warps}", f"stages={told.num_stages}"]), compiled
        )

    def keep(name: str, arguments: Any, keywords: Any, candidates: list[Candidate]) -> None:
        import torch

        tensors = [each for each in (*arguments, *keywords.values()) if isinstance(each, torch.Tensor)]
        size = sum(each.numel() * each.element_size() for each in tensors)
        kernel = GeneratedKernel(name, [], size, candidates)
        generated.launches.append(lambda: kernel)

    def run_one(kernel: Any, *arguments: Any, **keywords: Any) -> None:
        _drop_launch(keywords)
        keep(kernel.__name__, arguments, keywords, [compile_one(kernel, arguments, keywords)])

    def run_all(tuner: Any, *arguments: Any, **keywords: Any) -> None:
        _drop_launch(keywords)
        candidates = [
            compile_one(tuner.base_fn, arguments, {**keywords, **config.all_kwargs()})
            for config in tuner.configs
        ]
        keep(tuner.base_fn.__name__, arguments, keywords, candidates)

    with mock.patch.object(function, "run", run_one), mock.patch.object(autotuner, "run", run_all):
        yield
