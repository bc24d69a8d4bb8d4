"""The README.md beside a store: for a hub, and for a person."""

import re

import huggingface_hub
import pytest
from support import manifests, stores

from longctx_jax.key_tokens import card, columns, merging


@pytest.fixture
def workdir(tmp_path):
  rows = [
    stores.record(
      i,
      scores={"key_token_ratio": i / 10, "mean_context_benefit": 0.5},
      columns={},
    )
    for i in range(9)
  ]
  stores.write(tmp_path / "w" / "key_tokens", rows[:4], rows[4:])
  return tmp_path / "w"


def test_a_hub_reads_it_and_finds_the_files(workdir):
  card.write(workdir)
  found = huggingface_hub.DatasetCard.load(workdir / "README.md")
  (config,) = found.data.configs
  assert config["config_name"] == "default"
  assert len(list(workdir.glob(config["data_files"]))) == 2
  assert found.data.size_categories == ["n<1K"]
  assert found.data.pretty_name == "Key tokens by tiny (K = 4, d = 2)"


def test_it_says_how_the_store_was_made_and_what_it_holds(workdir):
  card.write(workdir)
  text = (workdir / "README.md").read_text()
  assert "alpha = 2, beta = -2 nats" in text and "| protocol | paper |" in text
  assert "| documents | 9: 9 with key tokens |" in text
  assert re.search(
    r"key tokens per eligible target \| 0.08 \| 0.4 \| 0.72", text
  )
  assert columns.markdown() in text
  assert "9 documents, 50.0% of" not in text and "2.4% of all targets" in text


def test_it_follows_the_store_and_leaves_a_persons_own(workdir):
  card.write(workdir)
  first = (workdir / "README.md").read_text()
  stores.write(workdir / "key_tokens", [stores.record(9)])
  card.write(workdir)
  assert (workdir / "README.md").read_text() != first
  (workdir / "README.md").write_text("# mine\n")
  card.write(workdir)
  assert (workdir / "README.md").read_text() == "# mine\n"


def test_a_path_of_this_machine_is_not_told():
  manifest = manifests.make(evaluator="/data/of/somebody/model")
  text = card.text_of(manifest, card.Summary())
  assert "somebody" not in text and "Key tokens by model" in text
  assert "Key tokens by owner/name" in card.text_of(
    manifests.make(evaluator="owner/name"), card.Summary()
  )


def test_a_merged_store_has_one(workdir, tmp_path):
  stores.write(tmp_path / "v" / "key_tokens", [stores.record(20)])
  merging.merge([workdir, tmp_path / "v"], tmp_path / "both")
  assert "10 with key tokens" in (tmp_path / "both" / "README.md").read_text()
