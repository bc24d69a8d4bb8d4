"""The documentation as a site holds every page and every door."""

import ast
import re

from support.command_line import ROOT

DOCS = ROOT / "docs"


def test_the_index_names_every_page():
  text = (DOCS / "index.md").read_text()
  (tree,) = re.findall(r"```{toctree}(.*?)```", text, re.DOTALL)
  named = {line for line in tree.splitlines() if line and line[0] != ":"}
  assert named == {p.stem for p in DOCS.glob("*.md")} - {"index"}


def test_the_reference_holds_every_door_in_order():
  """What other rooms may import is what a reader looks up."""
  text = (DOCS / "api.md").read_text()
  rooms = re.findall(r"^## (\w+)$", text, re.M)
  expected = ["longppl"]
  for room in rooms:
    tree = ast.parse((ROOT / "longctx_jax" / room / "__init__.py").read_text())
    (doors,) = [
      ast.literal_eval(node.value)
      for node in tree.body
      if isinstance(node, ast.Assign) and node.targets[0].id == "__all__"
    ]
    expected += [f"{room}.{door}" for door in doors]
    assert f"## {room}\n\n{ast.get_docstring(tree).splitlines()[0]}\n" in text
  assert re.findall(r"automodule:: longctx_jax\.([\w.]+)", text) == expected
  folders = {
    p.parent.name for p in (ROOT / "longctx_jax").glob("*/__init__.py")
  }
  assert set(rooms) == folders


def test_links_between_pages_lead_somewhere():
  for page in (ROOT / "README.md", *DOCS.glob("*.md")):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
      assert (page.parent / target).exists(), f"{page.name}: {target}"
