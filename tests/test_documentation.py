"""What the README and the documentation say is true: their Python runs, and they name every setting there is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from trustmix import Recipe

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    (page.name, code) for page in PAGES for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.mark.parametrize(("page", "code"), BLOCKS, ids=[f"{page}-{i}" for i, (page, _) in enumerate(BLOCKS)])
def test_python_in_the_documentation_runs(page: str, code: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, check=True)


def test_the_recipe_page_names_every_setting_with_its_default() -> None:
    page = (ROOT / "docs" / "recipes.md").read_text()
    for name, info in Recipe.model_fields.items():
        section = info.annotation
        if isinstance(section, type) and issubclass(section, BaseModel) and name != "data":
            for key, setting in section.model_fields.items():
                default = "none" if setting.default is None else str(setting.default).lower()
                assert re.search(rf"\| `{name}\.{key}` \| `?{re.escape(default)}`? \|", page.lower()), f"{name}.{key}"
