"""Between checkpoint formats, and whether a checkpoint gives known logits."""

from __future__ import annotations

import collections
import dataclasses
import pathlib

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from longctx_jax.checkpoints import (
  export,
  hub,
  loading,
  orbax_folder,
  step_folder,
  weights,
)
from longctx_jax.model import sharding
from longctx_jax.model.loaded import LoadedModel
from longctx_jax.runtime import failures

FORMATS = ("hf", "orbax")
DTYPES = ("", "float32", "bfloat16", "float16")
# A GGUF file mixes types, whatever most of its tensors are.
_STORED = collections.defaultdict(
  lambda: "float32",
  {"safetensors F16": "float16", "safetensors BF16": "bfloat16"},
)


def check_dtype(name: str, *, field: str) -> None:
  """Raises ValueError for a dtype that no weights are read or written in.

  Args:
    name: as a config or flag names it; "" is the default.
    field: by which name the user knows it.
  """
  if name not in DTYPES:
    known = ", ".join(filter(None, DTYPES))
    remedy = "; --weights int8 rounds what scores" if name == "int8" else ""
    raise ValueError(f"{field}={name!r} is not one of {known}{remedy}")


@dataclasses.dataclass(frozen=True)
class Verification:
  """How far logits are from the reference's.

  Attributes:
    positions: that were compared.
    max_difference: largest abs(logit - reference).
    kl: mean over positions of KL(reference || model), in nats.
    loss: mean NLL of the next id, in nats.
    reference_loss: the reference's.
  """

  positions: int
  max_difference: float
  kl: float
  loss: float
  reference_loss: float

  def __str__(self) -> str:
    return (
      f"largest logit difference {self.max_difference:.3g}, KL {self.kl:.3g} "
      f"nats, loss {self.loss:.4f} (reference {self.reference_loss:.4f}) over "
      f"{self.positions:,} positions"
    )

  def check(self, tolerance: float) -> None:
    """Raises ValueError where a logit differs by more than `tolerance`."""
    # Also where the difference is NaN.
    if not self.max_difference <= tolerance:
      raise ValueError(
        f"the logits are not those of the reference: {self}; the tolerance is "
        f"{tolerance:g}"
      )


def convert(
  source: str,
  target: str,
  *,
  fmt: str,
  dtype: str = "",
  max_shard_bytes: int = export.MAX_SHARD_BYTES,
  allow_missing: str = "",
) -> None:
  """Writes a checkpoint in another format.

  To Hugging Face's format, from safetensors or GGUF, tensors pass through the
  host one by one; to and from Orbax's, all parameters lie on the devices.

  Args:
    source: see `loading.load_model`.
    target: folder, which must not exist or be empty.
    fmt: one of `FORMATS`.
    dtype: one of `DTYPES`; "" is the stored one, float32 where tensors differ
      or are quantised, and of a training step that of the run's export.
    max_shard_bytes: size of a safetensors file.
    allow_missing: see `weights.CheckedSource`.

  Raises:
    ValueError: for a checkpoint that cannot be read or written faithfully.
    FileExistsError: where the target exists.
  """
  if fmt not in FORMATS:
    raise ValueError(f"format={fmt!r} is not one of {FORMATS}")
  check_dtype(dtype, field="dtype")
  origin, _ = hub.resolve(source)
  on_devices = True
  if orbax_folder.is_orbax(origin):
    dtype = dtype or orbax_folder.read_record(origin)["dtype"]
  elif step_folder.is_step(origin):
    dtype = dtype or step_folder.export_dtype(origin)
  else:
    on_devices = fmt == "orbax"
    tensors = loading.open_source(origin)
    dtype = dtype or _STORED[tensors.weight_format]
  if on_devices:
    model = loading.load_model(
      source, dtype=jnp.dtype(dtype), allow_missing=allow_missing
    )
    write_model(
      model,
      target,
      fmt=fmt,
      origin=loading.facts_folder(origin),
      max_shard_bytes=max_shard_bytes,
    )
    return
  config = loading.read_config(tensors, name=source)
  checked = weights.CheckedSource(tensors, config, allow_missing)
  export.write_folder(
    checked,
    config,
    target,
    dtype=jnp.dtype(dtype),
    origin=origin,
    max_shard_bytes=max_shard_bytes,
  )
  checked.inspector.warn()


def write_model(
  model: LoadedModel,
  target: str,
  *,
  fmt: str,
  origin: pathlib.Path | None,
  max_shard_bytes: int = export.MAX_SHARD_BYTES,
) -> None:
  """Writes a model in the dtype of its parameters.

  Args:
    model: on any mesh.
    target: folder, which must not exist or be empty.
    fmt: one of `FORMATS`.
    origin: folder or .gguf file whose tokenizer goes along; None: none does.
    max_shard_bytes: size of a safetensors file.

  Raises:
    ValueError: for a model that cannot be written faithfully.
    FileExistsError: where the target exists.
  """
  if fmt == "orbax":
    orbax_folder.write_folder(
      model.params,
      model.config,
      target,
      origin=origin,
      revision=model.revision,
    )
    return
  export.write_folder(
    export.ParameterSource(model.params, model.config),
    model.config,
    target,
    dtype=jnp.dtype(model.dtype),
    origin=origin,
    max_shard_bytes=max_shard_bytes,
  )


def verify(model: LoadedModel, reference: str) -> Verification:
  """Compares a model's logits with stored ones.

  Args:
    model: loaded, best in float32.
    reference: .npz file with `input_ids` [B, T] and `logits` [B, T, V].

  Raises:
    ValueError: where the file holds something else.
  """
  with open(reference, "rb") as file:
    if file.read(2) != b"PK":
      raise ValueError(f"{reference} is no .npz file of NumPy")
  with failures.reading(reference), np.load(reference) as stored:
    lacking = {"input_ids", "logits"} - set(stored.files)
    if lacking:
      raise ValueError(f"{reference}: no {' and no '.join(sorted(lacking))}")
    ids, expected = stored["input_ids"], stored["logits"]
  if expected.shape != (*ids.shape, model.config.vocab_size):
    raise ValueError(
      f"{reference}: logits {expected.shape} for ids {ids.shape} and a "
      f"vocabulary of {model.config.vocab_size}"
    )
  largest, divergence, losses = 0.0, 0.0, np.zeros(2)
  step = sharding.batch_ways(model.mesh)
  for start in range(0, len(ids), step):
    rows = ids[start : start + step]
    found = np.asarray(model.logits(rows.astype(np.int32)))
    wanted = expected[start : start + step]
    difference = np.abs(found - wanted).max()
    largest = float(np.maximum(largest, difference))  # NaN stays.
    ours, theirs = _log_softmax(found), _log_softmax(wanted)
    divergence += float((np.exp(theirs) * (theirs - ours)).sum())
    targets = rows[:, 1:, None]
    losses += [
      -np.take_along_axis(scores[:, :-1], targets, axis=2).sum()
      for scores in (ours, theirs)
    ]
  count = max(ids.size - len(ids), 1)
  return Verification(
    positions=ids.size,
    max_difference=largest,
    kl=divergence / ids.size,
    loss=losses[0] / count,
    reference_loss=losses[1] / count,
  )


def _log_softmax(
  logits: Float[np.ndarray, "B T V"],
) -> Float[np.ndarray, "B T V"]:
  wide = logits.astype(np.float64)
  wide -= wide.max(axis=-1, keepdims=True)
  return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
