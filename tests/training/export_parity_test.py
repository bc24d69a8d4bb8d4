"""A trained model, in stock transformers."""

import jax.numpy as jnp
import numpy as np
import pytest
import transformers
from support.tiny_training import make_config, use_devices

from longctx_jax.training import run

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("table", ["", "linear"])
def test_the_export_of_a_training_has_our_logits_in_transformers(
  tmp_path, monkeypatch, table
):
  """Case G9: with the table that it was extended by, where there is one."""
  use_devices(monkeypatch, 1)
  fields = {"optimizer__steps": 3}
  if table:
    fields |= {
      "model__rope__rope_type": table,
      "model__rope__factor": 2.0,
      "model__rope__max_position": 8192,
    }
  model = run.train(make_config(tmp_path, **fields), workdir=tmp_path / "run")
  folder = tmp_path / "run" / "export"
  theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  assert tokenizer("Some text.")["input_ids"]
  ids = np.random.default_rng(0).integers(0, 256, (2, 200))
  with torch.no_grad():
    expected = theirs(torch.tensor(ids)).logits.numpy()
  found = np.asarray(model.logits(jnp.asarray(ids)))
  np.testing.assert_allclose(found, expected, atol=1e-4)
