"""Hold functions short: at most 2 % of them may pass 60 lines, none may pass 120.

Usage: python tools/check_functions.py DIR...
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

LONG_LINES, LONGEST_LINES, LONG_SHARE = 60, 120, 0.02


def functions(folder: Path) -> Iterator[tuple[int, str]]:
    """Lines and place of every function below ``folder``."""
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield (node.end_lineno or node.lineno) - node.lineno + 1, f"{file}:{node.lineno} {node.name}"


def main(folders: list[str]) -> int:
    found = sorted((item for folder in folders for item in functions(Path(folder))), reverse=True)
    long = [item for item in found if item[0] > LONG_LINES]
    median = found[len(found) // 2][0] if found else 0
    print(f"{len(found)} functions, median {median} lines, {len(long)} over {LONG_LINES} lines")
    for lines, place in long:
        print(f"  {lines} lines: {place}")
    too_long = bool(found) and found[0][0] > LONGEST_LINES
    too_many = len(long) > LONG_SHARE * len(found)
    if too_long or too_many:
        print(f"Split them: at most {LONG_SHARE:.0%} may pass {LONG_LINES} lines and none {LONGEST_LINES}.")
    return int(too_long or too_many)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
