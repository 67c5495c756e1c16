"""What importing the package, its rooms and its commands loads."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import trustmix as tm

HEAVY = ["torch", "numpy", "pydantic", "sklearn", "scipy", "rich"]
EXTRAS = ["PIL", "datasets", "flwr", "matplotlib", "opacus", "pandas", "ray", "scipy", "sklearn", "transformers"]
LEVELS = [
    ["aggregation", "density", "metrics"],
    ["data", "models", "privacy", "wire"],
    ["callbacks", "federation"],
    ["attacks", "engines", "methods", "theory"],
    ["experiment"],
    ["deploy", "report"],
]
"""The rooms, from the heart to the surface."""


def loaded_by(code: str, modules: list[str]) -> list[str]:
    """Which of the modules a new interpreter has loaded after the code."""
    command = f"{code}\nimport sys\nprint(*[name for name in {modules!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_importing_the_package_loads_no_room_and_no_library() -> None:
    rooms = [f"trustmix.{room}" for room in ("aggregation", "data", "experiment", "report", "deploy")]
    assert loaded_by("import trustmix; dir(trustmix)", [*HEAVY, *rooms, "importlib.metadata"]) == []


def test_help_of_every_command_and_completion_load_no_library() -> None:
    code = """
from typer.main import get_command
from typer.testing import CliRunner
from trustmix.cli import app

for words in [[], ["--version"], *([name] for name in get_command(app).commands)]:
    for option in ["-h", "--help"]:
        answer = CliRunner().invoke(app, [*words, option])
        assert answer.exit_code == 0 and answer.output, answer.output
line = {"_TRUSTMIX_COMPLETE": "complete_bash", "COMP_WORDS": "trustmix sw", "COMP_CWORD": "1"}
answer = CliRunner().invoke(app, [], prog_name="trustmix", env=line)
assert answer.output.strip() == "sweep", answer.output
"""
    assert loaded_by(code, HEAVY) == []


def test_a_room_loads_no_room_above_it_and_no_extra() -> None:
    code = f"""
import importlib, sys

allowed = set()
for level in {LEVELS!r}:
    allowed.update(level)
    for room in level:
        for name in [name for name in sys.modules if name.partition(".")[0] == "trustmix"]:
            del sys.modules[name]
        importlib.import_module(f"trustmix.{{room}}")
        above = [other for level in {LEVELS!r} for other in level if other not in allowed]
        for other in above:
            assert f"trustmix.{{other}}" not in sys.modules, f"trustmix.{{room}} imports trustmix.{{other}}"
"""
    assert loaded_by(code, [*EXTRAS, "torch._dynamo", "sympy", "rich"]) == []


def test_a_federation_finds_its_engine_without_an_import_of_the_engines() -> None:
    code = "from trustmix.federation import ENGINES\nassert ENGINES.names() == ['flower', 'local', 'ray']"
    assert loaded_by(code, ["ray", "flwr"]) == []


def test_a_run_on_digits_loads_neither_the_compiler_nor_libraries_of_other_data() -> None:
    code = """
import trustmix as tm

recipe = {"clients": 5, "rounds": 1, "data": {"name": "digits"}, "split": {"samples_per_client": 40}}
tm.run({**recipe, "public": {"samples": 20}, "engine": {"mode": "sequential"}})
"""
    assert (
        loaded_by(code, ["torch._dynamo", "sympy", "sklearn", "scipy", "pandas", "transformers", "ray", "rich"]) == []
    )


def test_type_checkers_see_every_public_name_where_it_is_imported_from() -> None:
    block = next(node for node in ast.parse(Path(tm.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {name.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert seen == {name: f"trustmix.{module}" for name, module in vars(tm)["_MODULES"].items()}
    assert sorted(seen) == sorted(tm.__all__)


def test_every_public_name_and_room_can_be_used_and_is_listed() -> None:
    for name in [*tm.__all__, "data", "theory", "__version__"]:
        assert getattr(tm, name) is not None
        assert name in dir(tm)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match='The package trustmix has no attribute "mixx"'):
        vars(tm)["__getattr__"]("mixx")
