"""What is generated without a GPU, held against what `torch.compile` generates and launches on one.

    python benchmarks/codegen_agreement.py -o benchmarks/results/codegen_agreement.json

For every module of `codegen_modules.py`: the generated code line by line, device properties and hashes left
out; the Triton kernels launched, by name and in order; each candidate's registers, spills and shared memory.
On the GPU every candidate that Inductor chooses among is timed as the product times, beside the time by which
Inductor chose.  A module's two sides are a process each, with fresh compile caches.  Needs a CUDA GPU.

    python benchmarks/codegen_agreement.py --show benchmarks/results/codegen_agreement.json

prints the tables of a stored result.
"""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import click
import msgspec

from kernelperf.codegen import generate
from kernelperf.errors import KernelperfError, NotDeterminable

MODULES = Path(__file__).with_name("codegen_modules.py")
# Of the machine, not of the code: the device's description, and the hash of torch's and Triton's sources.
_OF_THE_MACHINE = (
    (re.compile(r"DeviceProperties\([^)]*\)"), "DeviceProperties(...)"),
    (re.compile(r"'backend_hash': '[0-9A-F]+'"), "'backend_hash': ..."),
    (re.compile(r"^# (kernel path|AOT ID): .*$", re.MULTILINE), r"# \1"),
)


def factories() -> list[str]:
    """Return the names of the factories in the file, in order."""
    return [
        each.name
        for each in ast.parse(MODULES.read_text()).body
        if isinstance(each, ast.FunctionDef) and not each.args.args
    ]


def predict(name: str) -> dict[str, Any]:
    """Return the record without a GPU, or why there is none."""
    try:
        return msgspec.to_builtins(generate(f"{MODULES}:{name}", "sm_90"))
    except NotDeterminable as error:
        return {"undeterminable": str(error)}
    except KernelperfError as error:
        return {"failed": str(error).splitlines()[0]}


def run_on_gpu(name: str) -> dict[str, Any]:
    """Return what the module's own process found on the GPU."""
    with tempfile.TemporaryDirectory() as scratch:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{scratch}/inductor", "TRITON_CACHE_DIR": f"{scratch}/triton"}
        done = subprocess.run(
            [sys.executable, __file__, "--one", name],
            env={**os.environ, **caches},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1:]}
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]  # ours


# --- in the module's own process


def observe(name: str) -> dict[str, Any]:
    """Compile and run a module: the code generated, the kernels launched, every candidate timed."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    sys.path.insert(0, str(MODULES.parent))
    torch.set_grad_enabled(False)
    torch.manual_seed(0)
    made, inputs = getattr(__import__(MODULES.stem), name)()
    compiled = made if isinstance(made, torch._dynamo.OptimizedModule) else torch.compile(made)
    arguments = inputs if isinstance(inputs, tuple) else (inputs,)
    sources: list[str] = []
    candidates: dict[str, list[dict[str, Any]]] = {}
    with kept_sources(sources), timed_candidates(candidates):
        compiled(*arguments)
    for _ in range(2):
        compiled(*arguments)
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        compiled(*arguments)
        torch.cuda.synchronize()
    rows = [each for each in profiler.events() if each.device_type == torch.autograd.DeviceType.CUDA]
    launched = [each.name for each in sorted(rows, key=lambda each: each.time_range.start)]
    return {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "sources": sources,
        "launched": launched,
        "candidates": candidates,
    }


@contextmanager
def kept_sources(sources: list[str]) -> Iterator[None]:
    """Keep what Inductor writes."""
    from torch._inductor.graph import GraphLowering

    with mock.patch.object(GraphLowering, "save_output_code", staticmethod(sources.append)):
        yield


@contextmanager
def timed_candidates(found: dict[str, list[dict[str, Any]]]) -> Iterator[None]:
    """Time every candidate of a kernel before Inductor chooses."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    from kernelperf.codegen.deviceless import _config_text

    choose = CachingAutotuner.autotune_to_one_config

    def time_all(tuner: Any, *arguments: Any, **keywords: Any) -> Any:
        name = tuner.inductor_meta.get("kernel_name") or tuner.fn.__name__
        found[name] = [
            {
                "config": _config_text(launcher.config),
                "registers": launcher.n_regs,
                "spills": launcher.n_spills,
                "shared_bytes": launcher.shared,
                "ns": time_one(launcher, arguments, keywords),
                "inductor_ns": 1e6 * tuner.bench(launcher, *arguments, **keywords),
            }
            for launcher in tuner.launchers
        ]
        chosen = choose(tuner, *arguments, **keywords)
        config = _config_text(tuner.launchers[0].config)
        for each in found[name]:
            each["chosen"] = each["config"] == config
        return chosen

    with mock.patch.object(CachingAutotuner, "autotune_to_one_config", time_all):
        yield


def time_one(launcher: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> float:
    """Return the median of ten pairs, in ns."""
    import statistics

    import torch

    from kernelperf.worker.device_timing import GpuClock

    given = {key: value for key, value in keywords.items() if key != "stream"}
    stream = torch.cuda.current_stream().cuda_stream
    clock = GpuClock(lambda: launcher(*arguments, **given, stream=stream), 1)
    clock.burst(10)
    return statistics.median(clock.burst(10).durations_ns)


# --- agreement


def compare(predicted: Mapping[str, Any], observed: Mapping[str, Any]) -> dict[str, Any]:
    """Hold a module's two sides against each other."""
    if "sources" not in predicted or "failed" in observed:
        return {
            **{k: v for k, v in predicted.items() if k in ("undeterminable", "failed")},
            **{k: v for k, v in observed.items() if k == "failed"},
        }
    before = [normalized(each) for each in predicted["sources"]]
    after = [normalized(each) for each in observed["sources"]]
    different = [
        line
        for old, new in zip(before, after, strict=False)
        for line in difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=0)
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    kernels = [each["name"] for each in predicted["kernels"]]
    triton = [each for each in observed["launched"] if each in kernels or each.startswith("triton_")]
    return {
        "graphs": [len(before), len(after)],
        "lines": sum(len(each.splitlines()) for each in after),
        "different_lines": different,
        "kernels": [kernels, triton],
        "extern_calls": predicted["extern_calls"],
        "other_launches": [each for each in observed["launched"] if each not in triton],
        "candidates": _joined(predicted["kernels"], observed["candidates"]),
    }


def normalized(source: str) -> str:
    """Return generated code without what is the machine's."""
    for pattern, stand_in in _OF_THE_MACHINE:
        source = pattern.sub(stand_in, source)
    return source


def _joined(predicted: Sequence[Mapping[str, Any]], observed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each kernel's candidates: of both sides where they were timed, of the prediction otherwise."""
    rows = []
    for kernel in {each["name"]: each for each in predicted}.values():
        timed = {each["config"]: each for each in observed.get(kernel["name"], ())}
        for candidate in kernel["candidates"]:
            on_gpu = timed.pop(candidate["config"], None)
            rows.append({"kernel": kernel["name"], "bytes": kernel["bytes"], **candidate, "on_gpu": on_gpu})
        rows += [
            {"kernel": kernel["name"], "config": each["config"], "on_gpu": each} for each in timed.values()
        ]
    return rows


def agrees(row: Mapping[str, Any]) -> bool:
    """Whether code and launches are alike."""
    return (
        "kernels" in row
        and row["graphs"][0] == row["graphs"][1]
        and not row["different_lines"]
        and row["kernels"][0] == row["kernels"][1]
    )


def show(content: Mapping[str, Any]) -> None:
    """Print the tables."""
    for name, row in content["modules"].items():
        if "kernels" not in row:
            print(f"{name:16} {row.get('undeterminable') or row.get('failed')}")
            continue
        same = "equal" if not row["different_lines"] else f"{len(row['different_lines'])} lines differ"
        kernels = "as predicted" if row["kernels"][0] == row["kernels"][1] else f"{row['kernels']}"
        print(
            f"{name:16} graphs {row['graphs'][0]}/{row['graphs'][1]}  {row['lines']} lines, {same}  "
            f"{len(row['kernels'][1])} Triton kernels {kernels}  {len(row['extern_calls'])} extern calls, "
            f"{len(row['other_launches'])} other launches"
        )
        for line in row["different_lines"][:6]:
            print(f"    {line[:150]}")
    print()
    for name, row in content["modules"].items():
        for each in row.get("candidates", ()):
            told = each.get("on_gpu")
            if told is None:
                continue
            if "registers" not in each:
                print(f"{name}: {each['kernel']} {each['config']} was not predicted")
                continue
            chosen = " chosen" if told.get("chosen") else ""
            alike = all(each[key] == told[key] for key in ("registers", "shared_bytes"))
            print(
                f"{name:14} {each['kernel'][:44]:44} {each['config']:34} registers {each['registers']:3}/"
                f"{told['registers']:3} spills {each['spills']}/{told['spills']} 128-bit "
                f"{each['loads_128bit']}+{each['stores_128bit']}  {told['ns'] / 1e3:8.2f} us  by Inductor "
                f"{told['inductor_ns'] / 1e3:8.2f} us{chosen}{'' if alike else '  DIFFERS'}"
            )


@click.command()
@click.option("--one", help="run one module here, and print what was found")
@click.option("--show", "shown", type=click.Path(path_type=Path), help="print a stored result")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(one: str | None, shown: Path | None, output: Path | None) -> None:
    """Compare code generated without a GPU to that generated on one."""
    if one:
        print(json.dumps(observe(one)))
        return
    if shown:
        show(json.loads(shown.read_text()))
        return
    names = factories()
    with ThreadPoolExecutor(6) as threads:
        predicted = dict(zip(names, threads.map(predict, names), strict=True))
    observed = {name: run_on_gpu(name) for name in names}  # alone: their candidates are timed
    first = next(each for each in observed.values() if "gpu" in each)
    content = {
        "gpu": first["gpu"],
        "torch": first["torch"],
        "modules": {name: compare(predicted[name], observed[name]) for name in names},
    }
    show(content)
    if output:
        output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
