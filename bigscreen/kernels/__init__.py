"""The kernels: entries between rows, and what rounding can do to them."""

from bigscreen.kernels.base import Kernel
from bigscreen.kernels.given import Custom, Precomputed
from bigscreen.kernels.standard import Laplacian, Linear, Polynomial, Rbf, Sigmoid

__all__ = [
    "Custom",
    "Kernel",
    "Laplacian",
    "Linear",
    "Polynomial",
    "Precomputed",
    "Rbf",
    "Sigmoid",
]
