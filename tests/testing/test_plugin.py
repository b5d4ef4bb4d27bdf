"""The plugin in the pytest of somebody else's project."""

import os
import subprocess
import sys

HEAVY = ("pyspark", "pandas", "pyarrow", "numpy", "psycopg", "confluent_kafka")


def test_a_run_that_uses_none_of_it_loads_none_of_it(tmp_path):
    (tmp_path / "test_own.py").write_text(
        f"import sys\n\ndef test_own():\n    assert [m for m in {HEAVY} if m in sys.modules] == []\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "millstream.testing.plugin", "-p", "no:cacheprovider", "-q"]
    # Installed, it is loaded by its entry point as well, which pytest refuses.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, timeout=60, env=environment
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout
