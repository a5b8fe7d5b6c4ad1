"""A kernel's name and the ops that launched it → its role; what isn't known is ``other``, never guessed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import get_args

from kernelperf.errors import UnusableInput
from kernelperf.trace import Role

MATMUL_OPS = frozenset(
    f"aten::{name}"
    for name in (
        "mm addmm bmm baddbmm addbmm matmul linear mv addmv dot vdot addr _int_mm _scaled_mm _grouped_mm "
        "_scaled_grouped_mm _addmm_activation"
    ).split()
)
COPY_OPS = frozenset(f"aten::{name}" for name in "copy_ _copy_from _to_copy to clone contiguous cat".split())
COPY_FUSED_OPS = frozenset(
    {"clone", "copy", "copy_", "_to_copy", "_unsafe_view", "view", "t", "transpose", "permute"}
)


@dataclass(frozen=True, slots=True)
class RoleRules:
    """Roles for a user's own kernels: (regular expression searched in the name, role), tried first."""

    extra: tuple[tuple[str, Role], ...] = ()


DEFAULT_RULES = RoleRules()


def parse_rule(line: str) -> tuple[str, Role]:
    """Return the regular expression and the role of a line ``REGEX = ROLE``.

    Raises `UnusableInput`, which quotes the line, for anything else.
    """
    pattern, separator, role = (part.strip() for part in line.rpartition("="))
    if not separator or not pattern or role not in get_args(Role):
        raise UnusableInput(
            f"expected 'REGEX = ROLE' with a role of {', '.join(get_args(Role))}, found {line!r}"
        )
    try:
        re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise UnusableInput(f"{pattern!r} is no regular expression ({error}); found in {line!r}") from error
    return pattern, role  # type: ignore[return-value]  # checked against Role's values above


# Searched in a kernel's bare name: return type, template arguments and parameters are gone, because they name
# other things (flash attention's mention cutlass, an elementwise kernel's its functor).
_COMM = re.compile(r"(?:^|::)(?:nccl|rccl)", re.IGNORECASE)
_SPLITK_REDUCE = re.compile(r"splitK_?reduce|ReduceSplitK|PostGSU", re.IGNORECASE)
_CONVOLUTION = re.compile(r"fprop|dgrad|wgrad|convol|conv\dd|winograd", re.IGNORECASE)
_GEMM = re.compile(r"gemm|gemv|^nvjet_|^Cijk_|xmma|^triton_(?:mm|bmm|addmm)", re.IGNORECASE)
_GEMM_UNDER_MATMUL = re.compile(r"cutlass|^dot_kernel$|::dot_kernel$")
_ATTENTION = re.compile(r"flash|fmha|attention|attn", re.IGNORECASE)
_ELEMENTWISE = re.compile(r"elementwise_kernel|elementwise_grid_stride_kernel|multi_tensor_apply_kernel")
_COPY = re.compile(r"CatArrayBatchedCopy|^__amd_rocclr_copyBuffer")
_REDUCE = re.compile(
    r"reduce_kernel|DeviceReduce|reduce_1Block|softmax|layer_norm|RowwiseMoments|GammaBeta", re.IGNORECASE
)
# Searched in the whole name of an elementwise kernel: its functor.
_COPY_FUNCTOR = re.compile(r"direct_copy_kernel|float16_copy_kernel|float8_copy_kernel|::CopyFunctor")
_NORM_FUNCTOR = re.compile(r"NormFunctor")
_LIGER_POINTWISE = re.compile(r"^_(?:geglu|swiglu)\w*_(?:forward|backward)_kernel$")
_INDUCTOR = re.compile(r"^triton_(poi|red|per|tem|for)_")
_FUSED = re.compile(r"(?P<kind>triton_[a-z]+_fused)_(?P<rest>\w+)")
# What follows the ops: an index, perhaps with the argument signature of older Triton versions.
_INDEX = re.compile(r"\d+(?:[dc]e?\d*)*")
_SIGNATURE = re.compile(r"_\d+(?:[dc]e?\d*)+$")

# Op names of more than one word, which a fused kernel's name joins with the same underscore.
_WORDY_OPS = tuple(
    sorted(
        (
            "_to_copy _unsafe_view _unsafe_index _softmax _log_softmax _scaled_mm _int_mm as_strided "
            "index_select index_put masked_fill native_layer_norm native_group_norm native_dropout "
            "native_batch_norm layer_norm rms_norm group_norm batch_norm leaky_relu log_softmax "
            "gelu_backward silu_backward threshold_backward tanh_backward sigmoid_backward "
            "native_layer_norm_backward native_dropout_backward slice_backward select_backward "
            "select_scatter slice_scatter scatter_add constant_pad_nd new_zeros new_ones zeros_like "
            "ones_like full_like empty_like rand_like bitwise_and bitwise_or bitwise_not logical_and "
            "logical_or logical_not convolution_backward embedding_dense_backward flex_attention "
            "mm_plus_mm nll_loss_forward nll_loss_backward cross_entropy copy_ add_ mul_"
        ).split(),
        key=len,
        reverse=True,
    )
)
_FUSED_OP = re.compile("(" + "|".join(_WORDY_OPS) + r"|_?[a-z0-9]+?)(?:_|$)")


@lru_cache(maxsize=65536)
def role_of(kernel_name: str, op_names: tuple[str, ...], rules: RoleRules = DEFAULT_RULES) -> Role:
    """Return a kernel's role, from its name and the ops that launched it (outermost first) together."""
    for pattern, role in rules.extra:
        if re.search(pattern, kernel_name):
            return role
    if _INDUCTOR.match(kernel_name):
        return _inductor_role(kernel_name)
    bare = bare_name(kernel_name)
    if _LIGER_POINTWISE.match(bare):
        return "pointwise" if any(op.startswith("Liger") for op in op_names) or not op_names else "other"
    if _ELEMENTWISE.search(bare):
        return _elementwise_role(kernel_name, op_names)
    return _library_role(kernel_name, bare, op_names)


def bare_name(kernel_name: str) -> str:
    """Return a C++ kernel's name without return type, template arguments and parameters."""
    name = kernel_name.replace("(anonymous namespace)", "anonymous")
    kept, depth = [], 0
    for character in name:
        if character in "<([":
            depth += 1
        elif character in ">)]":
            depth -= 1
        elif depth == 0:
            kept.append(character)
    return "".join(kept).split(" ")[-1] if depth == 0 else kernel_name


@lru_cache(maxsize=65536)
def portable_name(kernel_name: str) -> str:
    """Return what of a Triton kernel's name outlives another compilation: no index, signature or hash."""
    found = _FUSED.fullmatch(kernel_name)
    if found and _fused(found["rest"]) is not None:
        return "_".join((found["kind"], *fused_op_names(kernel_name)))
    return _SIGNATURE.sub("", kernel_name)


def fused_op_names(kernel_name: str) -> tuple[str, ...]:
    """Return the ops that an Inductor kernel's name says were fused; empty for any other kernel."""
    found = _FUSED.fullmatch(kernel_name)
    ops = _fused(found["rest"]) if found else ""
    return tuple(_FUSED_OP.findall(ops)) if ops else ()


def _fused(rest: str) -> str | None:
    """Return what of a fused kernel's name stands before its index; None where it has none."""
    words = rest.split("_")
    place = next((n for n in reversed(range(len(words))) if _INDEX.fullmatch(words[n])), None)
    return None if place is None else "_".join(words[:place])


def _inductor_role(kernel_name: str) -> Role:
    kind = kernel_name.split("_")[1]
    if kind == "tem":
        return "other" if _ATTENTION.search(kernel_name) or _CONVOLUTION.search(kernel_name) else "gemm"
    if kind in ("red", "per"):
        return "reduce"
    fused = set(fused_op_names(kernel_name))
    return "copy" if fused and fused <= COPY_FUSED_OPS else "pointwise"


def _elementwise_role(kernel_name: str, op_names: tuple[str, ...]) -> Role:
    if _NORM_FUNCTOR.search(kernel_name):
        return "reduce"
    copies = bool(op_names) and op_names[-1] in COPY_OPS
    return "copy" if copies or _COPY_FUNCTOR.search(kernel_name) else "pointwise"


def _library_role(kernel_name: str, bare: str, op_names: tuple[str, ...]) -> Role:
    if _COMM.search(bare):
        return "comm"
    if _SPLITK_REDUCE.search(bare):
        return "splitk_reduce"
    if _CONVOLUTION.search(kernel_name) or _ATTENTION.search(kernel_name):
        return "other"
    if _GEMM.search(bare) or _is_gemm_by_op(kernel_name, bare, op_names):
        return "gemm"
    if _COPY.search(bare):
        return "copy"
    return "reduce" if _REDUCE.search(bare) else "other"


def _is_gemm_by_op(kernel_name: str, bare: str, op_names: tuple[str, ...]) -> bool:
    if bare.startswith("cutlass") and "gemm" in kernel_name.lower():
        return True
    return bool(_GEMM_UNDER_MATMUL.search(bare)) and (not op_names or not MATMUL_OPS.isdisjoint(op_names))
