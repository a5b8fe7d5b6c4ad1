"""The command ``kernelperf``: list workloads, read traces, compare and accept recordings, generate code."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from kernelperf.baselines import accept as accept_recording
from kernelperf.baselines import baseline_folders, find_baseline
from kernelperf.cli.codegen import chosen_params, codegen_text
from kernelperf.cli.inventory import inventory_table
from kernelperf.cli.traces import Reading, are_traces, compare_report, facts_report
from kernelperf.codegen import ARCHES, generate
from kernelperf.codegen import to_json as codegen_json
from kernelperf.compare import Suite, judge_suite
from kernelperf.compare import compare as compare_workload
from kernelperf.compare.comparison import DEFAULT_TOLERANCE_FRACTION, Comparison, Policy, Verdict
from kernelperf.compare.traces import TraceComparison
from kernelperf.compare.verdict import STRUCTURE
from kernelperf.errors import KernelperfError, NotMeasurable, UnusableInput
from kernelperf.recording import read_recording, workload_folders
from kernelperf.recording.records import Recording, WorkloadRecording
from kernelperf.render import acceptance_table, origin_of, skip_reason, summary_line, to_json, verdict_table
from kernelperf.render.explain import failure_text

FINE, SLOWER, UNUSABLE, UNDECIDED = 0, 1, 2, 3

_mark = click.option("--mark", metavar="NAME", help="A step is each annotation of this name, or NAME#N.")
_role = click.option(
    "--role",
    "roles",
    multiple=True,
    metavar="'REGEX = ROLE'",
    help="The role of kernels of your own; repeatable.",
)


def _a_number(_: click.Context, __: click.Parameter, percent: float | None) -> float | None:
    """Refuse NaN, which no range does."""
    if percent is not None and math.isnan(percent):
        raise click.BadParameter("expected a number of percent, found nan")
    return percent


class _Commands(click.Group):
    """Turns kernelperf's errors into a line and an exit code."""

    def invoke(self, ctx: click.Context) -> object:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # what it can't encode must not end in a traceback
                stream.reconfigure(errors="replace")
        try:
            return super().invoke(ctx)
        except (KernelperfError, OSError) as error:
            click.echo(f"kernelperf: error: {error}", err=True)
            return ctx.exit(UNDECIDED if isinstance(error, NotMeasurable) else UNUSABLE)


@click.group(cls=_Commands)
@click.version_option(package_name="pytest-kernelperf")
def main() -> None:
    """Guard the GPU performance of PyTorch code: read traces, list, compare and accept what was recorded.

    Exit codes: 0 fine, 1 slower or a broken fact, 2 unusable input, 3 undecided or not measurable.
    """


@main.command("list")
@click.argument("paths", nargs=-1)
@click.option("--baselines", type=click.Path(path_type=Path), default=Path("baselines"), show_default=True)
def list_(paths: Sequence[str], baselines: Path) -> None:
    """Show the workloads, what is gated, and how old each baseline is.

    PATHS are the tests to collect (default: perf_tests, where there is such a folder); nothing is run.
    """
    click.echo(inventory_table(Path.cwd(), baselines, paths))


@main.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--json", "json", is_flag=True, help="One JSON object: times in µs.")
@_mark
@_role
def facts(path: Path, json: bool, mark: str | None, roles: Sequence[str]) -> None:
    """Show what PATH holds: kernels, roles, ops, steps, and what is wrong with it.

    PATH is a chrome trace that torch.profiler exported, gzip or not, or a recording.  Exits with 3 where it
    isn't whole.
    """
    text, whole = facts_report(path, Reading(mark, roles), json=json)
    _write(text, None)
    sys.exit(FINE if whole else UNDECIDED)


@main.command()
@click.argument("base", type=click.Path(path_type=Path))
@click.argument("now", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option(
    "-o", "output", type=click.Path(path_type=Path), help="Write to this file, not to the terminal."
)
@click.option(
    "--tolerance",
    "tolerance_percent",
    type=click.FloatRange(min=0, min_open=True, max=1000),
    callback=_a_number,
    help="Percent; default: what the workload's own tests judge by, else 2.",
)
@_mark
@_role
def compare(
    base: Path,
    now: Path,
    form: str,
    output: Path | None,
    tolerance_percent: float | None,
    mark: str | None,
    roles: Sequence[str],
) -> None:
    """Judge the recording NOW against the recording BASE, or against NOW's baseline in the folder BASE.

    Two traces may be named instead: then the difference is explained, kernel by kernel, and 1 is the exit
    code where NOW takes longer by the tolerance or more.
    """
    if are_traces(base, now):
        text, found = compare_report(base, now, Reading(mark, roles), json=form == "json")
        _write(text, output)
        sys.exit(_trace_exit_code(found, tolerance_percent))
    if mark or roles:
        raise UnusableInput("--mark and --role are for traces; a recording has its steps and roles already")
    recorded = read_recording(now)
    against = read_recording(_baseline_for(base, recorded))
    comparisons = _compared(against, recorded, tolerance_percent)
    missing = sorted({rec.id for rec in against.workloads} - {rec.id for rec in recorded.workloads})
    text = to_json(comparisons, origin_of(recorded, live=False)) if form == "json" else ""
    text = text or _report(comparisons, recorded, missing)
    _write(text, output)
    sys.exit(_exit_code(comparisons, recorded))


@main.command()
@click.argument("recording", type=click.Path(path_type=Path))
@click.option(
    "--only", multiple=True, metavar="W", help="A workload's id or its declaration's name; repeatable."
)
@click.option("--reason", required=True, help="Why the baseline changes; stored with it.")
@click.option("--baselines", type=click.Path(path_type=Path), default=Path("baselines"), show_default=True)
def accept(recording: Path, only: Sequence[str], reason: str, baselines: Path) -> None:
    """Make RECORDING, or the workloads named by --only, the baseline of its GPU.

    All of them or none: refused where a fact failed, the runs are too few or differ too much.
    """
    accepted = accept_recording(read_recording(recording), baselines, only=only, reason=reason)
    click.echo(acceptance_table(accepted))


@main.command()
@click.argument("target", metavar="MODULE:FACTORY")
@click.option("--arch", type=click.Choice(ARCHES), default="sm_90", show_default=True)
@click.option(
    "--param", "params", multiple=True, metavar="AXIS=VALUE", help="Choose a workload's variant; repeatable."
)
@click.option("--json", "json", is_flag=True, help="One JSON object.")
def codegen(target: str, arch: str, params: tuple[str, ...], json: bool) -> None:
    """Generate a step's GPU code without a GPU: kernels, what they fuse and move, and their machine code.

    FACTORY is a declared workload, or a function without arguments that returns (module, example inputs).
    Exits with 3 where only a GPU can tell.
    """
    record = generate(target, arch, chosen_params(params), sys_path=[str(Path.cwd())])
    _write(codegen_json(record) if json else codegen_text(target, record), None)


def _write(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=not text.endswith("\n"))
    else:
        output.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")


def _trace_exit_code(found: TraceComparison, tolerance_percent: float | None) -> int:
    if found.ratio is None:
        return UNDECIDED
    tolerance = DEFAULT_TOLERANCE_FRACTION if tolerance_percent is None else tolerance_percent / 100
    return SLOWER if found.ratio >= 1 + tolerance else FINE


def _baseline_for(base: Path, now: Recording) -> Path:
    """Let BASE be the folder that holds the baselines, too: the one of NOW's hardware and lane is meant."""
    if workload_folders(base) or not baseline_folders(base):
        return base
    environment = now.workloads[0].environment
    found = find_baseline(base, environment.hardware, environment.lane)
    if found is None:
        lane = f" in lane {environment.lane!r}" if environment.lane else ""
        held = ", ".join(folder.name for folder in baseline_folders(base))
        raise UnusableInput(
            f"{base} holds no baseline for {environment.hardware}{lane}; it holds {held}. Record one with "
            "`pytest --kperf-update-baselines`"
        )
    return found


def _compared(base: Recording, now: Recording, tolerance_percent: float | None) -> tuple[Comparison, ...]:
    known = {rec.id: rec for rec in base.workloads}
    suite = Suite(base.workloads, now.workloads)
    return judge_suite(
        [
            compare_workload(known.get(rec.id), rec, _policy(suite, rec, tolerance_percent))
            for rec in now.workloads
        ]
    )


def _policy(suite: Suite, now: WorkloadRecording, tolerance_percent: float | None) -> Policy:
    tolerance = now.tolerance_fraction or DEFAULT_TOLERANCE_FRACTION
    return suite.policy(
        now.id,
        tolerance_fraction=tolerance if tolerance_percent is None else tolerance_percent / 100,
        metric="gpu_time" if now.timed else STRUCTURE,
    )


def _report(comparisons: Sequence[Comparison], now: Recording, missing: Sequence[str]) -> str:
    blocks = [verdict_table(comparisons)]
    blocks += [failure_text(c, comparisons) for c in comparisons if c.verdict is Verdict.SLOWER]
    undecided = [c for c in comparisons if c.verdict in (Verdict.UNDECIDED, Verdict.NO_BASELINE)]
    blocks += ["\n".join(map(skip_reason, undecided))] if undecided else []
    broken = [f"broken fact: {name}" for name in _broken_facts(now)]
    blocks += ["\n".join(broken)] if broken else []
    blocks += [f"in the base only: {', '.join(missing)}"] if missing else []
    blocks.append(summary_line(comparisons, origin_of(now, live=False), [("in the base only", len(missing))]))
    return "\n\n".join(blocks)


def _broken_facts(now: Recording) -> list[str]:
    facts = (fact for rec in now.workloads for fact in rec.facts or ())
    return sorted({fact.test for fact in facts if fact.outcome == "failed"})


def _exit_code(comparisons: Sequence[Comparison], now: Recording) -> int:
    verdicts = {comparison.verdict for comparison in comparisons}
    if Verdict.SLOWER in verdicts or _broken_facts(now):
        return SLOWER
    return UNDECIDED if verdicts & {Verdict.UNDECIDED, Verdict.NO_BASELINE} else FINE
