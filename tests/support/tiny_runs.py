"""What the tests of the verbs share: documents, models on disk, a config."""

import dataclasses
import json
import runpy

import jax

from longctx_jax import testing
from longctx_jax.checkpoints import loading
from longctx_jax.model import sharding
from longctx_jax.runtime import device, progress
from longctx_jax.scoring import scorer as scorer_lib
from support.command_line import ROOT

K, D = 32, 16
# Random models are sure of nothing: thresholds at which they have key tokens.
ALPHA, BETA = 0.5, -20.0
FLAGS = (
  f"--config.longppl.short_len={K}",
  f"--config.longppl.stride={D}",
  f"--config.longppl.alpha={ALPHA}",
  f"--config.longppl.beta={BETA}",
)


def make_config(**fields):
  """configs/longppl.py at the sizes of the tiny models.

  Args:
    fields: values by dotted name, "__" for the dot.
  """
  config = runpy.run_path(str(ROOT / "configs" / "longppl.py"))["get_config"]()
  config.lock()
  config.longppl.update(short_len=K, stride=D, alpha=ALPHA, beta=BETA)
  config.update_from_flattened_dict(
    {name.replace("__", "."): value for name, value in fields.items()}
  )
  return config


def make_texts(count=4, *, num_words=36):
  """Documents of 181 to 256 ids, one a byte: one bucket holds them all."""
  texts = []
  for seed in range(count):
    text = testing.synthetic_document(seed, num_words=num_words + seed % 4)
    middle = len(text) // 2
    texts.append(f"{text[:middle]} naïve 🙂 {text[middle:]}"[:210])
  return texts


def write_jsonl(path, texts, **columns):
  """JSON lines with ids "d0", "d1", ..., and further columns of lists."""
  rows = [
    {"id": f"d{i}", "text": text}
    | {name: values[i] for name, values in columns.items()}
    for i, text in enumerate(texts)
  ]
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return str(path)


def save_models(folder, names):
  """A Hugging Face folder for each name; weights by the name's last digit."""
  for name in names:
    source = testing.RandomSource(testing.tiny_config(), seed=int(name[-1]))
    source.save(folder / name)


def share_passes(monkeypatch, compiled):
  """Compiles once for all tests that give the same dict, on one device.

  Returns:
    The scorers that are made from now on, whose `usage` counts what ran.
  """
  make_mesh, make_scorer = sharding.make_mesh, scorer_lib.make_scorer
  scorers = []

  def make(model, windows, **options):
    kernels = jax.tree.structure(model.params)
    key = repr((model.config, model.dtype, kernels, windows, options))
    if key not in compiled:
      compiled[key] = make_scorer(model, windows, **options)
    scorers.append(
      dataclasses.replace(compiled[key], model=model, usage=progress.Usage())
    )
    return scorers[-1]

  monkeypatch.setattr(scorer_lib, "make_scorer", make)
  monkeypatch.setattr(device, "copies", lambda size: 1)
  monkeypatch.setattr(
    sharding, "make_mesh", lambda sizes, *_: make_mesh(sizes, jax.devices()[:1])
  )
  return scorers


def count_loads(monkeypatch):
  """The paths that `load_model` is called with from now on."""
  load_model, loaded = loading.load_model, []

  def load(path, **options):
    loaded.append(str(path))
    return load_model(path, **options)

  monkeypatch.setattr(loading, "load_model", load)
  return loaded


def passed(scorers):
  """Targets that went through the long pass."""
  return sum(scorer.usage.tokens for scorer in scorers)
