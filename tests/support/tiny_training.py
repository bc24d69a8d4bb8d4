"""What the tests of training share: a model on disk, documents, a config."""

import runpy

import jax

from longctx_jax import testing
from longctx_jax.model import sharding
from support.command_line import ROOT

# A vocabulary and widths that 2, 4 and 8 devices divide.
SIZES = dict(vocab_size=264)
_MAKE_MESH = sharding.make_mesh


def make_config(folder, **fields):
  """configs/tiny.py on a model and a document of its own, in `folder`.

  Args:
    folder: exists.
    fields: values by dotted name, "__" for the dot.
  """
  if not (folder / "model").exists():
    source = testing.RandomSource(testing.tiny_config(**SIZES), seed=0)
    source.save(folder / "model")
    texts = [testing.synthetic_document(i, num_words=150) for i in range(6)]
    (folder / "text.txt").write_text("\n".join(texts))
  config = runpy.run_path(str(ROOT / "configs" / "tiny.py"))["get_config"]()
  config.lock()
  config.model.path = str(folder / "model")
  config.data.update(
    sources=(str(folder / "text.txt"),),
    cache_dir=str(folder / "cache"),
    seq_len=96,
  )
  config.update_from_flattened_dict(
    {name.replace("__", "."): value for name, value in fields.items()}
  )
  return config


def use_devices(monkeypatch, count):
  """Meshes span this many devices from now on."""
  monkeypatch.setattr(
    sharding,
    "make_mesh",
    lambda sizes, devices=None: _MAKE_MESH(
      sizes, devices or jax.devices()[:count]
    ),
  )
