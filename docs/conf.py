"""The documentation as a site: `make docs`."""

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
napoleon_use_ivar = True
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
