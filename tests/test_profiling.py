"""A written trace names neither the machine nor the user, and the same text gives the same bytes."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest

from kernelperf.worker.profiling import machine_names, scrub, write_trace

# As torch 2.11 writes them, with the host's and the user's paths.
TRACE = """{"schemaVersion":1,"traceEvents":[
{"ph":"X","cat":"kernel","name":"void at::native::vectorized_elementwise_kernel<4>(int, a / b)","pid":0},
{"ph":"X","cat":"cpu_op","name":"triton_poi_fused_gelu_mul_0","args":{"kernel_kwargs":"XBLOCK=512",
"kernel_file":"/home/ada/project/.kernelperf/run-x1/cache/inductor/rp/crp6dxk5nphodyk5oymrzgcw3.py"}},
{"ph":"X","cat":"python_function","name":"/home/ada/project/model.py(12): forward"},
{"ph":"M","name":"thread_name","args":{"name":"thread 7 (gpu-box-17)"}},
{"ph":"M","name":"process_name","args":{"name":"ada@gpu-box-17.lan.example"}}],
"traceName":"/tmp/pytest-of-ada/trace.raw.json"}"""


def test_paths_are_shortened_to_their_last_part() -> None:
    events = json.loads(scrub(TRACE, []))["traceEvents"]
    assert events[1]["args"]["kernel_file"] == "crp6dxk5nphodyk5oymrzgcw3.py"
    assert events[2]["name"] == "model.py(12): forward"
    assert json.loads(scrub(TRACE, []))["traceName"] == "trace.raw.json"


def test_names_of_host_and_user_are_taken_out() -> None:
    scrubbed = scrub(TRACE, ["gpu-box-17.lan.example", "gpu-box-17", "ada"])
    assert not re.search(r"ada|gpu-box|example", scrubbed)
    assert json.loads(scrubbed)["traceEvents"][4]["args"]["name"] == "-@-"


def test_what_the_trace_is_about_is_left_alone() -> None:
    before = json.loads(TRACE)["traceEvents"]
    after = json.loads(scrub(TRACE, ["gpu-box-17", "ada"]))["traceEvents"]
    assert after[0] == before[0]
    assert after[1]["args"]["kernel_kwargs"] == "XBLOCK=512"


@pytest.mark.parametrize("name", ["kernel", "X"])
def test_a_host_named_like_the_traces_own_words_spoils_nothing(name: str) -> None:
    assert scrub(TRACE, [name]) == scrub(TRACE, [])


def test_the_machines_names_are_long_enough_to_be_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-box-17.lan.example")
    monkeypatch.setattr("getpass.getuser", lambda: "me")
    assert machine_names() == ("gpu-box-17.lan.example", "gpu-box-17")


def test_a_user_without_a_name_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("socket.gethostname", lambda: "gpu-box-17")
    assert machine_names() == ("gpu-box-17",)


def test_the_same_trace_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        write_trace(TRACE, tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()).decode() == TRACE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json.gz", "b.json.gz"]
