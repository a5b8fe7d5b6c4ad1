"""``python -m kernelperf.codegen.child REQUEST REPLY``: generates the code of one step, and ends."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from kernelperf.codegen.records import CodegenRecord
from kernelperf.codegen.request import Refusal, Request
from kernelperf.errors import NotDeterminable, UnusableInput
from kernelperf.workload import Declaration, Subject, Unavailable, Variant, factory_of, registered

Step = Callable[[], Any]


def answer(request: Request) -> CodegenRecord | Refusal:
    """Generate the code; whatever is raised becomes a `Refusal`."""
    try:
        from kernelperf.codegen.deviceless import generate

        module = _import(request.module)
        declaration = registered().get(request.name)
        if declaration is not None:
            variant = _variant(declaration, request.params)
            return generate(lambda: _declared_step(variant), request.arch)
        factory = _factory(module, request)
        return generate(lambda: _step(factory(**request.params), request.name), request.arch)
    except NotDeterminable as error:
        return Refusal("undeterminable", str(error))
    except (UnusableInput, Unavailable) as error:
        return Refusal("unusable", str(error))
    except ImportError as error:
        missing = f"{error}; install it, or pytest-kernelperf[torch] where it is torch or triton"
        return Refusal("unusable", missing, traceback.format_exc())
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        return Refusal("failed", f"{type(error).__name__}: {first}", traceback.format_exc())


def _import(name: str) -> Any:
    if not name.endswith(".py"):
        return importlib.import_module(name)
    path = Path(name)
    if not path.is_file():
        raise UnusableInput(f"there is no file {name!r}; expected MODULE:FACTORY, a dotted module or a file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UnusableInput(f"{name} can't be imported: it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.resolve().parent))
    spec.loader.exec_module(module)
    return module


def _variant(declaration: Declaration, params: dict[str, Any]) -> Variant:
    """Return the first variant that has these values, which may be labels, as in its id."""
    axes = [axis for axis, _ in declaration.axes]
    unknown = [name for name in params if name not in axes]
    if unknown:
        raise UnusableInput(f"workload {declaration.name!r} has no axis {unknown[0]!r}; it has {axes}")
    for variant in declaration.variants():
        if all(_is(value, params[axis]) for axis, value in variant.choices if axis in params):
            return variant
    ids = ", ".join(variant.id for variant in declaration.variants())
    raise UnusableInput(f"workload {declaration.name!r} has no variant with {params}; it has {ids}")


def _is(value: Any, wanted: Any) -> bool:
    plain = tuple(wanted) if isinstance(wanted, list) else wanted
    return bool(value.value == plain or value.label == wanted)


def _declared_step(variant: Variant) -> Step:
    declaration = variant.declaration
    if declaration.mode != "forward":
        raise NotDeterminable(
            f"cannot be determined without a GPU: its mode is {declaration.mode}, and no training graphs are "
            "generated here"
        )
    returned = factory_of(declaration.name)(**variant.params)
    return _step(returned, declaration.name, compiled=False)


def _factory(module: Any, request: Request) -> Callable[..., Any]:
    found = getattr(module, request.name, None)
    if not callable(found):
        raise UnusableInput(
            f"{request.module} has no workload and no function {request.name!r}; it declares "
            f"{sorted(registered()) or 'no workloads'}"
        )
    return found  # type: ignore[no-any-return]  # a callable


def _step(returned: Any, name: str, *, compiled: bool = True) -> Step:
    """Make what a factory returned a step; a module is compiled, unless a workload is as it is."""
    import torch

    if isinstance(returned, Subject):
        return returned.step
    if isinstance(returned, tuple) and len(returned) == 2 and callable(returned[0]):
        module, inputs = returned
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        is_compiled = isinstance(module, torch._dynamo.OptimizedModule)
        called = torch.compile(module) if compiled and not is_compiled else module
        return lambda: called(*arguments)
    if callable(returned) and not isinstance(returned, torch.nn.Module):
        return returned  # type: ignore[no-any-return]  # a callable
    raise UnusableInput(
        f"{name!r} returned a {type(returned).__name__}, expected (module, example inputs), a callable "
        "without arguments, or a Subject"
    )


def main(request: str, reply: str) -> None:
    """Answer a request."""
    asked = msgspec.json.decode(Path(request).read_bytes(), type=Request)
    sys.path[:] = [*asked.sys_path, *(entry for entry in sys.path if entry not in asked.sys_path)]
    answered = answer(asked)
    partial = Path(reply).with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(answered))
    partial.replace(reply)


if __name__ == "__main__":
    main(*sys.argv[1:])
