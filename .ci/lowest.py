"""Print the lowest versions that pyproject.toml allows, as constraints for pip; torch is left to constraints.txt."""

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
for requirement in project["dependencies"] + project["optional-dependencies"]["hub"]:
    name, version = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement).groups()
    if name != "torch":
        print(f"{name}=={version}")
