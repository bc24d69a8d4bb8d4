"""Checkpoints on disk, and changes to them."""

from safetensors.numpy import load_file, save_file

from longctx_jax import testing
from longctx_jax.checkpoints.facts import config_json
from support import family_cases

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def edit(folder, change):
  """Applies a change to the tensors of a folder."""
  tensors = load_file(folder / "model.safetensors")
  change(tensors)
  save_file(tensors, folder / "model.safetensors")


def family_source(name):
  """A model of a family, and its random weights."""
  config = config_json.from_hf(family_cases.CASES[name], source=name)
  return config, testing.RandomSource(config, seed=1)


def rename(folder, change):
  """Renames the tensors of a folder."""
  tensors = load_file(folder / "model.safetensors")
  save_file(
    {change(name): tensor for name, tensor in tensors.items()},
    folder / "model.safetensors",
  )


def save(folder, name="llama"):
  """Saves a model of a family; returns its config."""
  config = config_json.from_hf(family_cases.CASES[name], source=name)
  testing.RandomSource(config, seed=2).save(folder)
  return config
