"""Benchmarks. Importing one unsets OPENBLAS_CORETYPE, for itself and every process it starts.

A core type set from outside can halve the speed of OpenBLAS, which reads it when numpy is loaded;
this file runs before any module of the package, so before numpy.
"""

import os

OPENBLAS_CORETYPE = os.environ.pop("OPENBLAS_CORETYPE", None)
