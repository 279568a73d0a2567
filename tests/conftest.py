"""The tests run the command of the environment they run in, wherever the shell would find another."""

import os
import sys
from pathlib import Path

os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
