"""The matrix unit's instructions, as functions that compiled loops call.

They name registers themselves: nothing that a compiler makes by itself uses the unit's.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _assembly(text: str, count: int) -> Any:
    """A function of ``count`` addresses or numbers that runs these instructions."""
    words = ir.IntType(64)
    clobbered = ["~{memory}", "~{dirflag}", "~{fpsr}", "~{flags}"]

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        function = ir.FunctionType(ir.VoidType(), [words] * count)
        constraints = ",".join(["r"] * count + clobbered)
        builder.asm(function, text, constraints, arguments, side_effect=True)
        return context.get_dummy_value()

    return types.void(*[types.int64] * count), emit


@intrinsic
def configure(typing, address):  # type: ignore[no-untyped-def]
    return _assembly("ldtilecfg ($0)", 1)


@intrinsic
def release(typing):  # type: ignore[no-untyped-def]
    return _assembly("tilerelease", 0)


@intrinsic
def clear_sums(typing):  # type: ignore[no-untyped-def]
    return _assembly("\n".join(f"tilezero %tmm{k}" for k in range(4)), 0)


@intrinsic
def load_left(typing, address, stride):  # type: ignore[no-untyped-def]
    """Load two tiles, one after the other, for the left side of products."""
    return _assembly(_pair(4, 5), 2)


@intrinsic
def load_right(typing, address, stride):  # type: ignore[no-untyped-def]
    """The same for the right side."""
    return _assembly(_pair(6, 7), 2)


def _pair(first: int, second: int) -> str:
    loads = (f"tileloadd ($0,$1,1), %tmm{first}", f"tileloadd 1024($0,$1,1), %tmm{second}")
    return "\n".join(loads)


@intrinsic
def step(typing):  # type: ignore[no-untyped-def]
    """Add the four products of two tiles on the left and two on the right to four sums."""
    pairs = ((6, 4), (7, 4), (6, 5), (7, 5))
    lines = (f"tdpbf16ps %tmm{b}, %tmm{a}, %tmm{k}" for k, (b, a) in enumerate(pairs))
    return _assembly("\n".join(lines), 0)


@intrinsic
def store_sums(typing, upper, lower, stride):  # type: ignore[no-untyped-def]
    """The four sums as PANEL rows, the lower half of which begins at ``lower``."""
    return _assembly("\n".join(f"tilestored %tmm{k}, {at}" for k, at in enumerate(_SUMS)), 3)


@intrinsic
def load_sums(typing, upper, lower, stride):  # type: ignore[no-untyped-def]
    """The four sums from where `store_sums` put them."""
    return _assembly("\n".join(f"tileloadd {at}, %tmm{k}" for k, at in enumerate(_SUMS)), 3)


_SUMS = ("($0,$2,1)", "64($0,$2,1)", "($1,$2,1)", "64($1,$2,1)")


@intrinsic
def wide(typing):  # type: ignore[no-untyped-def]
    """Lets the loops of the function that calls it use vectors of 512 bits.

    LLVM keeps to 256 by itself, for processors that slow down with wider ones; those with the
    matrix unit do not.
    """

    def emit(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        # llvmlite knows no attributes with values, and writes down what the set holds. (Should that
        # change, loops are as they would be without.)
        if isinstance(builder.function.attributes, set):
            set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), emit
