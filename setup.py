"All settings live in settings.ini; edit there, not here."
import shlex
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
parser = ConfigParser(delimiters=["="])
parser.read(here/"settings.ini", encoding="utf-8")
cfg = parser["DEFAULT"]
suffix = "_requirements"

setup(
    name=cfg["lib_name"], version=cfg["version"], description=cfg["description"],
    keywords=cfg["keywords"].split(), author=cfg["author"], license="Apache-2.0", url=cfg["git_url"],
    classifiers=["Development Status :: 3 - Alpha", "Intended Audience :: Science/Research",
                 "Natural Language :: English",
                 *[f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)]],
    packages=find_packages(include=[cfg["lib_path"], cfg["lib_path"]+".*"]),
    package_data={cfg["lib_name"]: ["py.typed"]},
    python_requires=">="+cfg["min_python"],
    install_requires=shlex.split(cfg["requirements"]),
    extras_require={key.removesuffix(suffix): shlex.split(reqs) for key,reqs in cfg.items() if key.endswith(suffix)},
    long_description=(here/"README.md").read_text(encoding="utf-8"), long_description_content_type="text/markdown",
    entry_points={"console_scripts": shlex.split(cfg["console_scripts"])},
    zip_safe=False,
)
