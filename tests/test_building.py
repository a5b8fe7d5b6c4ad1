"""A worker imports the declaring file under its name, calls the factory, and makes one step of its return."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from kernelperf.errors import UnusableInput
from kernelperf.protocol import Build
from kernelperf.worker import building
from kernelperf.worker.building import build_subject, import_declaring_file, project_sources
from kernelperf.workload import Subject, registered

Declare = Callable[..., Build]


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No declarations yet; what a test imports is forgotten after it."""
    for store in ("_registry", "_factories"):
        monkeypatch.setattr(sys.modules["kernelperf.workload"], store, {})
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def declare(tmp_path: Path) -> Declare:
    """Write a file that declares the workload ``mlp`` with this factory body, and say how to build it."""

    def write(body: str = "return print", *, file: str = "declared.py", **changes: Any) -> Build:
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "import kernelperf, torch\n"
            f"@kernelperf.workload(mode={changes.get('mode', 'forward')!r}, shape=[(2, 3)])\n"
            f"def mlp(shape):\n    {body}\n"
        )
        build = {
            "file": str(path),
            "module": file.removesuffix(".py").replace("/", "."),
            "workload": "mlp",
            "params": {"shape": [2, 3]},
            "mode": "forward",
            "root": str(tmp_path),
            "sys_path": [],
        }
        return Build(**{**build, **changes})

    return write


def subject_of(build: Build) -> Subject:
    import_declaring_file(build)
    return build_subject(build)


def test_a_module_that_the_path_finds_is_imported_as_that(declare: Declare, tmp_path: Path) -> None:
    sys.path.insert(0, str(tmp_path))
    import_declaring_file(declare())
    import declared

    assert Path(declared.__file__ or "") == tmp_path / "declared.py"
    assert set(registered()) == {"mlp"}


def test_a_file_that_no_import_finds_is_loaded_under_its_name(declare: Declare, tmp_path: Path) -> None:
    import_declaring_file(declare(file="perf/test_mlp.py", module="perf.test_mlp"))
    assert sys.modules["perf.test_mlp"].__file__ == str(tmp_path / "perf" / "test_mlp.py")


def test_another_module_of_the_same_name_is_not_executed(declare: Declare, tmp_path: Path) -> None:
    build = declare(file="mine/conftest.py", module="conftest")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('not this one')")
    sys.path.insert(0, str(tmp_path))
    import_declaring_file(build)
    assert sys.modules["conftest"].__file__ == build.file


def test_a_file_that_declares_nothing_in_a_fresh_process_is_an_error(declare: Declare) -> None:
    build = declare(workload="cnn")
    with pytest.raises(
        UnusableInput, match=r"declared\.py declares no workload 'cnn'.*\['mlp'\].*module level"
    ):
        import_declaring_file(build)


def test_the_factory_gets_the_axes_values_as_they_were_declared(declare: Declare) -> None:
    assert subject_of(declare("return lambda: shape")).step() == (2, 3)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("pass", "returned None"),
        ("return 3", "returned int 3"),
        ("return (print, 1, 2)", "returned tuple"),
        ("return torch.nn.Linear(2, 3)", "returned Linear.*return \\(module, inputs\\)$"),
        ("return kernelperf.Subject(step=torch.ones(2))", "Subject's step is Tensor"),
        ("return kernelperf.Subject(step=print, probes={'batch': 3})", "probes\\['batch'\\] is int 3"),
        ("return kernelperf.Subject(step=print, reference=0.5)", "Subject's reference is float 0.5"),
    ],
)
def test_a_wrong_return_is_an_error_that_shows_it(declare: Declare, body: str, found: str) -> None:
    with pytest.raises(UnusableInput, match=f"workload 'mlp': its .*{found}"):
        subject_of(declare(body))


@pytest.mark.parametrize(
    "inputs", ["torch.ones(shape)", "(torch.ones(shape),)", "{'input': torch.ones(shape)}"]
)
def test_a_pair_is_one_forward_call(declare: Declare, inputs: str) -> None:
    step = subject_of(declare(f"return torch.nn.Linear(3, 4), {inputs}")).step
    assert step().shape == (2, 4)


@pytest.mark.parametrize("mode", ["backward", "forward_backward"])
def test_a_backward_step_returns_gradients_and_accumulates_none(declare: Declare, mode: str) -> None:
    step = subject_of(declare("return torch.nn.Linear(3, 4), torch.ones(shape)", mode=mode)).step
    first, second = step(), step()
    assert [gradient.shape for gradient in first] == [(4, 3), (4,)]
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


def test_a_backward_step_passes_through_one_forward_call_again_and_again(declare: Declare) -> None:
    body = (
        "calls = []\n"
        "    module = torch.nn.Linear(3, 4)\n"
        "    module.register_forward_hook(lambda *_: calls.append(1))\n"
        "    mlp_calls.append(calls)\n"
        "    return module, torch.ones(shape)\n"
        "mlp_calls = []"
    )
    step = subject_of(declare(body, mode="backward")).step
    for _ in range(3):
        step()
    assert sys.modules["declared"].mlp_calls == [[1]]


def test_the_gradients_to_start_from_are_seeded(declare: Declare) -> None:
    build = declare("return torch.nn.Linear(3, 4), torch.ones(shape)", mode="forward_backward")
    import_declaring_file(build)
    biases = [build_subject(build).step()[1] for _ in range(2)]
    assert torch.equal(*biases)


def test_inputs_that_ask_for_a_gradient_get_one(declare: Declare) -> None:
    body = "return torch.nn.Linear(3, 4), torch.ones(shape, requires_grad=True)"
    step = subject_of(declare(body, mode="forward_backward")).step
    assert [gradient.shape for gradient in step()] == [(4, 3), (4,), (2, 3)]


def test_nothing_to_differentiate_is_an_error(declare: Declare) -> None:
    with pytest.raises(UnusableInput, match="workload 'mlp' has mode 'backward', but no parameter"):
        subject_of(declare("return torch.nn.ReLU(), torch.ones(shape)", mode="backward"))


def test_a_backward_step_keeps_compiled_graphs_from_donating_their_buffers(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With them donated, torch refuses the second pass of a retained graph."""
    from torch._functorch import config

    monkeypatch.setattr(config, "donated_buffer", True)
    subject_of(declare("return torch.nn.Linear(3, 4), torch.ones(shape)", mode="backward"))
    assert config.donated_buffer is False


def test_sources_are_the_projects_own_imported_files(declare: Declare, tmp_path: Path) -> None:
    for path in (".venv/lib/installed.py", "cache/inductor/ab/cab.py", "models/mlp.py"):
        file = tmp_path / path
        file.parent.mkdir(parents=True)
        file.write_text(f"PATH = {path!r}\n")
        building._load_from(file, file.stem)
    build = declare()
    import_declaring_file(build)
    sources = project_sources(tmp_path, (tmp_path / "cache" / "inductor",))
    assert list(sources) == ["declared.py", "models/mlp.py"]
    assert sources["declared.py"] == hashlib.sha256(Path(build.file).read_bytes()).hexdigest()


def test_kernelperf_itself_is_no_source_of_the_project() -> None:
    root = Path(building.__file__).parents[2]
    assert not [name for name in project_sources(root, ()) if "kernelperf" in name]
