"""Writes what both sides of the benchmark read: a model folder, documents.

The model is SmolLM2-135M-Instruct, dequantised to float32; the documents are
chapters of the Python language reference as shipped inside CPython, cut.
"""

from __future__ import annotations

import json
import pathlib
import pydoc_data.topics

from absl import app, flags
from safetensors.numpy import save_file

from longctx_jax.checkpoints.facts import config_json
from longctx_jax.checkpoints.gguf import tensors
from longctx_jax.checkpoints.gguf import tokenizer as tokenizer_lib
from longctx_jax.experiments import demo
from longctx_jax.text.tokenizer import TextTokenizer

_OUT = flags.DEFINE_string("out", None, "Folder to write to.", required=True)
_GGUF = flags.DEFINE_string("gguf", "", "GGUF file; default: SmolLM2's.")
_LENGTHS = flags.DEFINE_multi_integer("n", [2048, 8000], "Ids per document.")

_CHAPTERS = ("compound", "specialnames", "types", "formatstrings")


def write_model(source: tensors.GgufSource, folder: pathlib.Path) -> None:
  """Writes a Hugging Face folder in float32, tokenizer included."""
  folder.mkdir(parents=True, exist_ok=True)
  facts = config_json.to_hf(
    config_json.from_hf(source.config, source=source.path)
  )
  (folder / "config.json").write_text(json.dumps(facts))
  save_file(
    {name: source.read(name) for name in source.shapes},
    folder / "model.safetensors",
  )
  tokenizer = tokenizer_lib.load_tokenizer(source)
  tokenizer.save(str(folder / "tokenizer.json"))
  (folder / "tokenizer_config.json").write_text(
    json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"})
  )


def cut(text: str, tokenizer: TextTokenizer, n: int) -> str:
  """The longest start of a text that has at most n ids when read alone."""
  offsets = tokenizer.encode(text, add_special_tokens=False).offsets
  if len(offsets) < n:
    raise ValueError(f"the chapters have {len(offsets)} ids, not {n}")
  for last in offsets[n - 1 :: -1, 1]:
    start = text[:last]
    # The end of a text may split otherwise than its middle.
    if len(tokenizer.encode(start, add_special_tokens=False).ids) <= n:
      return start
  raise AssertionError(n)


def main(argv):
  """Writes model/ and document.N.txt."""
  del argv
  out = pathlib.Path(_OUT.value)
  source = tensors.GgufSource(_GGUF.value or demo.embedded_model())
  write_model(source, out / "model")
  tokenizer = TextTokenizer(
    tokenizer_lib.load_tokenizer(source), name=source.path
  )
  text = "\n\n".join(pydoc_data.topics.topics[name] for name in _CHAPTERS)
  for n in _LENGTHS.value:
    document = cut(text, tokenizer, n)
    (out / f"document.{n}.txt").write_bytes(document.encode())


if __name__ == "__main__":
  app.run(main)
