"""The closing pass: P, D and the gap over all rows, independent of the solver."""
