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
def clear(typing):  # type: ignore[no-untyped-def]
    return _assembly("\n".join(f"tilezero %tmm{k}" for k in range(4)), 0)


@intrinsic
def step(typing, left, right, stride):  # type: ignore[no-untyped-def]
    """Four products of two tiles on the left and two on the right."""
    lines = (
        "tileloadd ($0,$2,1), %tmm4",
        "tileloadd ($1,$2,1), %tmm6",
        "tdpbf16ps %tmm6, %tmm4, %tmm0",
        "tileloadd 1024($1,$2,1), %tmm7",
        "tdpbf16ps %tmm7, %tmm4, %tmm1",
        "tileloadd 1024($0,$2,1), %tmm5",
        "tdpbf16ps %tmm6, %tmm5, %tmm2",
        "tdpbf16ps %tmm7, %tmm5, %tmm3",
    )
    return _assembly("\n".join(lines), 3)


@intrinsic
def store(typing, address, stride):  # type: ignore[no-untyped-def]
    """The four sums as a square of PANEL rows."""
    places = ("", "64", "2048", "2112")
    lines = (f"tilestored %tmm{k}, {place}($0,$1,1)" for k, place in enumerate(places))
    return _assembly("\n".join(lines), 2)
