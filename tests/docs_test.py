"""The documentation as a site holds every page."""

import re

from support.command_line import ROOT

DOCS = ROOT / "docs"


def test_the_index_names_every_page():
  text = (DOCS / "index.md").read_text()
  (tree,) = re.findall(r"```{toctree}(.*?)```", text, re.DOTALL)
  named = {line for line in tree.splitlines() if line and line[0] != ":"}
  # The reference is written when the site is built.
  pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
  assert named == pages | {"api"}


def test_links_between_pages_lead_somewhere():
  for page in (ROOT / "README.md", *DOCS.glob("*.md")):
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
      assert (page.parent / target).exists(), f"{page.name}: {target}"
