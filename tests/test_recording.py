"""A recording reads back as it was written, and a file that is unusable says so in one error."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernelperf.errors import NotMeasurable, UnusableInput
from kernelperf.recording import (
    FactOutcome,
    read_recording,
    read_workload,
    stale_sources,
    trace_path,
    write_workload,
)
from tests import builders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A written workload's folder."""
    rec = builders.recording()
    return builders.write(tmp_path / "rec", rec) / rec.id


def timings(folder: Path) -> Path:
    return folder / "timings.json"


def content(folder: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(timings(folder).read_text())
    return loaded


def rewrite(folder: Path, change: Any) -> None:
    """Change the parsed file in place and write it back."""
    data = content(folder)
    change(data)
    timings(folder).write_text(json.dumps(data))


def test_reads_back_what_was_written(tmp_path: Path) -> None:
    rec = builders.recording(
        facts=None, reason="first", accepted_at="2026-03-05T00:00:00+00:00", tolerance_fraction=0.05
    )
    written = write_workload(rec, tmp_path / rec.id, builders.trace_file(tmp_path))
    assert read_workload(tmp_path / rec.id) == written
    assert written.params == (("dtype", "bf16"), ("shape", (64, 128, 768)))
    assert replace(written, runs=()) == replace(rec, runs=())
    for before, after in zip(rec.runs, written.runs, strict=True):
        assert after.gpu_time_ns == pytest.approx(before.gpu_time_ns, rel=5e-5)
        assert after.wall_time_ns == pytest.approx(before.wall_time_ns, rel=5e-5)
        assert replace(after, gpu_time_ns=(), wall_time_ns=()) == replace(
            before, gpu_time_ns=(), wall_time_ns=()
        )


def test_reads_back_runs_that_differ_in_everything(tmp_path: Path) -> None:
    runs = (
        builders.run(206.8),
        builders.run(
            224.6,
            kernels=builders.geglu_kernels(builders.NARROW, 57.0),
            observations=builders.observations(recompiles=2, peak_memory_bytes=2**40 + 1),
            queue_held=False,
            card="other",
            repeats=8,
            first_call_s=12.5,
        ),
    )
    rec = builders.recording(runs=runs)
    written = write_workload(rec, tmp_path / rec.id, builders.trace_file(tmp_path))
    for before, after in zip(runs, written.runs, strict=True):
        assert replace(after, gpu_time_ns=(), wall_time_ns=()) == replace(
            before, gpu_time_ns=(), wall_time_ns=()
        )


def test_a_recording_without_times_reads_back(tmp_path: Path) -> None:
    rec = builders.recording(runs=(builders.untimed(builders.run()),))
    written = write_workload(rec, tmp_path / rec.id, builders.trace_file(tmp_path))
    assert written == rec
    assert not written.timed
    assert [b["group"] for b in content(tmp_path / rec.id)["benchmarks"]] == ["kernel_time"]


def test_an_error_that_is_no_number_reads_back_as_none(tmp_path: Path) -> None:
    run = builders.run(observations=builders.observations(relative_error=math.nan))
    rec = builders.recording(runs=(run,))
    written = write_workload(rec, tmp_path / rec.id, builders.trace_file(tmp_path))
    assert written.runs[0].observations == builders.observations(relative_error=None)


def test_samples_have_five_digits_and_counts_are_exact(folder: Path) -> None:
    extra = content(folder)["benchmarks"][0]["extra_info"]
    assert extra["runs_ns"][1][3] == 206180  # 206.8 µs · 1.002 · 0.995 = 206.1775…
    assert extra["observations"][0]["peak_memory_bytes"] == 264_241_152
    assert isinstance(extra["observations"][0]["peak_memory_bytes"], int)


def test_the_statistics_are_of_the_rounds_that_count(folder: Path) -> None:
    gpu = content(folder)["benchmarks"][0]
    assert len(gpu["extra_info"]["runs_ns"][0]) == 15
    assert len(gpu["stats"]["data"]) == 5 * 12
    assert gpu["stats"]["rounds"] == 60
    assert gpu["stats"]["mean"] == pytest.approx(206.8e-6, rel=1e-4)


def test_the_file_reviews_well(folder: Path) -> None:
    """Keys are sorted; a run's samples, a kernel and a source take one line each."""
    lines = timings(folder).read_text().splitlines()
    assert content(folder) == json.loads(json.dumps(content(folder), sort_keys=True))
    keys = list(content(folder)["benchmarks"][0]["extra_info"])
    assert keys == sorted(keys)
    samples = [line for line in lines if line.strip().startswith("[") and line.count(",") in (14, 15)]
    assert len(samples) == 5
    assert (
        sum(f'"name": "{builders.FUSED}"' in line and '"grid": [24576, 1, 1]' in line for line in lines) == 1
    )
    assert len([line for line in lines if '"fixtures/geglu.py"' in line]) == 2  # declared_in, sources
    assert timings(folder).read_text().endswith("}\n")


def test_recording_again_on_an_unchanged_machine_gives_a_small_diff(tmp_path: Path) -> None:
    texts = []
    for name, us in (("one", 206.8), ("two", 207.1)):
        rec = builders.recording(runs=builders.runs(us))
        builders.write(tmp_path / name, rec)
        texts.append(timings(tmp_path / name / rec.id).read_text().splitlines())
    assert len(texts[0]) == len(texts[1])
    changed = [old for old, new in zip(*texts, strict=True) if old != new]
    # 5 runs' samples, their rows in stats.data and one line of statistics, for gpu_time and wall_time
    assert len(changed) == 2 * (5 + 5 + 1)


def test_writing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    rec = builders.recording()
    first = builders.write(tmp_path / "one", rec) / rec.id
    again = builders.write(tmp_path / "two", read_workload(first)) / rec.id
    assert timings(first).read_bytes() == timings(again).read_bytes()


def test_without_a_trace_the_one_that_is_there_stays(folder: Path) -> None:
    before = trace_path(folder).read_bytes()
    write_workload(builders.recording(facts=()), folder, None)
    assert trace_path(folder).read_bytes() == before
    assert read_workload(folder).facts == ()


def test_a_kill_between_the_two_files_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.replace, []

    def killed(source: Any, target: Any) -> None:
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_workload(builders.recording(), folder, builders.trace_file(folder.parent.parent, "new trace"))
    monkeypatch.undo()
    with pytest.raises(UnusableInput, match=r"trace\.json\.gz doesn't belong to timings\.json.*interrupted"):
        read_workload(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["timings.json", "trace.json.gz"]


def test_a_full_disk_leaves_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = timings(folder).read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_workload(builders.recording(facts=()), folder, None)
    assert timings(folder).read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == ["timings.json", "trace.json.gz"]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ((), "has no runs"),
        ((builders.run(gpu_time_ns=(math.nan,) * 4),), r"gpu_time_ns holds nan; expected durations above 0"),
        ((builders.run(gpu_time_ns=(0.0, 1.0)),), r"gpu_time_ns holds 0\.0"),
        ((builders.run(wall_time_ns=(math.inf,)),), r"wall_time_ns holds inf"),
        ((builders.run(), builders.run(gpu_time_ns=())), r"gpu_time_ns is empty in run 2 of 2"),
        ((builders.run(gpu_time_ns=()),), "has wall_time_ns but no gpu_time_ns"),
    ],
)
def test_samples_that_prove_nothing_are_not_written(tmp_path: Path, runs: Any, message: str) -> None:
    with pytest.raises(NotMeasurable, match=message):
        write_workload(builders.recording(runs=runs), tmp_path / "w", builders.trace_file(tmp_path))
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"timings\.json is empty; record it again"),
        (b" \n", "is empty"),
        (b'{"benchmarks": [', "is truncated or no JSON"),
        (b"\x00\xff", "is truncated or no JSON"),
        (b"[]", "is JSON, but not pytest-benchmark's"),
        (b'{"results": 1}', "is JSON, but not pytest-benchmark's"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "Git LFS pointer.*git lfs pull"),
        (b"{\n<<<<<<< HEAD\n=======\n>>>>>>> other\n}", "merge conflict markers.*--theirs"),
        (
            b'{"benchmarks": [{"group": "g", "extra_info": {}}], "machine_info": {}, "datetime": ""}',
            "is pytest-benchmark's JSON, but kernelperf didn't write it",
        ),
        (b'{"benchmarks": 3}', r"doesn't fit schema 1: Expected `array`, got `int` - at `\$\.benchmarks`"),
    ],
)
def test_an_unusable_file_is_one_error_that_names_it(folder: Path, data: bytes, message: str) -> None:
    timings(folder).write_bytes(data)
    with pytest.raises(UnusableInput, match=message) as caught:
        read_workload(folder)
    assert str(timings(folder)) in str(caught.value)


def test_a_truncated_file_is_unusable(folder: Path) -> None:
    whole = timings(folder).read_bytes()
    timings(folder).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnusableInput, match="is truncated or no JSON"):
        read_workload(folder)


def test_a_newer_schema_asks_for_an_upgrade(folder: Path) -> None:
    rewrite(folder, lambda data: data["benchmarks"][0]["extra_info"].update(schema_version=2))
    with pytest.raises(UnusableInput, match=r"schema version 2; this kernelperf reads up to 1: upgrade"):
        read_workload(folder)


def test_a_wrong_type_is_named_with_its_place(folder: Path) -> None:
    rewrite(folder, lambda data: data["benchmarks"][0]["extra_info"]["counts"][0].update(kernels="four"))
    with pytest.raises(UnusableInput, match=r"Expected `int`, got `str` - at `\$\.counts\[0\]\.kernels`"):
        read_workload(folder)


def test_lists_that_do_not_fit_together_are_unusable(folder: Path) -> None:
    rewrite(folder, lambda data: data["benchmarks"][0]["extra_info"]["counts"].pop())
    with pytest.raises(UnusableInput, match="lists of runs don't fit together"):
        read_workload(folder)


def test_an_index_outside_its_list_is_unusable(folder: Path) -> None:
    rewrite(folder, lambda data: data["benchmarks"][0]["extra_info"]["runs"][0].update(launches=1))
    with pytest.raises(UnusableInput, match="lists of runs don't fit together"):
        read_workload(folder)
    rewrite(folder, lambda data: data["benchmarks"][0]["extra_info"]["runs"][0].update(launches=-1))
    with pytest.raises(UnusableInput, match=r"Expected `int` >= 0 - at `\$\.runs\[0\]\.launches`"):
        read_workload(folder)


def test_nan_in_the_file_is_unusable(folder: Path) -> None:
    text = timings(folder).read_text().replace("206180", "NaN", 1)
    assert "NaN" in text
    timings(folder).write_text(text)
    with pytest.raises(UnusableInput, match="no JSON"):
        read_workload(folder)


@pytest.mark.parametrize(
    ("value", "message"), [([], "gpu_time_ns is empty in run 1"), ([-1.0], "holds -1.0")]
)
def test_samples_that_prove_nothing_are_not_read(folder: Path, value: Any, message: str) -> None:
    rewrite(folder, lambda data: data["benchmarks"][0]["extra_info"]["runs_ns"].__setitem__(0, value))
    with pytest.raises(UnusableInput, match=message):
        read_workload(folder)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "is missing: a recording needs its trace"),
        (b"", "is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"plain", "is no gzip file"),
        (gzip.compress(b"another"), "doesn't belong to timings.json"),
    ],
)
def test_an_unusable_trace_is_one_error_that_names_it(folder: Path, data: bytes | None, message: str) -> None:
    trace_path(folder).unlink()
    if data is not None:
        trace_path(folder).write_bytes(data)
    with pytest.raises(UnusableInput, match=message) as caught:
        read_workload(folder)
    assert str(trace_path(folder)) in str(caught.value)


def test_a_recording_is_all_its_workloads(tmp_path: Path) -> None:
    eager, compiled = builders.recording("geglu_eager"), builders.recording()
    folder = builders.write(tmp_path / "rec", eager, compiled)
    (folder / "session.log").write_text("not a workload")
    (folder / ".hidden").mkdir()
    assert [rec.id for rec in read_recording(folder).workloads] == ["geglu_compiled-bf16", "geglu_eager-bf16"]


def test_a_workload_that_was_interrupted_is_not_passed_over(folder: Path) -> None:
    timings(folder).unlink()
    with pytest.raises(UnusableInput, match=r"holds no timings\.json"):
        read_recording(folder.parent)


def test_a_renamed_folder_is_unusable(folder: Path) -> None:
    folder.rename(folder.with_name("renamed"))
    with pytest.raises(UnusableInput, match=r"'geglu_compiled-bf16', but its folder is named 'renamed'"):
        read_recording(folder.parent)


def test_a_folder_that_is_no_recording_says_what_it_is(folder: Path) -> None:
    root = folder.parent.parent
    for path, message in [
        (root / "nowhere", "there is no such folder"),
        (timings(folder), "expected a folder, found a file"),
        (folder, f"it is one workload's folder; name the folder above it, {folder.parent}"),
        (root, f"it holds recordings; name one of them, such as {folder.parent}"),
        (root / "traces", "expected a folder a workload"),
    ]:
        with pytest.raises(UnusableInput) as caught:
            read_recording(path)
        assert message in str(caught.value)


def test_sources_that_changed_or_vanished_are_stale(tmp_path: Path) -> None:
    for name in ("same.py", "changed.py", "gone.py"):
        (tmp_path / name).write_text(name)
    sources = tuple((path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in tmp_path.iterdir())
    (tmp_path / "changed.py").write_text("other")
    (tmp_path / "gone.py").unlink()
    assert sorted(stale_sources(builders.recording(sources=sources), tmp_path)) == ["changed.py", "gone.py"]


def test_facts_keep_their_outcome(tmp_path: Path) -> None:
    facts = (FactOutcome("t::a", "failed"), FactOutcome("t::b", "skipped"))
    rec = builders.recording(facts=facts)
    assert read_workload(builders.write(tmp_path / "rec", rec) / rec.id).facts == facts


def test_pytest_benchmark_compares_recordings(tmp_path: Path) -> None:
    """``pytest-benchmark compare <recording>/*/timings.json`` shows a row a workload in a group a metric."""
    folder = builders.write(tmp_path / "rec", builders.recording("geglu_eager"), builders.recording())
    files = [str(path) for path in sorted(folder.glob("*/timings.json"))]
    command = "from pytest_benchmark.cli import main; main()"
    arguments = ["compare", "--columns=mean,rounds,iterations", "--csv", str(tmp_path / "out.csv"), *files]
    done = subprocess.run(
        [sys.executable, "-c", command, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "Failed to load" not in done.stdout + done.stderr
    for metric in ("gpu_time", "wall_time"):
        assert f"benchmark '{metric}': 2 tests" in done.stdout
    rows = [line.split()[0] for line in done.stdout.splitlines() if line.startswith("geglu")]
    assert sorted(rows) == ["geglu_compiled-bf16"] * 2 + ["geglu_eager-bf16"] * 2
    with (tmp_path / "out.csv").open() as file:
        means = {row["name"]: float(row["mean"]) for row in csv.DictReader(file)}
    assert means["geglu_eager-bf16[gpu_time]"] == pytest.approx(206.8e-6, rel=1e-4)
