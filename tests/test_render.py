"""What a person reads: the number first, the cause second, then what to do; and JSON for programs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelperf.baselines import accept
from kernelperf.compare import Code, Comparison, Policy, Reason, Verdict, compare, judge_suite
from kernelperf.recording import read_recording
from kernelperf.recording.records import Counts
from kernelperf.render import (
    Origin,
    acceptance_table,
    kernel_table,
    origin_of,
    skip_reason,
    summary_line,
    to_json,
    verdict_table,
)
from kernelperf.render.explain import cause_text, changes_text, failure_text
from kernelperf.render.tables import change_of_duration, duration, percent, share_of, shortened, table
from kernelperf.trace import Kernel, Op, RuntimeCall, Step
from tests import builders

LIVE = Origin(live=True, gpu="NVIDIA H200", stack=builders.STACK)
NEWER = (*builders.STACK[:2], ("torch", "2.12.1"), ("triton", "3.7.1"))
NARROW = builders.geglu_kernels(builders.NARROW, 54.8)


def compared(
    us: float = 206.8, name: str = "geglu_compiled", stack: Any = builders.STACK, **run: Any
) -> Comparison:
    now = builders.recording(
        name, runs=builders.runs(us, **run), environment=builders.environment(stack=stack)
    )
    return compare(builders.recording(name), now, Policy(suite_size=9))


def lines(text: str) -> dict[str, str]:
    """The fields of a failure block."""
    fields = (line.strip().split(maxsplit=1) for line in text.splitlines()[1:])
    return {name: " ".join(value.split()) for name, value in fields}


def test_a_failure_reads_number_first_cause_second_then_what_to_do() -> None:
    slow = compared(224.6, stack=NEWER, kernels=NARROW)
    others = [slow, *(replace(compared(206.9), workload=f"other_{n}") for n in range(8))]
    text = failure_text(
        slow, others, repro="pytest perf_tests -k geglu_compiled", recording=Path(".kernelperf/now")
    )
    assert text.splitlines() == [
        "SLOWER geglu_compiled-bf16  gpu_time 206.8 → 224.6 µs  +8.6 %  [+7.8, +9.4]  tolerance 2 %  "
        "(5 runs against 5)",
        "  kernel   triton_poi_fused__unsafe_view_gelu_mul_0  +18.0 of +17.8 µs;  "
        "XBLOCK 1024 → 512, warps 4 → 8",
        "  cause    launch config; counts unchanged; stack: torch 2.11.0 → 2.12.1, triton 3.6.0 → 3.7.1",
        "  machine  clocks equal (1980 MHz), GPU not shared, same card; the other 8 workloads: +0.05 %",
        "  repro    pytest perf_tests -k geglu_compiled",
        '  accept   kernelperf accept .kernelperf/now --only geglu_compiled-bf16 --reason "…"',
    ]


def test_a_replay_offers_nothing_to_accept() -> None:
    text = failure_text(compared(224.6))
    assert "accept" not in text
    assert lines(text)["repro"] == "pytest -k geglu_compiled-bf16"


def test_paths_and_names_are_quoted_for_the_shell() -> None:
    text = failure_text(compared(224.6), recording=Path("my recordings/now"))
    assert "kernelperf accept 'my recordings/now' --only" in text


def test_an_only_workload_says_nothing_of_others() -> None:
    slow = compared(224.6)
    assert "other" not in lines(failure_text(slow, [slow]))["machine"]


def test_a_changed_state_is_told() -> None:
    hot = replace(builders.run().state, sm_clock_mhz=1650)
    assert lines(failure_text(compared(224.6, state=hot)))["machine"].startswith("SM clock 1980 → 1650 MHz")


EXTRA = (
    *builders.geglu_kernels(),
    builders.kernel("direct_copy_kernel", 20.0, role="copy", op="aten::copy_"),
)
HOST = Counts(kernels=4, memsets=2, memcpys=0, host_ops=80, runtime_calls=9)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"kernels": NARROW}, "launch config"),
        ({"kernels": EXTRA}, "new or lost kernel"),
        ({"kernels": builders.geglu_kernels(fused_us=54.6)}, "kernel time"),
        ({"counts": HOST}, "host: host_ops 31 → 80"),
        ({"observations": builders.observations(recompiles=2)}, "recompile or graph break: recompiles 0 → 2"),
        (
            {"observations": builders.observations(peak_memory_bytes=2**30)},
            "memory: peak_memory_bytes 264241152 → 1073741824",
        ),
        ({}, "not in the kernels: they take +0.0 of +17.8 µs"),
    ],
)
def test_the_cause_names_the_layer(change: dict[str, Any], cause: str) -> None:
    causes = cause_text(compared(224.6, **change)).split("; ")
    assert cause in causes
    if change:
        assert cause not in cause_text(compared(224.6)).split("; ")


def test_a_slowdown_that_nothing_explains_says_so() -> None:
    slow = replace(compared(224.6), kernel_delta_ns=17_000.0)
    assert cause_text(slow) == "nothing recorded explains it; kernels and counts unchanged; stack unchanged"


def test_a_common_shift_is_the_first_cause() -> None:
    suite = [replace(compared(213.0), workload=f"w{n}") for n in range(3)]
    assert cause_text(judge_suite(suite)[0]).startswith("all 3 workloads moved, by +3.0%")


def test_kernels_are_ranked_by_their_share_and_the_rest_is_summed() -> None:
    base = tuple(builders.kernel(f"k{n}", 10.0) for n in range(5))
    now = tuple(builders.kernel(f"k{n}", 10.0 + n) for n in range(1, 6))
    first, second = (
        builders.recording(runs=builders.runs(us, kernels=k)) for us, k in ((60, base), (75, now))
    )
    text = failure_text(compare(first, second, Policy()))
    kernel_lines = [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith("  kernel")]
    assert len(kernel_lines) == 4
    assert kernel_lines[-1].startswith("and ")


def test_kernels_of_one_name_are_told_apart_by_position() -> None:
    gate, up, fused, down = builders.geglu_kernels()
    slower = tuple(replace(kernel, duration_ns=60_000) for kernel in (gate, up))
    text = failure_text(compared(217.0, kernels=(*slower, fused, down)))
    assert f"  kernel   #0 {builders.GEMM}  +5.0 of +10.2 µs;  slower" in text.splitlines()
    assert f"  kernel   #1 {builders.GEMM}  +5.0 of +10.2 µs;  slower" in text.splitlines()


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ((), (builders.kernel("copy", 20.0, op="aten::copy_"),), "new: copy under aten::copy_  +20.0 µs"),
        ((builders.kernel("copy", 20.0, op="aten::copy_"),), (), "lost: copy under aten::copy_  -20.0 µs"),
        (
            (builders.kernel("nvjet_a"),),
            (builders.kernel("nvjet_b", 60.0),),
            "nvjet_a → nvjet_b under aten::mm  +5.0 µs",
        ),
        ((builders.kernel(),), (builders.kernel(duration_us=60.0),), f"{builders.GEMM}  +5.0 µs;  slower"),
        ((builders.kernel(),), (builders.kernel(duration_us=50.0),), f"{builders.GEMM}  -5.0 µs;  faster"),
        (
            (builders.kernel(grid=(8, 1, 1)),),
            (builders.kernel(grid=(16, 1, 1)),),
            f"{builders.GEMM}  +0.0 µs;  grid 8x1x1 → 16x1x1",
        ),
    ],
)
def test_each_kind_of_kernel_change_reads_alike(before: Any, now: Any, told: str) -> None:
    fixed = (builders.kernel("first"),)
    base = builders.recording(runs=builders.runs(kernels=fixed + before))
    found = compare(base, builders.recording(runs=builders.runs(kernels=fixed + now)), Policy())
    assert told in changes_text(found).splitlines()


def test_what_did_not_change_gives_no_text() -> None:
    assert changes_text(compared()) == ""


def test_a_count_that_rose_is_the_number() -> None:
    headline = failure_text(compared(observations=builders.observations(recompiles=2))).splitlines()[0]
    assert headline.startswith("SLOWER geglu_compiled-bf16  a count rose on the same stack: recompiles 0 → 2")


def test_a_failure_without_times_has_its_reason_for_a_headline() -> None:
    base = builders.recording(runs=(builders.untimed(builders.run()),))
    more = builders.untimed(builders.run(kernels=EXTRA))
    found = compare(base, builders.recording(runs=(more,)), Policy(metric="structure"))
    assert failure_text(found).splitlines()[0] == (
        "SLOWER geglu_compiled-bf16  a count rose on the same stack: kernels 4 → 5"
    )
    assert (
        "  kernel   new: direct_copy_kernel under aten::copy_  +20.0 µs" in failure_text(found).splitlines()
    )


def test_a_skip_says_why_and_what_to_do() -> None:
    text = skip_reason(compare(None, builders.recording(), Policy()))
    assert text.startswith("no baseline: geglu_compiled-bf16 gpu_time: the baseline holds no such workload; ")
    assert "kernelperf accept" in text
    assert "\n" not in text


# --- the summary


def verdicts(**numbers: int) -> list[Comparison]:
    reason = Reason(Code.WITHIN_TOLERANCE, "")
    return [
        Comparison(f"{verdict}_{n}", "gpu_time", Verdict(verdict), reason, 0.02)
        for verdict, number in numbers.items()
        for n in range(number)
    ]


def test_the_summary_counts_workloads_and_says_where_the_numbers_are_from() -> None:
    line = summary_line(verdicts(SAME=7, SLOWER=1, NO_BASELINE=1), LIVE, [("not selected", 1), ("stale", 0)])
    assert line == (
        "kernelperf: 9 workloads: 7 same, 1 slower, 1 no baseline; 1 not selected; "
        "live on NVIDIA H200, torch 2.11.0"
    )


def test_a_workload_of_two_metrics_counts_once_by_the_worse() -> None:
    same, slower = (replace(found, workload="w") for found in verdicts(SAME=1, SLOWER=1))
    for order in ([same, slower], [slower, same]):
        assert summary_line(order, LIVE).startswith("kernelperf: 1 workload: 1 slower;")


def test_nothing_compared_is_said() -> None:
    assert summary_line([], LIVE, [("stale", 2)]).startswith(
        "kernelperf: 0 workloads compared; 2 stale; live on"
    )


def test_a_replay_never_looks_live(tmp_path: Path) -> None:
    recording = read_recording(builders.write(tmp_path / "rec", builders.recording()))
    replay = summary_line(verdicts(SAME=1), origin_of(recording, live=False))
    assert replay.endswith(f"REPLAY of {tmp_path / 'rec'} (NVIDIA H200, torch 2.11.0, 2026-03-04)")
    assert "live" not in replay.replace(str(tmp_path), "")
    assert "REPLAY" not in summary_line(verdicts(SAME=1), origin_of(recording, live=True))


# --- tables


def test_the_verdict_table_shows_each_comparison() -> None:
    rows = verdict_table([compared(224.6, kernels=NARROW), compare(None, builders.recording(), Policy())])
    head, first, second = (row.split() for row in rows.splitlines())
    assert head == ["workload", "metric", "base", "now", "change", "interval", "runs", "verdict", "reason"]
    assert " ".join(first) == (
        "geglu_compiled-bf16 gpu_time 206.8 µs 224.6 µs +8.6 % [+7.8, +9.4] 5/5 SLOWER launch-config"
    )
    assert " ".join(second) == "geglu_compiled-bf16 gpu_time – 206.8 µs – – 0/5 NO BASELINE not-recorded"


def test_an_acceptance_shows_old_and_new_with_intervals(tmp_path: Path) -> None:
    baselines = tmp_path / "baselines"
    accept(read_recording(builders.write(tmp_path / "one", builders.recording())), baselines, reason="first")
    slower = builders.recording(runs=builders.runs(224.6))
    new = builders.recording("geglu_liger")
    done = accept(
        read_recording(builders.write(tmp_path / "two", slower, new)), baselines, reason="torch 2.12"
    )
    rows = [" ".join(row.split()) for row in acceptance_table(done).splitlines()]
    assert rows[1] == "geglu_compiled-bf16 gpu_time 206.8 µs 224.6 µs +8.6 % [+8.1, +9.1] 0.15 % 5"
    assert rows[2] == "geglu_liger-bf16 gpu_time – 206.8 µs – – 0.15 % 5 new"
    assert rows[3] == f"accepted into {baselines / 'nvidia-h200'}: torch 2.12"


class Around:
    """One op, around everything."""

    def __init__(self, op: Op) -> None:
        self.op = op

    def chain(self, index: int) -> tuple[Op, ...]:
        return (self.op,)


def step() -> Step:
    op = Op(0, "aten::mm", "cpu_op", "1", 0, 10, None)
    launch = RuntimeCall("cudaLaunchKernel", "1", 1, 1, 7, 0, Around(op))
    place = (0, 7, 7, (132, 1, 1), (384, 1, 1), 168, 0)  # device, stream, correlation, grid, block, registers
    gemm = Kernel(builders.GEMM, "gemm", 20, 55_123, *place, launch)
    bare = Kernel("void at::native::elementwise<4>(int)", "pointwise", 80, 2_000, *place, None)
    return Step(0, "kernelperf_step#0", 0, 100, (op,), (gemm, bare), (), ())


def test_the_kernel_table_shows_position_role_op_time_and_launch() -> None:
    head, gemm, bare = (row.split() for row in kernel_table(step().kernels).splitlines())
    assert head == ["#", "role", "op", "time", "kernel", "grid", "block", "regs", "config"]
    assert gemm == ["0", "gemm", "aten::mm", "55.12", "µs", builders.GEMM, "132x1x1", "384x1x1", "168"]
    assert bare[:3] == ["1", "pointwise", "–"]


def test_recorded_kernels_have_the_same_table() -> None:
    rows = kernel_table(builders.geglu_kernels()).splitlines()
    assert len(rows) == 5
    assert rows[3].endswith("XBLOCK=1024 warps=4 stages=1")


def test_no_kernels_give_a_head_alone() -> None:
    assert len(kernel_table(()).splitlines()) == 1


def test_columns_line_up() -> None:
    assert table(("a", "b"), [("long", "1"), ("x", "100")], right=(1,)) == "a       b\nlong    1\nx     100"


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (None, "–"),
        (2_700, "2.70 µs"),
        (206_800, "206.8 µs"),
        (99.0, "0.10 µs"),
        (1_500_000, "1.50 ms"),
        (3.25e9, "3.25 s"),
    ],
)
def test_a_duration_is_shown_in_its_unit(ns: float | None, text: str) -> None:
    assert duration(ns) == text


def test_two_durations_share_a_unit() -> None:
    assert change_of_duration(900_000, 1_100_000) == "0.90 → 1.10 ms"
    assert share_of(-20_000, 17_800) == "-20.0 of +17.8 µs"


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.0, "+0.00 %"), (1.0005, "+0.05 %"), (0.9, "-10.0 %"), (None, "–")]
)
def test_a_ratio_is_shown_as_what_it_adds(ratio: float | None, text: str) -> None:
    assert percent(ratio) == text


def test_a_long_kernel_name_keeps_both_ends() -> None:
    name = (
        "void at::native::vectorized_elementwise_kernel<8, "
        "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&)>(int)"
    )
    short = shortened(name)
    assert len(short) == 60
    assert short.startswith("at::native::vectorized_elem")
    assert short.endswith("TensorIteratorBase&)>(int)")
    assert shortened(builders.FUSED) == builders.FUSED


def test_json_holds_what_the_comparison_holds() -> None:
    slow = compared(224.6, stack=NEWER, kernels=NARROW)
    data = json.loads(to_json([slow], LIVE))
    (found,) = data["comparisons"]
    assert data["version"] == 1
    assert data["origin"]["gpu"] == "NVIDIA H200"
    assert (found["verdict"], found["reason"]["code"]) == ("SLOWER", "launch-config")
    assert found["ratio"] == pytest.approx(slow.ratio)
    assert found["kernel_changes"][0]["now"] == "XBLOCK=512 warps=8"
    assert found["stack_changes"] == [["torch", "2.11.0", "2.12.1"], ["triton", "3.6.0", "3.7.1"]]
