"""Benchmarks. Importing one unsets OPENBLAS_CORETYPE, for itself and every process it starts.

A core type set from outside can halve the speed of OpenBLAS, which reads it when numpy is loaded;
this file runs before any module of the package, so before numpy. Where numpy is loaded already it
stays as it is: processes started from there compute with the same bits.
"""

import os
import sys

OPENBLAS_CORETYPE = None
if "numpy" not in sys.modules:
    OPENBLAS_CORETYPE = os.environ.pop("OPENBLAS_CORETYPE", None)
