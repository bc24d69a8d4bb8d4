"""The shape of the code: imports one way, small files, nothing hidden."""

import ast
import functools
import re

import pytest
from command_line import ROOT

# Lowest first; within a layer an import points to the left.
LAYERS = (
  "windows spans batching tables settings rows packing",
  "sharding log_probs contrast losses metrics correlations",
  "model.allow_list model.families model.rope model.rope_schema model.config "
  "model.rope_override model.names model.blockwise model.splash model.cudnn "
  "model.attention model.layers model.moe model.transformer model.partition",
  "model.inspection model.placement model.hf model.gguf_header "
  "model.gguf_config model.gguf model.gguf_tokenizer model.assets "
  "model.export model.orbax_folder hub pieces tokenizer corpus_files "
  "tfds_files corpus chunks token_cache key_tokens key_token_parts "
  "key_token_store key_token_slices loading testing",
  "scoring protocol flops metric_log optimizer checkpoint train_state "
  "train_step stored_weights data retrieval_data retrieval_model",
  "finding results evaluation longppl",
  "convert progress score result_files foreign_log_probs evaluate comparison "
  "svg heatmap report demo controls govreport slice_check distributed "
  "preemption reporter held_out train_config train retrieval_passes "
  "retrieval_starts retrieval_report retrieval commands",
)
ORDER = [name for layer in LAYERS for name in layer.split()]
# What the lower layers do without: they are arithmetic.
FORBIDDEN = {
  0: {"jax", "flax", "pyarrow", "absl", "transformers", "ml_collections"},
  1: {"flax", "pyarrow", "absl", "transformers", "ml_collections", "fsspec"},
  2: {"pyarrow", "transformers", "ml_collections", "fsspec"},
  3: {"ml_collections"},
  4: {"ml_collections", "pyarrow", "transformers"},
  5: {"ml_collections", "pyarrow", "transformers"},
}
PACKAGE = ROOT / "longctx_jax"
PATHS = {
  ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
  for path in sorted(PACKAGE.rglob("*.py"))
  if path.name != "__init__.py"
}
SCRIPTS = sorted((ROOT / "scripts").glob("*.py"))
# Where text that a reader meets lies; all of it is under version control.
TEXTS = [
  path
  for pattern in (
    "*.*", "Makefile", "longctx_jax/**/*", "configs/*", "scripts/*",
    "tests/**/*", "tools/*", "bench/*", "docs/*", ".ci/*",
  )
  for path in sorted(ROOT.glob(pattern))
  if path.is_file() and "__pycache__" not in path.parts and path.suffix not in
  (".npz", ".png", ".pyc", ".parquet") and path.name not in
  ("architecture_test.py", ".git")
]  # fmt: skip


@functools.cache
def tree(path):
  return ast.parse(path.read_text())


def imported(path):
  """Dotted names that a file imports, at any depth."""
  names = set()
  for node in ast.walk(tree(path)):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert not node.level, f"{path}: a relative import"
      names |= {f"{node.module}.{alias.name}" for alias in node.names}
  return names


def own_modules(path):
  """Modules of the package among the imports."""
  found = set()
  for name in imported(path):
    head, _, rest = name.partition(".")
    if head != "longctx_jax":
      continue
    parts = rest.split(".")
    longest = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    found |= {next((m for m in longest if m in PATHS), rest)}
  return found


def calls(path):
  """(call, dotted name of what is called)."""
  for node in ast.walk(tree(path)):
    if isinstance(node, ast.Call):
      yield node, ast.unparse(node.func)


def test_every_module_has_its_place():
  assert set(PATHS) <= set(ORDER), "add the new module to LAYERS"
  assert len(set(ORDER)) == len(ORDER)
  assert not {"utils", "helpers", "common", "misc"} & {
    part for name in PATHS for part in name.split(".")
  }


def test_the_design_lists_the_modules_in_this_order():
  text = (ROOT / "docs" / "design.md").read_text()
  rows = re.findall(r"^\| [\w ]+ \|( `.*) \|$", text, flags=re.MULTILINE)
  listed = re.findall(r"`([\w/]+)`", " ".join(rows))
  names = [
    name.replace("/", ".")
    if name.replace("/", ".") in PATHS
    else f"model.{name}"
    for name in listed
  ]
  assert len(names) > 30 and set(names) <= set(PATHS)
  assert names == sorted(names, key=ORDER.index)


@pytest.mark.parametrize("name", PATHS)
def test_imports_point_down_or_left(name):
  for other in own_modules(PATHS[name]):
    assert other in ORDER, f"{name} imports {other!r}, which is no module"
    assert ORDER.index(other) < ORDER.index(name), f"{name} imports {other}"


@pytest.mark.parametrize("name", PATHS)
def test_a_lower_layer_does_without_the_outside_world(name):
  (layer,) = (i for i, names in enumerate(LAYERS) if name in names.split())
  heads = {other.partition(".")[0] for other in imported(PATHS[name])}
  assert not heads & FORBIDDEN.get(layer, set())
  assert not heads & {"torch", "tensorflow"}


@pytest.mark.parametrize("name", PATHS)
def test_a_module_fits_in_one_head(name):
  assert len(PATHS[name].read_text().splitlines()) <= 400


@pytest.mark.parametrize("name", PATHS)
def test_every_public_name_has_a_docstring(name):
  def check(node, where):
    for child in node.body:
      if not isinstance(child, ast.FunctionDef | ast.ClassDef):
        continue
      if child.name.startswith("_"):
        continue
      assert ast.get_docstring(child), f"{where}.{child.name}"
      if isinstance(child, ast.ClassDef):
        check(child, f"{where}.{child.name}")

  assert ast.get_docstring(tree(PATHS[name]))
  check(tree(PATHS[name]), name)


def test_one_place_compiles():
  """Scorer and training; `choose_backend`, which runs a backend to check it;
  and what makes parameters, and moves them to the devices and back.
  """
  for name, path in PATHS.items():
    used = {
      node.attr
      for node in ast.walk(tree(path))
      if isinstance(node, ast.Attribute)
    } | {full.rpartition(".")[2] for full in imported(path)}
    compiles = (
      "scoring model.attention model.placement model.export train train_state"
    )
    assert name in compiles.split() or not used & {"jit", "pjit", "pmap"}, name


def test_the_library_does_not_print():
  for name, path in PATHS.items():
    printing = [
      node.lineno for node, called in calls(path) if called == "print"
    ]
    assert name == "commands" or not printing, (name, printing)


def test_no_default_hides_a_misspelled_field():
  """`config.get("typo", x)` is silent, even where the config is locked."""
  for name, path in PATHS.items():
    for node, called in calls(path):
      if called.endswith(".get") and not name.startswith("model."):
        assert len(node.args) == 1 and not node.keywords, (name, node.lineno)


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_is_flags_and_one_call(path):
  assert len(path.read_text().splitlines()) <= 60
  docstring, *body, last = tree(path).body
  assert "python scripts/" in ast.get_docstring(tree(path))
  for node in body:
    if isinstance(node, ast.Assign):
      called = ast.unparse(node.value.func)
      assert re.match(r"(flags\.DEFINE_|commands\.define_)", called), called
    else:
      known = (ast.Import, ast.ImportFrom, ast.FunctionDef)
      assert isinstance(node, known), f"line {node.lineno}"
  assert ast.unparse(last.test) == "__name__ == '__main__'"


@pytest.mark.parametrize(
  ("what", "pattern"),
  [
    ("an open end", r"\b(TODO|FIXME|XXX)\b"),
    ("a path of one machine", r"(?<![\w.])/(work|root|home|Users|mnt)/\w"),
    ("a host of one network", r"index-url|https?://[\w.-]*(pypi|mirror|nexus|"
     r"artifact|registry|proxy|localhost|\.internal|\.local)"),
    ("a private address", r"\b(10\.\d+|192\.168|172\.[123]\d)\.\d+\.\d"),
  ],
)  # fmt: skip
def test_no_text_holds(what, pattern):
  assert len(TEXTS) > 80
  for path in TEXTS:
    found = re.search(pattern, path.read_text())
    assert not found, f"{path}: {what}: {found[0]}"
