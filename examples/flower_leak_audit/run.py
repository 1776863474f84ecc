"""Run the app for real: a SuperLink and two SuperNodes on the loopback address, and three rounds.

python run.py --reports reports
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent


def free_port():
    """Return a port that nobody listens at."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(port, seconds=60):
    """Wait until somebody listens at a port."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise TimeoutError(f"nothing listens at port {port} after {seconds} seconds")


def main(arguments=None):
    """Start everything, wait for the end, and stop everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--reports", type=Path, default=Path("reports"), help="where reports go (default: reports)")
    parser.add_argument("--seconds", type=float, default=240, help="give up after this long (default: 240)")
    options = parser.parse_args(arguments)
    programs, home = Path(sys.executable).parent, Path(tempfile.mkdtemp())
    app = shutil.copytree(HERE, home / "app", ignore=shutil.ignore_patterns("reports", "__pycache__", "run.py"))
    port = free_port()
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    environment = os.environ | {"FLWR_HOME": str(home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                                "FLWR_TELEMETRY_ENABLED": "0", "PYTHONPATH": str(HERE.parents[1])}  # fmt: skip
    started = []

    def start(name, *command):
        with (home / f"{name}.log").open("w") as log:
            started.append(subprocess.Popen([str(programs / command[0]), *command[1:]], stdout=log,
                                            stderr=subprocess.STDOUT, env=environment, cwd=home))  # fmt: skip

    try:
        start("superlink", "flower-superlink", "--insecure", "--disable-runtime-dependency-installation",
              "--host", "127.0.0.1", "--port", str(port))  # fmt: skip
        wait_for(port)
        for number in range(2):
            start(f"supernode-{number}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}",
                  "--port", str(free_port()), "--node-config", f"partition-id={number}")  # fmt: skip
        config = f'reports="{options.reports.resolve()}"'
        subprocess.run([programs / "flwr", "run", app, "here", "--run-config", config, "--stream"], env=environment,
                       cwd=home, timeout=options.seconds, check=True)  # fmt: skip
        print((options.reports / "rounds.md").read_text())
    except Exception:
        for log in sorted(home.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()[-4000:]}", file=sys.stderr)
        raise
    finally:
        for process in started:
            process.terminate()
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


if __name__ == "__main__":
    main()
