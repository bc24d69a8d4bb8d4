r"""Converts a checkpoint, and compares its logits with a reference's.

  python scripts/convert.py --model Qwen/Qwen3-0.6B --output runs/qwen \
    --format orbax --dtype bfloat16
  python scripts/convert.py --model runs/qwen --output runs/qwen_hf \
    --verify reference.npz
  python scripts/convert.py --model runs/train/checkpoints/100 --output runs/m

Models are Hugging Face folders, hub ids, .gguf files, Orbax folders made here
and steps of a training run (W/checkpoints/100). Without --output, --verify
compares the model. The status is 2 where a logit differs by more than
--tolerance. Tensors that match --allow_missing may be missing (0, norms the
identity) or unexplained (left out).
"""

from absl import flags

from longctx_jax import commands
from longctx_jax.checkpoints import convert, export, loading

_MODEL = flags.DEFINE_string(
  "model", None, "folder, hub id or .gguf file", required=True
)
_OUTPUT = flags.DEFINE_string("output", "", "folder to write")
_FORMAT = flags.DEFINE_enum("format", "hf", convert.FORMATS, "of the output")
_DTYPE = flags.DEFINE_enum(
  "dtype", "", convert.DTYPES, "of the output; default: as stored"
)
_SHARD = flags.DEFINE_integer(
  "max_shard_bytes", export.MAX_SHARD_BYTES, "of a safetensors file"
)
_MISSING = flags.DEFINE_string("allow_missing", "", "pattern of tensor names")
_VERIFY = flags.DEFINE_string("verify", "", ".npz of input_ids and logits")
_TOLERANCE = flags.DEFINE_float("tolerance", 1e-3, "largest logit difference")


def main():
  """Writes the target, then verifies."""
  if _OUTPUT.value:
    convert.convert(
      _MODEL.value,
      _OUTPUT.value,
      fmt=_FORMAT.value,
      dtype=_DTYPE.value,
      max_shard_bytes=_SHARD.value,
      allow_missing=_MISSING.value,
    )
    print(f"wrote {_OUTPUT.value}")
  if _VERIFY.value:
    model = loading.load_model(_OUTPUT.value or _MODEL.value)
    found = convert.verify(model, _VERIFY.value)
    print(found)
    found.check(_TOLERANCE.value)
  elif _OUTPUT.value:
    print(f"next: python scripts/eval.py --model {_OUTPUT.value} ...")
  else:
    raise ValueError("nothing to do: give --output, --verify or both")


if __name__ == "__main__":
  commands.run(main, needs=("model",))
