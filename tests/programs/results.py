"""Where the long run leaves what it found, for the table."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
FOUND = ROOT / "build" / "programs"
