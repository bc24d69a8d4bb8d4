"""Makes the values in tests/golden with torch and the paper's own code.

Needs requirements-parity.txt and takes about three minutes:

  PYTHONPATH=. .venv-parity/bin/python tools/make_golden.py
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import tempfile

import numpy as np
import torch
import torch_reference
import transformers
from absl import app, flags

from longctx_jax import testing
from longctx_jax.checkpoints import weights
from longctx_jax.checkpoints.facts import config_json
from longctx_jax.experiments import demo
from longctx_jax.model.rope import RopeConfig

_OUT = flags.DEFINE_string("out", "tests/golden", "Folder to write to.")

# (ids, K, d) of the SmolLM2 cases, and the document that they are cut from.
_CASES = ((1024, 256, 64), (2048, 512, 128))
_DOCUMENT = dict(seed=2, num_words=1500)

# Longer than the original context and than the windows.
_TINY_LENGTH = 200
_TINY_ROW_STEP = 23
_TINY = {
  "llama3": dict(
    ropes=(
      RopeConfig(
        "llama3",
        500000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position=64,
      ),
    )
  ),
  "mistral": dict(model_type="mistral", windows=(16, 16), tied=False),
  "qwen2": dict(model_type="qwen2", qkv_bias=True),
  "qwen3": dict(model_type="qwen3", qk_norm=True, tied=False),
}


def write_json(path: pathlib.Path, facts: dict) -> None:
  """Writes facts, one a line."""
  path.write_text(json.dumps(facts, indent=1) + "\n")


def make_document_case(model, tokenizer, out, n, short_len, stride) -> None:
  """Writes one document under SmolLM2, as evaluator and as model."""
  text = testing.synthetic_document(**_DOCUMENT)
  encoding = tokenizer(text, return_offsets_mapping=True)
  text = text[: encoding["offset_mapping"][n - 1][1]]
  run = torch_reference.run_reference(
    text,
    model,
    tokenizer,
    model,
    tokenizer,
    short_len=short_len,
    stride=stride,
  )
  if len(run.ids) != n:
    raise ValueError(f"cutting at {n} ids left {len(run.ids)}: take another n")
  name = f"smollm2.n{n}.K{short_len}.d{stride}"
  facts = {
    "short_len": short_len,
    "stride": stride,
    "longppl": run.longppl,
    "ppl": run.ppl,
    "torch": torch.__version__,
    "transformers": transformers.__version__,
    "slices": run.slices,
    "text": text,
  }
  write_json(out / f"{name}.json", facts)
  scored = slice(short_len - 1, None)
  np.savez_compressed(
    out / f"{name}.npz",
    ids=run.ids,
    long_nll=run.long_nll[scored],
    short_nll=run.short_nll[scored],
    key_targets=np.array(run.targets, np.int32),
  )


def make_tiny(out: pathlib.Path) -> None:
  """Writes logits of random models of every family, at some positions."""
  facts, arrays = {}, {}
  rng = np.random.default_rng(0)
  for seed, (name, changes) in enumerate(_TINY.items()):
    config = dataclasses.replace(testing.tiny_config(), **changes)
    source = testing.RandomSource(config, seed=seed)
    ids = rng.integers(0, 256, (2, _TINY_LENGTH), dtype=np.int32)
    with tempfile.TemporaryDirectory() as folder:
      source.save(folder)
      model, _ = torch_reference.load_folder(pathlib.Path(folder))
    with torch.no_grad():
      logits = model(torch.from_numpy(ids).long()).logits.numpy()
    facts[name] = {
      "config": config_json.to_hf(config),
      "seed": seed,
      "checksum": weights.checksum(source),
      "row_step": _TINY_ROW_STEP,
    }
    arrays[f"{name}.ids"] = ids
    arrays[f"{name}.logits"] = logits[:, ::_TINY_ROW_STEP]
  write_json(out / "tiny.json", facts)
  np.savez_compressed(out / "tiny.npz", **arrays)


def main(argv):
  """Writes all of them."""
  del argv
  out = pathlib.Path(_OUT.value)
  out.mkdir(parents=True, exist_ok=True)
  make_tiny(out)
  model, tokenizer = torch_reference.load_gguf(demo.embedded_model())
  for case in _CASES:
    make_document_case(model, tokenizer, out, *case)


if __name__ == "__main__":
  app.run(main)
