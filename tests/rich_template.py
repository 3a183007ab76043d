"""A template with packages whose values have something to show, made once for all runs from what is installed here."""

from __future__ import annotations

import shutil
import time
from importlib import metadata
from pathlib import Path

from atoll.model.sandbox import LOCAL_OWNER
from atoll.model.template import TemplateInfo
from atoll.node.templates import INTERPRETER, Templates, _closure

NAME = "rich-values-test"
_PACKAGES = ("matplotlib", "pandas", "pillow", "plotly")
_PRELOAD = ("pandas",)


def publish_rich_template(data_dir: Path) -> str:
    """Have the template in a data directory; return its name."""
    templates = Templates(data_dir)
    found = _closure(_PACKAGES)
    names = tuple(f"{each.name}=={each.version}" for each in found)
    if NAME in templates and tuple(templates.find(NAME).distributions) == names:
        return NAME
    with templates.scratch() as folder:
        for distribution in found:
            _copy(distribution, folder)
        info = TemplateInfo(
            NAME, "", LOCAL_OWNER, _PACKAGES, names, _PRELOAD, INTERPRETER, time.time()
        )
        templates.publish(info, folder)
    return NAME


def _copy(distribution: metadata.Distribution, folder: Path) -> None:
    """Copy files with their times, so that what was compiled of them still counts."""
    for file in distribution.files or ():
        source, target = Path(str(file.locate())), folder / file
        if ".." not in file.parts and "tests" not in file.parts and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
