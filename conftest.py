"""Makes the declared workloads known to every test folder: each is a fixture of its name."""

from fixtures.geglu import geglu_compiled, geglu_eager, geglu_liger
from fixtures.linear import linear_compiled, linear_eager, matmul_add

__all__ = [
    "geglu_compiled",
    "geglu_eager",
    "geglu_liger",
    "linear_compiled",
    "linear_eager",
    "matmul_add",
]
