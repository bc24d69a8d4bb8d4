"""The paper's own code (longppl 0.3.0) on torch, and what it computes.

`longppl.longppl` is called unmodified; per-token values are taken from the
model's calls, as they pass.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
from typing import Any

import numpy as np
import torch
import transformers
from longppl import longppl

from longctx_jax.checkpoints.gguf import tensors
from longctx_jax.checkpoints.gguf import tokenizer as tokenizer_lib
from longctx_jax.paper import spans


class Recorder:
  """A model that keeps the NLL of each of its calls, and no logits."""

  def __init__(self, model: torch.nn.Module):
    self.model = model
    self.device = model.device
    self.nlls: list[np.ndarray] = []

  def __call__(self, ids: torch.Tensor) -> Any:
    """The model's output for ids [1, n]; their NLL [n - 1] is kept, in nats."""
    output = self.model(ids)
    nll = torch.nn.functional.cross_entropy(
      output.logits[0, :-1], ids[0, 1:], reduction="none"
    )
    self.nlls.append(nll.detach().numpy())
    return output


@dataclasses.dataclass(frozen=True)
class ReferenceRun:
  """What the reference computed of one document.

  NLLs are in nats and target-aligned: index t speaks of id t + 1.

  Attributes:
    longppl: None without key tokens.
    ppl: over all targets.
    ids: that the evaluator read [n].
    long_nll: of the evaluator [n - 1].
    short_nll: the same in the windows; NaN where none scores the target.
    model_nll: of the model under test, by its own tokens.
    slices: the file of key spans, as written.
    targets: key targets of the model under test.
  """

  longppl: float | None
  ppl: float
  ids: np.ndarray
  long_nll: np.ndarray
  short_nll: np.ndarray
  model_nll: np.ndarray
  slices: str
  targets: list[int]


def run_reference(
  text: str,
  model: torch.nn.Module,
  tokenizer: transformers.PreTrainedTokenizerFast,
  evaluator: torch.nn.Module,
  evaluator_tokenizer: transformers.PreTrainedTokenizerFast,
  *,
  short_len: int,
  stride: int,
  alpha: float = 2.0,
  beta: float = -2.0,
) -> ReferenceRun:
  """Runs the reference's `compute_longppl` and keeps what it computes.

  The length of the evaluator's ids may not be short_len + 1 modulo stride,
  where the reference raises TypeError.
  """
  recorder, finder = Recorder(model), Recorder(evaluator)
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "slices.txt"
    result = longppl.compute_longppl(
      text,
      recorder,
      finder,
      tokenizer,
      evaluator_tokenizer,
      save_path=str(path),
      trunc_len=short_len,
      sliding_window=stride,
      alpha=alpha,
      beta=beta,
    )
    slices = path.read_text()
    key_spans = spans.read_slices(path).tolist()
  long_nll, *windows = finder.nlls
  short_nll = np.full_like(long_nll, np.nan)
  for start, nll in zip(range(0, len(long_nll), stride), windows, strict=False):
    scored = nll[short_len - 1 :]
    first = start + short_len - 1
    short_nll[first : first + len(scored)] = scored
  encoding = tokenizer(
    text, add_special_tokens=False, return_offsets_mapping=True
  )
  return ReferenceRun(
    longppl=None if result["longppl"] is None else float(result["longppl"]),
    ppl=float(result["ppl"]),
    ids=np.array(evaluator_tokenizer(text)["input_ids"], np.int32),
    long_nll=long_nll,
    short_nll=short_nll,
    model_nll=recorder.nlls[0],
    slices=slices,
    targets=longppl.cal_overlap(encoding["offset_mapping"], key_spans),
  )


def load_gguf(
  path: pathlib.Path,
) -> tuple[torch.nn.Module, transformers.PreTrainedTokenizerFast]:
  """A GGUF model as transformers itself reads it, float32.

  The tokenizer is this project's: transformers ignores the pre-tokenizer that
  a GGUF file names.
  """
  model = transformers.AutoModelForCausalLM.from_pretrained(
    str(path.parent), gguf_file=path.name, dtype=torch.float32
  )
  tokenizer = tokenizer_lib.load_tokenizer(tensors.GgufSource(path))
  return model.eval(), transformers.PreTrainedTokenizerFast(
    tokenizer_object=tokenizer
  )


def load_folder(
  folder: pathlib.Path,
) -> tuple[torch.nn.Module, transformers.PreTrainedTokenizerFast]:
  """A Hugging Face folder as transformers reads it, float32."""
  model = transformers.AutoModelForCausalLM.from_pretrained(
    str(folder), dtype=torch.float32
  )
  return model.eval(), transformers.AutoTokenizer.from_pretrained(str(folder))
