"""What can be searched, and how candidates are dropped: words that help needs without delay."""

ELIMINATIONS = {
    "halving": "a heuristic: the best part of the candidates went on to more rows, and the best "
    "one's neighbours to all",
    "none": "every candidate was solved on all rows",
}
"""How candidates are dropped, and what that is worth."""

SEARCHED = {"c-svc": "C", "nu-svc": "nu", "svr": "C"}
"""The problems that can be searched, and the parameter of their paths."""
