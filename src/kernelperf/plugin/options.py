"""Command line and ini values → the Options of one session, each value checked and every path absolute."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from kernelperf.errors import UnusableInput
from kernelperf.trace import Role
from kernelperf.trace.roles import parse_rule

DEFAULT_TOLERANCE_PERCENT = 2.0
DEFAULT_RUNS = 5
# A baseline is accepted from this many runs at least.
BASELINE_RUNS = 5
# A first look at one run; who is not the same gets three, then as many as the user allows.
SECOND_LOOK_RUNS = 3

Kind = Literal["flag", "path", "text", "runs", "percent"]


@dataclass(frozen=True, slots=True)
class _Option:
    """An option ``--kperf-<name>`` and its ini twin ``kperf_<name>``."""

    name: str
    kind: Kind
    metavar: str
    help: str

    @property
    def flag(self) -> str:
        return f"--kperf-{self.name}"

    @property
    def key(self) -> str:
        return f"kperf_{self.name.replace('-', '_')}"


_OPTIONS = (
    _Option("replay", "path", "DIR", "judge the recording in DIR instead of measuring"),
    _Option("baselines", "path", "DIR", "folder that holds a baseline a GPU (default: baselines)"),
    _Option("record", "path", "DIR", "write what is measured to DIR (default: .kernelperf)"),
    _Option(
        "update-baselines", "flag", "", "measure at least 5 runs of each and make them this GPU's baseline"
    ),
    _Option("reason", "text", "TEXT", "why the baselines are updated"),
    _Option("require-gpu", "flag", "", "fail where there is no GPU, or where a workload is unavailable"),
    _Option(
        "require-baseline", "flag", "", "fail workloads without a baseline, and baselines without workload"
    ),
    _Option("strict", "flag", "", "fail what is undecided or has no baseline, instead of skipping it"),
    _Option("advisory", "flag", "", "report everything, fail nothing"),
    _Option(
        "runs", "runs", "N", f"measure a suspicious workload in up to N workers (default: {DEFAULT_RUNS})"
    ),
    _Option(
        "tolerance",
        "percent",
        "PERCENT",
        f"slowdown to fail from, without a mark of its own (default: {DEFAULT_TOLERANCE_PERCENT:g})",
    ),
    _Option("no-timing", "flag", "", "check structure only: one run of each, nothing timed"),
    _Option("lane", "text", "NAME", "keep baselines of this lane apart, such as nightly"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked of this session."""

    root: Path
    invocation: Path  # where pytest was started
    command: str  # what was typed
    replay: Path | None
    fallback: Path | None
    baselines: Path
    record: Path
    update: bool
    reason: str
    require_gpu: bool
    require_baseline: bool
    strict: bool
    advisory: bool
    runs: int
    tolerance_fraction: float
    timing: bool
    timing_off_by: str  # the option that turned timing off
    lane: str
    roles: tuple[tuple[str, Role], ...]
    given: bool  # whether any kperf option is on the command line

    @property
    def looks(self) -> tuple[int, ...]:
        """After how many runs the workloads are judged, one entry a look."""
        if self.update:
            return (max(BASELINE_RUNS, self.runs),)
        if not self.timing:
            return (1,)
        return tuple(sorted({1, min(SECOND_LOOK_RUNS, self.runs), self.runs}))

    def shown(self, path: Path) -> str:
        """Return a path as the user would type it."""
        for base in (self.invocation, self.root):
            if path.is_relative_to(base):
                return str(path.relative_to(base))
        return str(path)


def add_options(parser: pytest.Parser) -> None:
    """Declare every option and its ini twin."""
    group = parser.getgroup("kernelperf", "GPU performance (pytest-kernelperf)")
    for option in _OPTIONS:
        if option.kind == "flag":
            group.addoption(option.flag, dest=option.key, action="store_true", default=None, help=option.help)
            parser.addini(option.key, f"as {option.flag}", type="bool", default=False)
        else:
            group.addoption(
                option.flag, dest=option.key, metavar=option.metavar, default=None, help=option.help
            )
            parser.addini(option.key, f"as {option.flag}", type="string", default="")
    parser.addini("kperf_fallback_recording", "recording to replay where there is no GPU and CI is unset")
    parser.addini("kperf_roles", "roles of your own kernels, a line each: REGEX = ROLE", type="linelist")


def read_options(config: pytest.Config) -> Options:
    """Return the session's options; raises `pytest.UsageError` naming the option and its bad value."""
    values = {option.name: _value(config, option) for option in _OPTIONS}
    options = Options(
        root=config.rootpath,
        invocation=config.invocation_params.dir,
        command=" ".join(["pytest", *map(str, config.invocation_params.args)]),
        replay=values["replay"],
        fallback=_ini_path(config, "kperf_fallback_recording"),
        baselines=values["baselines"] or config.rootpath / "baselines",
        record=values["record"] or config.rootpath / ".kernelperf",
        update=values["update-baselines"],
        reason=values["reason"],
        require_gpu=values["require-gpu"],
        require_baseline=values["require-baseline"],
        strict=values["strict"],
        advisory=values["advisory"],
        runs=_runs(values["runs"], update=values["update-baselines"]),
        tolerance_fraction=values["tolerance"] or DEFAULT_TOLERANCE_PERCENT / 100,
        timing=not _timing_off_by(config, no_timing=values["no-timing"]),
        timing_off_by=_timing_off_by(config, no_timing=values["no-timing"]),
        lane=values["lane"],
        roles=tuple(_role(line) for line in config.getini("kperf_roles")),
        given=any(config.getoption(option.key) is not None for option in _OPTIONS),
    )
    _check_conflicts(options)
    return options


def _value(config: pytest.Config, option: _Option) -> Any:
    typed = config.getoption(option.key)
    if option.kind == "flag":
        return bool(typed) or bool(config.getini(option.key))
    raw = config.getini(option.key) if typed is None else typed
    where = f"{option.key} (ini)" if typed is None else option.flag
    if typed is not None and not raw.strip():
        raise pytest.UsageError(f"{where}: expected {option.metavar}, found an empty value")
    base = config.rootpath if typed is None else config.invocation_params.dir
    return _READERS[option.kind](raw.strip(), where, base) if raw.strip() else _EMPTY[option.kind]


def _read_runs(raw: str, where: str, _: Path) -> int:
    if not raw.isdecimal() or int(raw) < 1:
        raise pytest.UsageError(f"{where}: expected a whole number of runs, at least 1, found {raw!r}")
    return int(raw)


def _read_percent(raw: str, where: str, _: Path) -> float:
    try:
        percent = float(raw.removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise pytest.UsageError(f"{where}: expected percent above 0 and up to 100, such as 3, found {raw!r}")
    return percent / 100


def _read_text(raw: str, where: str, _: Path) -> str:
    if where.startswith(("--kperf-lane", "kperf_lane")) and not re.fullmatch(r"[A-Za-z0-9._-]+", raw):
        raise pytest.UsageError(f"{where}: expected letters, digits, '.', '_' or '-', found {raw!r}")
    return raw


_READERS: dict[Kind, Callable[[str, str, Path], Any]] = {
    "path": lambda raw, _, base: (base / Path(raw).expanduser()).resolve(),
    "text": _read_text,
    "runs": _read_runs,
    "percent": _read_percent,
}
_EMPTY: dict[Kind, Any] = {"path": None, "text": "", "runs": None, "percent": None}


def _ini_path(config: pytest.Config, key: str) -> Path | None:
    raw = str(config.getini(key) or "").strip()
    return (config.rootpath / raw).resolve() if raw else None


def _runs(runs: int | None, *, update: bool) -> int:
    if update and runs is not None and runs < BASELINE_RUNS:
        raise pytest.UsageError(
            f"--kperf-runs: a baseline needs at least {BASELINE_RUNS} runs, found {runs!r}; "
            "leave it out with --kperf-update-baselines"
        )
    return DEFAULT_RUNS if runs is None else runs


def _timing_off_by(config: pytest.Config, *, no_timing: bool) -> str:
    if no_timing:
        return "--kperf-no-timing"
    off = config.getoption("benchmark_disable", False) and not config.getoption("benchmark_enable", False)
    return "--benchmark-disable" if off else ""


def _role(line: str) -> tuple[str, Role]:
    try:
        return parse_rule(line)
    except UnusableInput as error:
        raise pytest.UsageError(f"kperf_roles (ini): {error}") from error


def _check_conflicts(options: Options) -> None:
    conflicts = (
        (options.replay and options.update, "--kperf-replay", "--kperf-update-baselines",
         "accept a recording with `kernelperf accept DIR --reason TEXT`"),
        (options.replay and options.require_gpu, "--kperf-replay", "--kperf-require-gpu",
         "a replay measures nothing"),
        (options.strict and options.advisory, "--kperf-strict", "--kperf-advisory",
         "one fails more, the other fails nothing"),
        (options.update and options.advisory, "--kperf-update-baselines", "--kperf-advisory",
         "a baseline is not stored when a fact fails"),
        (options.update and not options.timing, "--kperf-update-baselines", options.timing_off_by,
         "a baseline holds times"),
    )  # fmt: skip
    for conflict, first, second, why in conflicts:
        if conflict:
            raise pytest.UsageError(f"{first} and {second} can't be used together: {why}")
    if options.reason and not options.update:
        raise pytest.UsageError(
            f"--kperf-reason: {options.reason!r} is for --kperf-update-baselines; give both, or neither"
        )
