"""The textbook Newton and its features in the Python array API: NumPy, CuPy or PyTorch arrays."""
