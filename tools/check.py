"""The fast checks: ruff, the type checker, notebooks that are clean, an export and public names in step with them.

Notebooks and export are made once more in a temporary folder and compared, so that nothing here is changed.
"""
import re
import subprocess
import sys
import time
from filecmp import cmp
from pathlib import Path
from shutil import copy, copytree, ignore_patterns
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).resolve().parent))
import records
import surface

root, tools = Path(__file__).resolve().parents[1], Path(sys.executable).parent


def run(tool, *words, folder=root):
    "What a tool of the environment complains about; nothing if it is content."
    done = subprocess.run([tools/tool, *words], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.stdout.strip() or f"{tool} ended with {done.returncode}" if done.returncode else ""


def again(tool, folder, pattern, advice):
    "The files matching `pattern` that `tool` makes differently in a copy of the project."
    with TemporaryDirectory() as name:
        copied = Path(name)/root.name
        copied.mkdir()
        for file in ("settings.ini", "README.md"): copy(root/file, copied)
        for part in ("nbs", "istar_nb"):
            copytree(root/part, copied/part, ignore=ignore_patterns("__pycache__", ".*", "_proc"))
        if problem := run(tool, folder=copied): return problem
        made = {path.relative_to(copied) for path in (copied/folder).rglob(pattern)}
        different = [path for path in sorted(made)
                     if not ((root/path).exists() and cmp(copied/path, root/path, shallow=False))]
    return "\n".join(f"{path} is not what {tool} makes: {advice}" for path in different)


def check_export(): return again("nbdev_export", "istar_nb", "*.py", "run `make notebooks`")


def check_outputs():
    "Notebooks that are not clean, or that name a folder of the machine on which they ran."
    if problem := again("nbdev_clean", "nbs", "*.ipynb", "run `make notebooks ONLY=...` or `.venv/bin/nbdev_clean`"):
        return problem
    pages = [path for path in sorted((root/"nbs").rglob("*.ipynb")) if "_proc" not in path.parts]
    return "\n".join(f"{path.relative_to(root)} shows a path of one machine" for path in pages
                     if re.search(r"/site-packages/|PosixPath\('/", path.read_text(encoding="utf-8")))


def check_surface():
    return "".join(f"{name} is not what tools/surface.py makes: run `make notebooks`\n" for name in surface.stale(root))


def check_records():
    return "\n".join(f"{path} shows other records than those in results: run `make notebooks ONLY={path.stem}`"
                     for path in records.stale())


checks = {"ruff": lambda: run("ruff", "check", "--quiet"), "types": lambda: run("pyrefly", "check", "--summary=none"),
          "export in step": check_export, "names in step": check_surface,
          "outputs clean": check_outputs, "outputs of these records": check_records}

if __name__ == "__main__":
    failed = 0
    for name, check in checks.items():
        start = time.monotonic()
        problem = check()
        failed += bool(problem)
        print(f"{'FAIL' if problem else 'PASS'} {name} {time.monotonic() - start:.1f} s{problem and chr(10) + problem}",
              flush=True)
    print(f"{len(checks) - failed} passed, {failed} failed")
    sys.exit(bool(failed))
