"An explorer in JupyterLab itself: a value chosen, and the figure that Python draws."
import json
import os
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import nbformat
import pytest
from browser import browser_page, needs_chromium

pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
pytestmark = needs_chromium


@contextmanager
def jupyterlab(folder):
    "The address of a JupyterLab on a folder, with settings of its own."
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = {f"JUPYTER_{kind}_DIR": str(folder/kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    options = ["--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}", "--IdentityProvider.token=",
               f"--ServerApp.root_dir={folder}"]
    process = subprocess.Popen([sys.executable, "-m", "jupyterlab", *options], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL,
                               env=os.environ | own | dict(IPYTHONDIR=str(folder/"ipython")))
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(lambda: asked(f"{address}/api"))
        yield address
    finally:
        process.terminate()
        process.wait(300)


def asked(url):
    "What the server answers; nothing before it listens."
    try:
        with urlopen(url, timeout=60) as answer: return json.load(answer)
    except OSError: return []


def wait_for(condition, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end: raise TimeoutError("JupyterLab does not answer")
        time.sleep(0.2)


def test_an_explorer_in_jupyterlab(tmp_path):
    of_page = nbformat.read(Path(__file__).resolve().parents[1]/"nbs"/"app"/"01_explorers.ipynb", 4).cells
    shown = [i for i, cell in enumerate(of_page) if cell.source == "explore_spectrum()"][0]
    code = [cell.source for cell in of_page[:shown+1] if cell.cell_type == "code" and "#| default" not in cell.source]
    cell = nbformat.v4.new_code_cell("\n".join(code))
    nbformat.write(nbformat.v4.new_notebook(cells=[cell],
                                            metadata=dict(kernelspec=dict(name="python3", display_name="Python 3",
                                                                          language="python"))),
                   tmp_path/"explorer.ipynb")
    with jupyterlab(tmp_path) as address, browser_page() as page:
        page.open(f"{address}/lab/tree/explorer.ipynb")
        page.wait("document.querySelector('.jp-Notebook .jp-CodeCell .cm-content')")
        wait_for(lambda: any(kernel["connections"] and kernel["execution_state"] == "idle"
                             for kernel in asked(f"{address}/api/kernels")))
        page.press("Enter", ".jp-Notebook .jp-CodeCell .cm-content", shift=True)
        page.wait("document.querySelectorAll('.jp-OutputArea .widget-slider').length == 7")
        figure = "([...document.querySelectorAll('.jp-OutputArea img')].at(-1)?.src ?? '')"
        page.wait(f"{figure}.length > 0")
        before = page.run(figure)
        page.run("(menu => { menu.selectedIndex = 1; menu.dispatchEvent(new Event('change', {bubbles: true})) })"
                 "(document.querySelector('.jp-OutputArea .widget-dropdown select'))")
        page.wait(f"{figure}.length > 0 && {figure} != {json.dumps(before)}")
        assert not [url for url in page.elsewhere if not url.startswith((address, address.replace("http", "ws")))]
