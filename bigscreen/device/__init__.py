"""The textbook Newton and exact machines' kernel columns in the Python array API, on any device."""
