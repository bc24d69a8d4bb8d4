"""The shape of the code: rooms, doors, imports one way, small files."""

import ast
import functools
import re

import pytest
from support.command_line import ROOT

PACKAGE = ROOT / "longctx_jax"
# An import between rooms points left.
ROOMS = (
  "paper runtime text key_tokens model checkpoints scoring evaluation longppl "
  "report training experiments testing usage fields commands console"
).split()
# Rooms that do without: they are arithmetic, or read by people without a
# device. Directly and by what they import.
WITHOUT = {
  "paper": "jax flax pyarrow fsspec absl transformers ml_collections",
  "text": "jax flax ml_collections",
  "key_tokens": "jax flax transformers ml_collections",
  "report": "jax flax orbax ml_collections transformers",
  "model": "pyarrow transformers ml_collections fsspec",
  "checkpoints": "ml_collections pyarrow",
}
PATHS = {
  ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
  for path in sorted(PACKAGE.rglob("*.py"))
}
MODULES = {n: p for n, p in PATHS.items() if p.name != "__init__.py"}
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
    found |= {next((m for m in longest if m in MODULES), rest)}
  return found


def room(name):
  return name.partition(".")[0]


def calls(path):
  """(call, dotted name of what is called)."""
  for node in ast.walk(tree(path)):
    if isinstance(node, ast.Call):
      yield node, ast.unparse(node.func)


@functools.cache
def doors(name):
  """What a room's `__all__` lists; a module in front is its own door."""
  if name in MODULES:
    return {name}
  for node in tree(PATHS[f"{name}.__init__"]).body:
    if isinstance(node, ast.Assign) and node.targets[0].id == "__all__":
      return {f"{name}.{door}" for door in ast.literal_eval(node.value)}
  return set()


def test_the_rooms_are_those_of_the_plan():
  assert {room(name) for name in PATHS} - {"__init__"} == set(ROOMS)
  parts = {part for name in PATHS for part in name.split(".")}
  assert not {"utils", "helpers", "common", "misc", "runs"} & parts


@pytest.mark.parametrize("name", MODULES)
def test_imports_between_rooms_point_left(name):
  for other in own_modules(MODULES[name]):
    assert other in MODULES, f"{name} imports {other!r}, which is no module"
    here, there = ROOMS.index(room(name)), ROOMS.index(room(other))
    assert there <= here, f"{name} imports {other}"


OUTSIDE = (
  *((f"scripts.{path.stem}", path) for path in SCRIPTS),
  *(
    (f"{path.parent.name}.{path.stem}", path)
    for folder in ("tools", "bench", "configs")
    for path in sorted((ROOT / folder).glob("*.py"))
  ),
  ("longctx_jax", PACKAGE / "__init__.py"),
)
ENTERED = {
  who: {other for other in own_modules(path) if room(other) != room(who)}
  for who, path in (*MODULES.items(), *OUTSIDE)
}


@pytest.mark.parametrize("name", ENTERED)
def test_other_rooms_come_in_by_the_doors(name):
  for other in ENTERED[name] - {""}:
    assert other in doors(room(other)), f"{name} enters {other}: no door"


@pytest.mark.parametrize("name", [n for n in ROOMS if n not in MODULES])
def test_a_door_is_used(name):
  assert doors(name) <= set().union(*ENTERED.values()) & set(MODULES)


@pytest.mark.parametrize("name", [n for n in ROOMS if n not in MODULES])
def test_a_room_says_what_lies_where(name):
  """Every module of the room is named in the docstring of its folder."""
  said = ast.get_docstring(tree(PATHS[f"{name}.__init__"]))
  inside = [m.split(".") for m in MODULES if room(m) == name]
  for _, first, *_ in inside:
    assert re.search(rf"\b{first}\b", said), f"{name} does not name {first}"


def test_no_cycle():
  """Within a room, and so in the whole: a module is read after its imports."""
  waiting = {name: own_modules(path) for name, path in MODULES.items()}
  while waiting:
    ready = {
      name for name, needs in waiting.items() if not needs & set(waiting)
    }
    assert ready, f"a cycle among {sorted(waiting)}"
    for name in ready:
      del waiting[name]


@pytest.mark.parametrize("name", MODULES)
def test_a_room_does_without(name):
  heads = {other.partition(".")[0] for other in imported(MODULES[name])}
  assert not heads & {"torch", "tensorflow"}
  assert not heads & set(WITHOUT.get(room(name), "").split())


@pytest.mark.parametrize("name", MODULES)
def test_a_module_fits_in_one_head(name):
  assert len(MODULES[name].read_text().splitlines()) <= 400


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
  """Scorer, eval step and training; `choose_backend`, which runs a backend to
  check it; and what makes parameters, and moves them to the devices and back.
  """
  compiles = (
    "scoring.scorer scoring.eval_step scoring.paper_step model.attention "
    "checkpoints.placement checkpoints.export training.program training.state"
  )
  for name, path in MODULES.items():
    used = {
      node.attr
      for node in ast.walk(tree(path))
      if isinstance(node, ast.Attribute)
    } | {full.rpartition(".")[2] for full in imported(path)}
    assert name in compiles.split() or not used & {"jit", "pjit", "pmap"}, name


def test_the_library_does_not_print():
  for name, path in MODULES.items():
    printing = [
      node.lineno for node, called in calls(path) if called == "print"
    ]
    assert name in ("commands", "console") or not printing, (name, printing)


def test_no_default_hides_a_misspelled_field():
  """`config.get("typo", x)` is silent, even where the config is locked."""
  for name, path in MODULES.items():
    for node, called in calls(path):
      if called.endswith(".get") and room(name) not in ("model", "checkpoints"):
        assert len(node.args) == 1 and not node.keywords, (name, node.lineno)


@pytest.mark.parametrize("path", SCRIPTS, ids=[path.stem for path in SCRIPTS])
def test_a_script_is_flags_and_one_call(path):
  docstring, *body, last = tree(path).body
  # The docstring is the help, with its examples.
  code = len(path.read_text().splitlines()) - docstring.end_lineno
  assert code <= 55
  assert "python scripts/" in ast.get_docstring(tree(path))
  for node in body:
    if isinstance(node, ast.Assign):
      called = ast.unparse(node.value.func)
      assert re.match(
        r"(flags\.DEFINE_|commands\.define_|fields\.define_)", called
      ), called
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
