"""Every variant computes the same as float64, so far as its dtype can; only then are speeds compared."""

import pytest

from fixtures.numerics import GEGLU_ROUNDINGS, LINEAR_ROUNDINGS, tolerance
from kernelperf import NotMeasurable
from kernelperf.compare import speed_ratio


def allowed(workload, roundings):
    """Return the relative error allowed to the workload; `fixtures.numerics` says why."""
    return tolerance(workload.params["dtype"], roundings)


def test_matmul_add_matches_float64(matmul_add):
    """‖output − reference‖ / ‖reference‖, on the same weights and input."""
    assert matmul_add.observations.relative_error <= allowed(matmul_add, LINEAR_ROUNDINGS)


def test_linear_eager_matches_float64(linear_eager):
    """The epilogue adds the bias before rounding."""
    assert linear_eager.observations.relative_error <= allowed(linear_eager, LINEAR_ROUNDINGS)


def test_linear_compiled_matches_float64(linear_compiled):
    """The GPU does exactly the same arithmetic."""
    assert linear_compiled.observations.relative_error <= allowed(linear_compiled, LINEAR_ROUNDINGS)


def test_geglu_eager_matches_float64(geglu_eager):
    """Every intermediate is rounded."""
    assert geglu_eager.observations.relative_error <= allowed(geglu_eager, GEGLU_ROUNDINGS)


def test_geglu_compiled_matches_float64(geglu_compiled):
    """Inductor's kernel keeps GeLU in float32."""
    assert geglu_compiled.observations.relative_error <= allowed(geglu_compiled, GEGLU_ROUNDINGS)


def test_geglu_liger_matches_float64(geglu_liger):
    """Liger's kernel rounds GeLU before it multiplies."""
    assert geglu_liger.observations.relative_error <= allowed(geglu_liger, GEGLU_ROUNDINGS)


def test_the_linears_compute_the_same(matmul_add, linear_eager, linear_compiled):
    """Same weights, same input: one float64 reference."""
    digests = {each.observations.reference_digest for each in (matmul_add, linear_eager, linear_compiled)}
    assert len(digests) == 1
    assert None not in digests


def test_the_mlps_compute_the_same(geglu_eager, geglu_compiled, geglu_liger):
    """Same weights, same input: one float64 reference."""
    digests = {each.observations.reference_digest for each in (geglu_eager, geglu_compiled, geglu_liger)}
    assert len(digests) == 1
    assert None not in digests


def test_speeds_of_variants_that_disagree_are_not_compared(linear_eager, geglu_eager):
    """A faster wrong answer is no answer."""
    refusal = "no speed comparison: .*(don't compute the same|is off its float64 reference)"
    with pytest.raises(NotMeasurable, match=refusal):
        speed_ratio(linear_eager.recording, geglu_eager.recording, allowed(geglu_eager, GEGLU_ROUNDINGS))


def test_speeds_of_the_mlps_are_compared(
    gpu_speed_ratio, record_property, geglu_eager, geglu_compiled, geglu_liger
):
    """Inductor's kernel or Liger's: asked only between equals, answered for this GPU and launch config."""
    for fused in (geglu_compiled, geglu_liger):
        ratio = gpu_speed_ratio(geglu_eager, fused, tolerance=allowed(geglu_eager, GEGLU_ROUNDINGS))
        record_property(f"geglu_eager over {fused.recording.name}, gpu_time", round(ratio, 3))
