"""Stores of several hands as one: what agrees, and what is refused by name."""

import dataclasses

import numpy as np
import pytest
from support import manifests

from longctx_jax.key_tokens import merging, record
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens import writer as writer_lib


def row(index, *, text="a", reason=""):
  arrays = dict(
    offsets=[[0, 1], [1, 2]],
    long_log_probs=[-0.5, -1.0 - index],
    short_log_probs=[-9.0, -9.0],
  )
  return record.make_key_tokens(
    doc_id=f"d{index}",
    doc_index=index,
    text_sha256="" if reason else text,
    n_chars=2,
    n_tokens=2,
    n_tokens_full=2,
    n_eligible=2,
    reason=reason,
    manifest=manifests.make(),
    **(dict.fromkeys(arrays) if reason else arrays),
  )


@pytest.fixture
def write(tmp_path):
  def write_store(name, *rows, **changes):
    folder = tmp_path / name / "key_tokens"
    manifest = manifests.make(**changes)
    folder.parent.mkdir()
    writer = writer_lib.open_writer(folder, manifest)
    writer.write(dataclasses.replace(r, manifest=manifest) for r in rows)
    return str(folder.parent)

  return write_store


def test_each_document_is_taken_once_and_a_failed_one_where_it_did_not(
  write, tmp_path
):
  """Names and versions of the evaluator are free."""
  a = write("a", row(0), row(1, reason="failed"), row(4, reason="failed"))
  b = write("b", row(1), row(0), evaluator="/elsewhere/tiny", revision="x")
  c = write("c", row(3), versions={"jax": "1"})
  store = merging.merge([a, b, c], tmp_path / "all")
  assert list(store.hashes) == ["d0", "d1", "d3", "d4"]
  assert [keys.reason for keys in store] == ["", "", "", "failed"]
  assert store.manifest.evaluator == "tiny"
  again = store_lib.read_store(tmp_path / "all")
  np.testing.assert_array_equal(
    again.get("d3").long_log_probs, row(3).long_log_probs
  )


@pytest.mark.parametrize(
  ("changes", "message"),
  [
    (dict(checksum="8"), "checksum was '7' and is '8'. Only stores"),
    (dict(alpha=1.0), "alpha was 2.0 and is 1.0"),
    (dict(numerics=2), "numerics was 1 and is 2"),
  ],
)
def test_stores_that_were_made_otherwise_are_refused(
  write, tmp_path, changes, message
):
  a, b = write("a", row(0)), write("b", row(1), **changes)
  with pytest.raises(ValueError, match=rf"a and .*b were made .*{message}"):
    merging.merge([a, b], tmp_path / "all")
  assert not (tmp_path / "all").exists()


def test_one_document_with_two_texts_is_named(write, tmp_path):
  a, b = write("a", row(0), row(1)), write("b", row(1, text="b"), row(2))
  with pytest.raises(ValueError, match="'d1' has one text in .*a and another"):
    merging.merge([a, b], tmp_path / "all")


def test_a_store_is_not_merged_into_another(write, tmp_path):
  a, b, c = (write(name, row(i)) for i, name in enumerate("abc"))
  with pytest.raises(ValueError, match="holds a store already: take another"):
    merging.merge([a, b], c)
  with pytest.raises(ValueError, match="1 store to merge: name at least two"):
    merging.merge([a], tmp_path / "all")
  with pytest.raises(ValueError, match="name --output"):
    merging.merge([a, b], "")
