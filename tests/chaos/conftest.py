import sys
from pathlib import Path

# The proxy and the tools of the sink's tests are there.
sys.path.insert(0, str(Path(__file__).parent.parent / "server"))
