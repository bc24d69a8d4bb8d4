"""What a run lacks is named at once: a hub, data, chips and disks of ours."""

import io
import json
import pathlib
import shutil
import types

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command_line import ROOT, run
from support.hub_server import Repository, serving
from support.tiny_training import make_config

from longctx_jax.checkpoints.facts import config_json
from longctx_jax.model import sharding
from longctx_jax.runtime import failures, files
from longctx_jax.training import preflight, start
from longctx_jax.training import workdir as workdir_lib

TRAIN = "scripts/train.py"
MAIN = [TRAIN, f"--config={ROOT}/configs/llama2_7b.py"]
GATED = Repository({"config.json": b"{}"}, refusal=403)
# Facts of a model that no machine can train; weights that nobody downloads.
FACTS = {
  "architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32000,
  "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
  "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "hidden_act": "silu",
  "tie_word_embeddings": False, "rope_theta": 10000.0,
}  # fmt: skip
HUGE = Repository(
  {
    "config.json": json.dumps(FACTS).encode(),
    "model.safetensors": bytes(1000),
  }
)
ARXIV = io.BytesIO()
pq.write_table(pa.table({"text": ["a paper"], "meta": [{"a": 1}]}), ARXIV)
COMMANDS = {
  "nothing is there": [
    *MAIN, "--workdir=held", "--config.mesh.tensor=3",
    "--config.loss.weights=stored",
  ],
  "a model for no machine": [*MAIN, "--workdir=w", "--model=lab/huge"],
  "papers": [
    TRAIN, f"{MAIN[1]}:arxiv", "--workdir=w", "--model=lab/huge",
  ],
  "no papers": [
    TRAIN, f"{MAIN[1]}:arxiv", "--workdir=w", "--model=lab/huge",
    "--config.data.sources=('hf://datasets/lab/gone/data/*.parquet',)",
  ],
  "a token that is refused": [*MAIN, "--workdir=w", "--model=lab/private"],
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
  """name -> sentences of the commands, and what the hub was asked."""
  folder = tmp_path_factory.mktemp("preflight")
  hub = {
    "meta-llama/Llama-2-7b-hf": GATED,
    "lab/huge": HUGE,
    "datasets/timaeus/pile-arxiv": Repository(
      {"data/train-00000-of-00001.parquet": ARXIV.getvalue()}
    ),
    "lab/private": Repository({}, refusal=403, hidden=True),
  }
  with (
    serving(hub) as served,
    files.locked(folder / "held" / ".lock", doing="training in"),
  ):
    done = run(
      COMMANDS.values(),
      cwd=folder,
      home=folder / "home",
      without=["array_record"],
      loopback=True,
      HF_ENDPOINT=served.url,
    )
  said = {}
  for name, one in zip(COMMANDS, done, strict=True):
    assert one.status == 2 and "Traceback" not in one.err, one.err
    lines = [x for x in one.err.splitlines() if x.startswith("error: ")]
    said[name] = [line.removeprefix("error: ") for line in lines]
  return said, served.asked


def one_of(sentences, *parts):
  """Whether exactly one sentence holds all of these."""
  return sum(all(p in s for p in parts) for s in sentences) == 1


def test_all_that_is_missing_is_named_at_once_with_its_command(outcomes):
  said = outcomes[0]["nothing is there"]
  assert one_of(said, "weights='stored' with key_tokens=''")
  assert one_of(said, "another process is training in", "another --workdir")
  assert one_of(said, "does not cover the 1 devices", "--config.mesh.fsdp=-1")
  assert one_of(said, "Llama-2-7b-hf is gated", "hf auth login")
  assert one_of(said, "is not prepared", "python scripts/data.py pg19")
  assert one_of(said, "pip install array_record")
  assert len(said) == 6


def test_no_weights_are_fetched_for_a_run_that_can_not_be(outcomes):
  said, asked = outcomes
  said = said["a model for no machine"]
  assert one_of(said, "lab/huge in training takes", "no accelerator")
  assert one_of(said, "checkpoints", "--config.checkpoint.keep=1", "GB free")
  assert one_of(said, "python scripts/data.py pg19") and len(said) == 4
  paths = [path for _, path, _ in asked]
  assert any(path.endswith("huge/resolve/" + "c" * 40 + "/config.json")
             for path in paths)  # fmt: skip
  assert not any(path.endswith(".safetensors") for path in paths)


def test_the_papers_of_the_variant_are_found_on_the_hub(outcomes):
  """Their columns too; what is missing is the rest."""
  assert len(outcomes[0]["papers"]) == 3
  assert not any("hf://" in one for one in outcomes[0]["papers"])
  (more,) = set(outcomes[0]["no papers"]) - set(outcomes[0]["papers"])
  assert more.startswith("hf://datasets/lab/gone/data/*.parquet does not exist")


def test_a_refused_token_is_named(outcomes):
  said = outcomes[0]["a token that is refused"]
  assert one_of(said, "the hub refuses lab/private (403)", "hf auth login")


def chips(count, nbytes):
  """Devices of an accelerator with this much memory each."""
  one = types.SimpleNamespace(
    platform="tpu",
    device_kind="TPU v5 lite",
    memory_stats=lambda: {"bytes_limit": nbytes},
  )
  return [one] * count


@pytest.fixture
def config(tmp_path):
  return make_config(tmp_path)


def look(config, workdir, devices=None):
  """The sentences; none where a run could begin."""
  try:
    begun = preflight.begin(config, workdir=workdir)
    begun.require(devices or chips(1, 1 << 40))
  except failures.Several as error:
    return list(error.sentences)
  return []


def test_a_run_that_lacks_nothing_gets_its_documents(config, tmp_path):
  begun = preflight.begin(config, workdir=tmp_path / "w")
  assert begun.require(chips(8, 1 << 40)).count == 1


def test_documents_that_are_open_are_not_opened_again(
  config, tmp_path, monkeypatch
):
  documents = preflight.begin(config, workdir=tmp_path).require(chips(1, 0))
  monkeypatch.setattr(start.data, "open_corpus", None)
  seen = []
  monkeypatch.setattr(
    start.data,
    "open_training_data",
    lambda *_, corpus, **options: seen.append(corpus) or 1 / 0,
  )
  saved = types.SimpleNamespace(steps=[])
  monkeypatch.setattr(
    sharding, "make_mesh", lambda sizes, make=sharding.make_mesh: make(
      {"fsdp": 8}
    )
  )  # fmt: skip
  with pytest.raises(ZeroDivisionError):
    start.start(config, saved, tmp_path, documents=documents)
  assert seen == [documents]


def test_too_few_chips_are_named_with_the_number_that_holds_the_state(
  config, tmp_path
):
  # 16 bytes of each parameter: 4 chips hold a quarter of that each.
  facts, _ = preflight._look_at_model(config)
  quarter = 4 * preflight._count_parameters(facts)
  config.mesh.update(data=1, fsdp=-1, tensor=1)
  assert look(config, tmp_path / "w", chips(4, quarter)) == []
  (said,) = look(config, tmp_path / "w", chips(4, quarter - 1))
  assert "over 4 of 4 x TPU v5 lite" in said and "take 5 or more" in said
  config.mesh.update(data=2)
  (said,) = look(config, tmp_path / "w", chips(4, quarter))
  assert "over 2 of 4" in said and "take 4 or more" in said


@pytest.mark.tpu_compile
def test_chips_of_a_topology_are_known_by_their_kind(
  config, tmp_path, monkeypatch
):
  """None of them is there; 7B takes 100 GiB, and four v5e have 64."""
  from jax.experimental import topologies

  facts = config_json.from_hf(FACTS | {"num_hidden_layers": 32}, source="7b")
  monkeypatch.setattr(preflight.loading, "read_facts", lambda *_, **__: facts)
  monkeypatch.setattr(files, "disk_of", lambda path: (tmp_path, 10**15))

  def named(topology):
    found = topologies.get_topology_desc(topology, platform="tpu").devices
    return look(config, tmp_path / "w", found)

  (said,) = named("v5e:2x2")
  assert "takes 100 GiB" in said and "4 x TPU v5 lite with 16 GiB" in said
  assert "take 7 or more" in said
  assert named("v5p:2x2x1") == []


def test_a_batch_that_the_chips_do_not_divide_is_named(config, tmp_path):
  (said,) = look(config, tmp_path / "w", chips(3, 1 << 40))
  assert "batch_size=8 rows are not a multiple" in said and "take 6" in said


def test_space_is_that_of_each_disk(config, tmp_path, monkeypatch):
  count = preflight._count_parameters(preflight._look_at_model(config)[0])
  needed = 3 * 12 * count + 4 * count  # keep=2, and the one being written
  free = [needed]
  monkeypatch.setattr(files, "disk_of", lambda path: (tmp_path, free[0]))
  assert look(config, tmp_path / "w") == []
  free[0] -= 1
  (said,) = look(config, tmp_path / "w")
  assert "name a --workdir on a larger disk" in said
  # What a stopped run has written is not written again.
  (tmp_path / "w" / workdir_lib.CHECKPOINTS).mkdir(parents=True)
  (tmp_path / "w" / workdir_lib.CHECKPOINTS / "x").write_bytes(b"1")
  assert look(config, tmp_path / "w") == []
  # Weights that are yet to come share the disk.
  monkeypatch.setattr(preflight.hub, "missing_bytes", lambda name: 1000)
  (said,) = look(config, tmp_path / "w")
  assert "HF_HOME" in said and "--workdir" in said


def test_a_workdir_that_can_not_be_is_named(config, tmp_path, monkeypatch):
  (tmp_path / "file").write_text("")
  (said,) = look(config, tmp_path / "file")
  assert "it stands in the way" in said
  (said,) = look(config, tmp_path / "file" / "w")
  assert "a file stands where a folder is wanted" in said
  monkeypatch.setattr(preflight.os, "access", lambda *_: False)
  (said,) = look(config, tmp_path / "new" / "w")
  assert f"{tmp_path}: Permission denied" in said
  # A run that can't be leaves nothing behind.
  assert not (tmp_path / "new").exists()


def test_inputs_of_other_kinds_are_looked_at_too(config, tmp_path):
  shutil.rmtree(pathlib.Path(config.model.path))
  config.update_from_flattened_dict(
    {
      "data.sources": (),
      "data.key_tokens": str(tmp_path / "no_keys"),
      "loss.weights": "stored",
      "eval.every": 4,
      "eval.key_tokens": str(tmp_path / "no_held_out"),
      "eval.sources": (str(tmp_path / "none.txt"),),
    }
  )
  said = look(config, tmp_path / "w")
  assert one_of(said, "no such file or folder, and not a hub id")
  assert one_of(said, "no_keys", "Score first")
  assert one_of(said, "none.txt", "does not exist")
  assert one_of(said, "give --data") and len(said) == 4


def test_a_fault_of_the_program_keeps_its_traceback(
  config, tmp_path, monkeypatch
):
  monkeypatch.setattr(preflight.hub, "missing_bytes", lambda name: {}["x"])
  with pytest.raises(KeyError):
    look(config, tmp_path / "w")
