"""What a process logs."""

import subprocess
import sys

_PROGRAM = """
import sys
import structlog
from duetime.telemetry import set_up_logs

class Counted:
    def __init__(self):
        self.writes = []
    def write(self, text):
        self.writes.append(text)
    def flush(self):
        pass
    def isatty(self):
        return False

sys.stderr = Counted()
set_up_logs("text", "info", "one")
structlog.get_logger().info("node started", url="http://127.0.0.1")
print([text.count("\\n") for text in sys.stderr.writes if text])
"""


def test_a_line_is_written_at_once() -> None:
    """Else the lines of two processes that share a log run into each other."""
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True, timeout=60)

    assert done.stdout == "[1]\n"
