"""The floor plan of the package, drawn from its imports: `python docs/floors.py FOLDER`."""

import ast
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "bigscreen"
WIDTH, BOX, STOREY, GAP, ASIDE, SHIFT = 736, (92, 44), 80, 14, 20, 40
INK, PAPER, EDGE = "#1a1a2e", "#ffffff", "#8d99ae"


def packages() -> list[str]:
    """Names of the packages (and of the module ``errors``), sorted."""
    folders = [path.parent.name for path in PACKAGE.glob("*/__init__.py")]
    modules = [path.stem for path in PACKAGE.glob("*.py") if path.stem != "__init__"]
    return sorted(folders + modules)


def files(name: str) -> list[Path]:
    """The Python files of one package."""
    return sorted((PACKAGE / name).rglob("*.py")) or [PACKAGE / f"{name}.py"]


def imports() -> dict[str, set[str]]:
    """The other packages that each package imports, at the top of a file or inside a function."""
    names, found = set(packages()), {}
    for name in names:
        found[name] = set()
        for path in files(name):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module:
                    parts = node.module.split(".")
                    if parts[0] == "bigscreen" and parts[1:]:
                        found[name].add(parts[1])
        found[name] = (found[name] & names) - {name}
    return found


def storeys(found: dict[str, set[str]]) -> dict[str, int]:
    """The storey of each package: one above the highest that it imports."""
    level: dict[str, int] = {}

    def climb(name: str) -> int:
        if name not in level:
            level[name] = max((climb(other) + 1 for other in found[name]), default=0)
        return level[name]

    for name in found:
        climb(name)
    return level


def nearest(found: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Imports that no chain of other imports implies (the transitive reduction)."""
    below: dict[str, set[str]] = {}

    def reach(name: str) -> set[str]:
        if name not in below:
            below[name] = set().union(*({one} | reach(one) for one in found[name]))
        return below[name]

    for name in found:
        reach(name)
    return [
        (name, one)
        for name in sorted(found)
        for one in sorted(found[name])
        if not any(one in below[other] for other in found[name])
    ]


def lines(name: str) -> int:
    """Lines of one package, comments and docstrings included."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files(name))


def drawing() -> str:
    """The floor plan as SVG: the ground floor imports nothing, arrows point at what is imported."""
    found = imports()
    level = storeys(found)
    top = max(level.values())
    place = {}
    for storey in range(top + 1):
        names = sorted(name for name in found if level[name] == storey)
        span = len(names) * BOX[0] + (len(names) - 1) * ASIDE
        for k, name in enumerate(names):
            # Every second storey is shifted, so that arrows between others pass next to its boxes.
            x = (WIDTH - span) / 2 + k * (BOX[0] + ASIDE) + (-SHIFT, 0, SHIFT)[storey % 3]
            place[name] = (x, GAP + (top - storey) * STOREY)
    height = GAP + (top + 1) * STOREY
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="sans-serif" font-size="15" role="img">',
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="{EDGE}"/></marker></defs>',
    ]
    for name, other in nearest(found):
        (x, y), (u, v) = place[name], place[other]
        parts.append(
            f'<path d="M{x + BOX[0] / 2:.0f} {y + BOX[1]}L{u + BOX[0] / 2:.0f} {v}" '
            f'stroke="{EDGE}" fill="none" marker-end="url(#tip)"/>'
        )
    for name, (x, y) in place.items():
        middle = x + BOX[0] / 2
        parts += [
            f'<rect x="{x:.0f}" y="{y}" width="{BOX[0]}" height="{BOX[1]}" rx="5" '
            f'fill="#edf2f4" stroke="{INK}"/>',
            f'<text x="{middle:.0f}" y="{y + 20}" text-anchor="middle" fill="{INK}">{name}</text>',
            f'<text x="{middle:.0f}" y="{y + 36}" text-anchor="middle" fill="{INK}" '
            f'font-size="12">{lines(name):,} lines</text>',
        ]
    return "\n".join([*parts, "</svg>", ""])


def table() -> str:
    """A Markdown table: each package, and what it imports."""
    found = imports()
    level = storeys(found)
    rows = ["| package | imports |", "|---|---|"]
    for name in sorted(found, key=lambda one: (level[one], one)):
        below = ", ".join(sorted(found[name], key=lambda one: (level[one], one))) or "nothing"
        rows.append(f"| {name} | {below} |")
    return "\n".join([*rows, ""])


def make(folder: Path) -> None:
    """Write the drawing and the table into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "floors.svg").write_text(drawing(), encoding="utf-8")
    (folder / "floors.md").write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
