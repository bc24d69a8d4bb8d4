"""Every config loads, locks, and can be changed field by field."""

import ast
import re
import sys

import pytest
from absl import flags
from ml_collections import ConfigDict, config_flags
from support.command_line import ROOT

from longctx_jax.experiments.retrieval import experiment
from longctx_jax.model import sharding
from longctx_jax.scoring import setup
from longctx_jax.training import config as config_lib

# ml_collections 1.1 loads a config so.
pytestmark = pytest.mark.filterwarnings(
  "ignore:.*load_module:DeprecationWarning"
)

PATHS = sorted((ROOT / "configs").glob("*.py"))
NAMES = [path.stem for path in PATHS]


def docstring(path):
  return ast.get_docstring(ast.parse(path.read_text()))


def variants(path):
  """The variants that the docstring lists, the default first."""
  lines = re.search(r"Variants: (.*?)\n\w+:", docstring(path), re.DOTALL)
  return ["", *re.findall(r'"([\w,]+)"', lines[1] if lines else "")]


CASES = [(path, variant) for path in PATHS for variant in variants(path)]


def load(monkeypatch, path, variant="", *arguments):
  """The config as a script gets it from its command line."""
  values = flags.FlagValues()
  holder = config_flags.DEFINE_config_file(
    "config", None, "", flag_values=values, lock_config=True
  )
  name = f"{path}:{variant}" if variant else path
  argv = ["script", f"--config={name}", *arguments]
  # Overrides are looked up there before they are parsed.
  monkeypatch.setattr(sys, "argv", argv)
  values(argv)
  return holder.value


def fields(config, prefix=""):
  """Dotted name -> value, blocks resolved."""
  found = {}
  for name, value in config.items():
    if isinstance(value, ConfigDict):
      found |= fields(value, f"{prefix}{name}.")
    else:
      found[prefix + name] = value
  return found


def other_value(value):
  """(text for the command line, value) of the same type, but another one."""
  match value:
    case bool():
      return str(not value).lower(), not value
    case int():
      return str(value + 1), value + 1
    case float():
      return repr(value + 0.5), value + 0.5
    case str():
      return "other", "other"
    case ():
      return "('a', 'b')", ("a", "b")
    case tuple():
      return str(value[:1] + value), value[:1] + value


def test_there_are_configs_and_variants():
  assert "longppl" in NAMES and ("longppl", "k1024") in [
    (path.stem, variant) for path, variant in CASES
  ]


@pytest.mark.parametrize(
  ("path", "variant"),
  CASES,
  ids=[f"{path.stem}:{variant}" for path, variant in CASES],
)
def test_it_loads_locked_with_settings_that_a_run_can_have(
  monkeypatch, path, variant
):
  config = load(monkeypatch, path, variant)
  if "longppl" in config:
    block, check = "longppl", setup.check_config
  elif "program" in config:
    block, check = "loss", experiment.check_config
  else:
    block, check = "loss", config_lib.check_config
  if "loss" in config and "weights" in config.loss:
    # The command line names the model, where the file does not, and the store.
    config.model.path = config.model.path or "M"
    stored = config.loss.weights == "stored"
    config.data.key_tokens = "runs/keys" if stored else ""
  check(config)
  if "mesh" in config:
    assert set(config.mesh) <= set(sharding.AXES)
  assert config.is_locked and config[block].is_locked
  with pytest.raises(AttributeError, match="alpha"):
    config[block].alhpa = 1.0


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_an_unknown_variant_is_refused(monkeypatch, path):
  with pytest.raises(flags.Error, match="variant 'nothing'"):
    load(monkeypatch, path, "nothing")


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_every_field_can_be_set_from_the_command_line(monkeypatch, path):
  """No None: such a field could not (style 6.7)."""
  for name, value in fields(load(monkeypatch, path)).items():
    assert value is not None, name
    text, other = other_value(value)
    changed = load(monkeypatch, path, "", f"--config.{name}={text}")
    assert fields(changed)[name] == other, name
    assert type(fields(changed)[name]) is type(value), name


def test_a_whole_number_is_taken_for_a_float(monkeypatch):
  path = ROOT / "configs" / "longppl.py"
  config = load(monkeypatch, path, "", "--config.longppl.beta=-3")
  assert config.longppl.beta == -3.0 and isinstance(config.longppl.beta, float)


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_no_field_is_hidden_by_a_method(monkeypatch, path):
  """`config.keys` was the method of ConfigDict and not the field."""
  names = {part for name in fields(load(monkeypatch, path)) for part in
           name.split(".")}  # fmt: skip
  assert not names & set(dir(ConfigDict))


def test_every_field_is_read_by_the_package(monkeypatch):
  """Case I9: a field that nothing reads is a promise that is not kept."""
  source = "".join(
    path.read_text()
    for path in (ROOT / "longctx_jax").rglob("*.py")
    if path.stem not in ("commands", "fields")
  )
  source += "config.program"  # What `commands` reads.
  # Handed on as a whole, to a dataclass that knows each field.
  whole = r"(dict\(|\*\*)(self\._)?config\.{block}\b|config\.{block}\.items"
  for path in PATHS:
    for name in fields(load(monkeypatch, path)):
      block, _, field = name.rpartition(".")
      short = block.rpartition(".")[2] or "config"
      read = rf"\b{short}\.{field}\b|{whole.format(block=re.escape(block))}"
      assert re.search(read, source), f"{path.name}: {name}"


@pytest.mark.parametrize("path", PATHS, ids=NAMES)
def test_the_docstring_says_what_for_how_and_on_what(path):
  text = docstring(path)
  for word in ("Purpose:", "Command", "Hardware:"):
    assert word in text, f"{path.name} has no {word}"
