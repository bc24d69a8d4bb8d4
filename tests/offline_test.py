"""No network and no torch: find, compute, and a hub id that fails fast."""

import json

import pytest
from support.command_line import run
from support.tiny_runs import D, K, make_texts, save_models

# In the server of `run`, no socket connects and torch is not there.
SCRIPT = f"""
import json, sys, time
import longctx_jax as lc

evaluator, model = lc.load_model("m0"), lc.load_model("m1")
text = open("text.txt").read()
keys = lc.find_key_tokens(text, evaluator, short_len={K}, stride={D})
result = lc.compute_longppl(text, model, keys.with_thresholds(0.5, -20.0))
start = time.monotonic()
try:
  lc.load_model("owner/no-such-model")
except FileNotFoundError as error:
  message = str(error)
print(json.dumps({{
  "longppl": result.longppl,
  "seconds": time.monotonic() - start,
  "message": message,
  "modules": sorted(sys.modules),
}}))
"""


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
  folder = tmp_path_factory.mktemp("offline")
  save_models(folder, ["m0", "m1"])
  (folder / "text.txt").write_text(make_texts()[0])
  (folder / "script.py").write_text(SCRIPT)
  (done,) = run([[folder / "script.py"]], cwd=folder, home=folder / "home")
  assert not done.status, done.err
  return json.loads(done.out)


def test_the_api_works_without_network_and_torch(outcome):
  """Cases L1, L2."""
  assert outcome["longppl"] > 1
  assert not {"torch", "tensorflow"} & set(outcome["modules"])


def test_a_hub_id_says_at_once_what_to_copy_where(outcome):
  """Case L1."""
  assert outcome["seconds"] < 5
  assert "owner/no-such-model is neither a folder here" in outcome["message"]
  assert (
    "Copy its config.json, *.safetensors and tokenizer files"
    in (outcome["message"])
  )
