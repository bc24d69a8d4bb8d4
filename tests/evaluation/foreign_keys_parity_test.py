"""The recipe of docs/log_probs.md, run: torch's two passes as a store."""

import json
import re

import numpy as np
import pytest
from support.command_line import ROOT
from support.tiny_runs import D, K, make_config, make_texts

from longctx_jax import testing
from longctx_jax.evaluation import foreign_keys
from longctx_jax.scoring import run

pytestmark = pytest.mark.torch
pytest.importorskip("torch")


def recipe():
  """The blocks of the section, in order: windows, then transformers."""
  text = (ROOT / "docs" / "log_probs.md").read_text()
  _, _, section = text.partition("# An evaluator that runs elsewhere")
  blocks = re.findall(r"```python\n(.*?)```", section, re.S)
  assert "def windows" in blocks[0] and "transformers" in blocks[1]
  return blocks[:2]


@pytest.mark.parametrize("add_bos", [False, True])
def test_the_store_of_transformers_is_our_own(tmp_path, monkeypatch, add_bos):
  monkeypatch.chdir(tmp_path)
  source = testing.RandomSource(testing.tiny_config(), seed=0)
  source.save(tmp_path / "m", add_bos=add_bos)
  texts = make_texts(2)
  documents = [(f"d{i}", text) for i, text in enumerate(texts)]
  lines = [json.dumps({"id": name, "text": text}) for name, text in documents]
  (tmp_path / "corpus.jsonl").write_text("\n".join(lines))
  names = dict(name=str(tmp_path / "m"), documents=documents, K=K, d=D)
  for block in recipe():
    exec(block, names)
  config = make_config(
    data__sources=(str(tmp_path / "corpus.jsonl"),), evaluator="engine"
  )
  store = foreign_keys.score_corpus(
    config, log_probs="both.parquet", workdir=tmp_path / "theirs"
  )
  config.evaluator = str(tmp_path / "m")
  own = run.score_corpus(config, workdir=tmp_path / "ours")
  for ours, theirs in zip(own, store, strict=True):
    for name in ("offsets", "key_mask", "spans"):
      np.testing.assert_array_equal(
        getattr(theirs, name), getattr(ours, name), err_msg=name
      )
    for name in ("long_log_probs", "short_log_probs"):
      np.testing.assert_allclose(
        getattr(theirs, name), getattr(ours, name), atol=1e-4, err_msg=name
      )
    assert theirs.scores["copied_share"] == ours.scores["copied_share"]
    assert ours.key_mask.sum() > 3
