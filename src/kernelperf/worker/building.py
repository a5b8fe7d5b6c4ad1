"""A declaration → the step that a worker guards: imports the declaring file, calls the factory, checks it.

Imported by workers only; torch is imported inside, after the worker has prepared for it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelperf.errors import UnusableInput
from kernelperf.protocol import Build
from kernelperf.workload import Mode, Subject, factory_of, registered

# Seeds the gradients that a backward step starts from, and everything a factory draws without a seed of
# its own: two workers of one variant compute the same.
SEED = 0
# Not the project's own code, wherever the environment was put.
_FOREIGN_FOLDERS = frozenset({"site-packages", "dist-packages", ".venv", "venv", ".tox", ".nox"})


def import_declaring_file(build: Build) -> None:
    """Import the file under the name that it had in the conductor.

    Raises `UnusableInput` where the import declares no such workload.
    """
    file = Path(build.file)
    if not _is_importable_as(build.module, file):
        _load_from(file, build.module)
    else:
        importlib.import_module(build.module)
    if build.workload not in registered():
        raise UnusableInput(
            f"{file} declares no workload {build.workload!r} when a fresh process imports it "
            f"(it declares {sorted(registered())}); declare it at module level, unconditionally"
        )


def build_subject(build: Build) -> Subject:
    """Call the factory, and make what it returns a `Subject`.

    Raises `UnusableInput` for a return that is none of the three that are understood.
    """
    params = {name: _as_tuple(value) for name, value in build.params.items()}
    returned = factory_of(build.workload)(**params)
    if isinstance(returned, Subject):
        return _checked(returned, build.workload)
    if isinstance(returned, tuple) and len(returned) == 2 and callable(returned[0]):
        return Subject(step=_module_step(*returned, _mode(build.mode), build.workload))
    if callable(returned) and not _is_module(returned):
        return Subject(step=returned)
    remedy = "; return (module, inputs)" if _is_module(returned) else ""
    raise UnusableInput(
        f"workload {build.workload!r}: its factory returned {_describe(returned)}, expected a Subject, "
        f"a callable without arguments, or a pair (module, inputs){remedy}"
    )


def project_sources(root: Path, caches: tuple[Path, ...]) -> dict[str, str]:
    """Return the sha256 of each imported file under ``root`` that is the project's own, by relative path.

    Not among them: installed packages, kernelperf itself, and what compilers wrote to ``caches``.
    """
    root, own = root.resolve(), Path(__file__).resolve().parents[1]
    prefixes = (own, *(cache.resolve() for cache in caches))
    sources: dict[str, str] = {}
    for module in list(sys.modules.values()):
        path = _file_of(module)
        if path is None or not path.is_relative_to(root) or not path.is_file():
            continue
        relative = path.relative_to(root)
        if _FOREIGN_FOLDERS.isdisjoint(relative.parts) and not any(map(path.is_relative_to, prefixes)):
            sources[relative.as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()
    return dict(sorted(sources.items()))


def _is_importable_as(name: str, file: Path) -> bool:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):  # a parent that isn't there, or is no package
        return False
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve() == file.resolve()


def _load_from(file: Path, name: str) -> None:
    """Load a file that no import finds under this name, such as a test module."""
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise UnusableInput(f"{file} can't be imported as {name!r}: it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def _as_tuple(value: Any) -> Any:
    """JSON has no tuples; a declaration's values have no lists."""
    return tuple(_as_tuple(part) for part in value) if isinstance(value, list) else value


def _mode(mode: str) -> Mode:
    match mode:
        case "forward" | "backward" | "forward_backward":
            return mode
    raise UnusableInput(f"unknown mode {mode!r}")


def _checked(subject: Subject, workload: str) -> Subject:
    named = {"step": subject.step, **{f"probes[{name!r}]": probe for name, probe in subject.probes.items()}}
    if subject.reference is not None:
        named["reference"] = subject.reference
    for what, value in named.items():
        if not callable(value):
            raise UnusableInput(
                f"workload {workload!r}: its Subject's {what} is {_describe(value)}, expected a callable"
            )
    return subject


def _is_module(value: Any) -> bool:
    import torch

    return isinstance(value, torch.nn.Module)


def _describe(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.80}" if value is not None else "None"


def _file_of(module: ModuleType) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _module_step(module: Callable[..., Any], inputs: Any, mode: Mode, workload: str) -> Callable[[], Any]:
    """Make one step of a pair (module, inputs): a tuple's items, a mapping's keywords, or one argument."""
    forward = _bound(module, inputs)
    if mode == "forward":
        return forward
    leaves = _leaves(module, inputs)
    if not leaves:
        raise UnusableInput(
            f"workload {workload!r} has mode {mode!r}, but no parameter of its module and none of its inputs "
            "requires a gradient"
        )
    return _backward_step(forward, leaves) if mode == "backward" else _training_step(forward, leaves)


def _bound(module: Callable[..., Any], inputs: Any) -> Callable[[], Any]:
    if isinstance(inputs, Mapping):
        return lambda: module(**inputs)
    arguments = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    return lambda: module(*arguments)


def _leaves(module: Any, inputs: Any) -> list[Any]:
    """What the gradients are taken of: the module's parameters and the inputs that ask for one."""
    import torch
    from torch.utils import _pytree as pytree

    parameters = list(module.parameters()) if isinstance(module, torch.nn.Module) else []
    tensors = [leaf for leaf in pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
    return [tensor for tensor in (*parameters, *tensors) if tensor.requires_grad]


def _training_step(forward: Callable[[], Any], leaves: list[Any]) -> Callable[[], Any]:
    """A forward and a backward pass, without accumulating gradients."""
    import torch

    grad_outputs: list[Any] = []

    def step() -> Any:
        outputs = _differentiable(forward())
        if not grad_outputs:
            grad_outputs.extend(_seeded_like(outputs))
        return torch.autograd.grad(outputs, leaves, grad_outputs, allow_unused=True)

    return step


def _backward_step(forward: Callable[[], Any], leaves: list[Any]) -> Callable[[], Any]:
    """A backward pass alone, over one forward pass made at the first call."""
    import torch
    from torch._functorch import config as functorch_config

    # A compiled graph that donates its buffers to the backward pass can be passed through only once.
    functorch_config.donated_buffer = False
    made: list[Any] = []

    def step() -> Any:
        if not made:
            outputs = _differentiable(forward())
            made.extend((outputs, _seeded_like(outputs)))
        outputs, grad_outputs = made
        return torch.autograd.grad(outputs, leaves, grad_outputs, retain_graph=True, allow_unused=True)

    return step


def _differentiable(outputs: Any) -> list[Any]:
    import torch
    from torch.utils import _pytree as pytree

    found = [
        leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    if not found:
        raise UnusableInput("the module's output holds no tensor that requires a gradient")
    return found


def _seeded_like(outputs: list[Any]) -> list[Any]:
    import torch

    generator = torch.Generator(outputs[0].device).manual_seed(SEED)
    return [
        torch.randn(output.shape, generator=generator, device=output.device, dtype=output.dtype)
        for output in outputs
    ]
