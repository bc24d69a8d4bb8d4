"""The documentation as a site: `make docs`."""

import ast
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "longctx_jax"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "longctx_jax"
exclude_patterns = ["_build"]
# Names in docstrings stand in single backquotes.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "show-inheritance": False}
# A list of names: as references they would be of many classes.
napoleon_custom_sections = [("Attributes", "params_style")]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]


def write_reference(path: pathlib.Path) -> None:
  """Writes the page of the reference: each room, by its doors."""
  lines = [
    "# In Python",
    "",
    "What a notebook needs is `import longctx_jax as lc`; below it each room, "
    "by its doors.",
    "",
    *_modules("longctx_jax.longppl"),
  ]
  for init in sorted((ROOT / "longctx_jax").glob("*/__init__.py")):
    tree = ast.parse(init.read_text())
    lists = (
      node.value
      for node in tree.body
      if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    )
    room = init.parent.name
    doors = ast.literal_eval(next(lists))
    lines += [f"## {room}", "", ast.get_docstring(tree).splitlines()[0], ""]
    lines += _modules(*(f"longctx_jax.{room}.{door}" for door in doors))
  path.write_text("\n".join(lines))


def _modules(*names: str) -> list[str]:
  blocks = [f".. automodule:: {name}\n" for name in names]
  return ["```{eval-rst}", *blocks, "```", ""]


write_reference(ROOT / "docs" / "api.md")
