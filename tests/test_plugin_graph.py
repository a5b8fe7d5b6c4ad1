"""Under a CUDA graph no trace knows the ops: a test that asks neither passes nor fails, and is counted."""

from __future__ import annotations

import gzip

from kernelperf.recording import write_workload
from tests.project import last_line, recorded
from tests.traces import zoo

ASKING = """
    import kernelperf
    from kernelperf import facts

    @kernelperf.workload(dtype=["bf16"])
    def mlp(dtype):
        raise RuntimeError("a factory runs in workers only")

    def test_no_add(mlp):
        assert not facts.has_op(mlp.step, "aten::add")

    def test_a_gemm_under_mm(mlp):
        assert facts.kernels_of(mlp.step, "aten::mm")

    def test_five_kernels(mlp):
        assert len(mlp.step.kernels) == 5
"""


def with_a_graphs_trace(project):
    project.guard(ASKING)
    trace = project.root / "graph.json.gz"
    text = gzip.decompress(zoo("cuda_graph").read_bytes()).replace(b"mlp_fwd#", b"kernelperf_step#")
    trace.write_bytes(gzip.compress(text))
    rec = recorded()
    write_workload(rec, project.root / "recording" / rec.id, trace)
    project.accept()


def test_facts_about_ops_skip_and_are_counted(project):
    with_a_graphs_trace(project)
    result = project.replay("-rs")
    result.assert_outcomes(passed=1, skipped=2)
    result.stdout.fnmatch_lines(["SKIPPED*test_guarded.py:*not determinable: a CUDA graph launched the*"])
    assert "2 not determinable" in last_line(result)


def test_strict_fails_them(project):
    with_a_graphs_trace(project)
    result = project.replay("--kperf-strict")
    result.assert_outcomes(passed=1, failed=2)
    result.stdout.fnmatch_lines(["E*NotDeterminable: not determinable: a CUDA graph launched the kernels*"])
    assert "2 not determinable" in last_line(result)
