import json
import re
import shutil

import pyarrow.parquet as pq
import pytest
from support import manifests
from support.stores import (
  MANIFEST,
  assert_same_store,
  record,
  without_metadata,
  write,
)

from longctx_jax.key_tokens import folder as folder_lib
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens import writer as writer_lib
from longctx_jax.runtime.shards import Shard


@pytest.fixture
def folder(tmp_path):
  """Of a store that is yet to be written."""
  return tmp_path / "key_tokens"


def test_no_text_is_stored_and_names_are_fixed(folder):
  write(folder, [record(0)], [record(1)])
  write(folder, [record(2)], shard=Shard(3, 8))
  names = sorted(path.name for path in folder.iterdir())
  for name, expected in zip(
    names,
    ["00001-00000-{}-00000", "00001-00000-{}-00001", "00002-00003-{}-00000"],
    strict=True,
  ):
    pattern = expected.format("[0-9a-f]{8}")
    assert re.fullmatch(rf"part-{pattern}\.parquet", name)
  beside = {path.name for path in folder.parent.iterdir()}
  assert beside == {"key_tokens", "key_tokens.json", ".lock-key_tokens"}
  names = pq.read_schema(folder / names[0]).names
  assert names == [
    "doc_id",
    "doc_index",
    "text_sha256",
    "n_chars",
    "n_tokens",
    "n_tokens_full",
    "n_eligible",
    "reason",
    "truncated",
    "token_start",
    "token_end",
    "long_log_probs",
    "short_log_probs",
    "mean_context_benefit",
    "n_mirror",
    "p75_x",
    "lang",
    "tags",
  ]


def test_parts_that_nobody_knows_how_they_were_made_are_refused(folder):
  write(folder, [record(0)])
  manifest = folder_lib.manifest_path(folder)
  manifest.write_text("{")
  with pytest.raises(ValueError, match="key_tokens.json is damaged"):
    write(folder)
  manifest.unlink()
  for path in folder.iterdir():
    without_metadata(path)
  with pytest.raises(FileNotFoundError, match="no key-token store"):
    store_lib.read_store(folder)
  with pytest.raises(ValueError, match="parts but no key_tokens.json"):
    write(folder)
  write(folder, overwrite=True)
  assert len(store_lib.read_store(folder)) == 0


def test_the_folder_alone_is_a_store(folder, tmp_path):
  """Each part repeats the manifest: what is copied elsewhere can be read."""
  write(folder, [record(0)], [record(1)])
  alone = tmp_path / "elsewhere"
  shutil.copytree(folder, alone)
  store = store_lib.read_store(alone)
  assert store.manifest == MANIFEST and len(store) == 2
  write(alone, [record(2)])
  assert_same_store(alone, [record(i) for i in range(3)])
  with pytest.raises(ValueError, match="checksum was '7' and is '8'"):
    writer_lib.open_writer(alone, manifests.make(checksum="8"))


def test_a_store_of_before_is_read_and_gone_on_with(folder):
  """Its manifest lay in the folder, and its parts were named otherwise."""
  write(folder, [record(0)], [record(1)])
  for number, path in enumerate(sorted(folder.iterdir())):
    without_metadata(path)
    path.rename(folder / f"part-00000-{number:05d}.parquet")
  fields = MANIFEST.to_json()
  del fields["numerics"]
  (folder / "manifest.json").write_text(json.dumps(fields))
  folder_lib.manifest_path(folder).unlink()
  assert_same_store(folder, [record(0), record(1)])
  assert store_lib.read_store(folder).manifest.numerics == 1
  write(folder, [record(2)])
  assert_same_store(folder, [record(i) for i in range(3)])
  assert all(path.suffix == ".parquet" for path in folder.iterdir())


def test_an_unknown_format_is_refused(folder):
  write(folder)
  path = folder_lib.manifest_path(folder)
  path.write_text(path.read_text().replace('version": 1', 'version": 2'))
  with pytest.raises(ValueError, match="has format 2; this version reads 1"):
    store_lib.read_store(folder)


def test_one_document_in_two_rows_is_refused(folder):
  writer = write(folder, [record(0)])
  for rows in ([record(0)], [record(1), record(1)]):
    with pytest.raises(ValueError, match="is in the store already"):
      writer.write(rows)
  (first,) = folder.iterdir()
  copy = folder / "part-00001-00003-deadbeef-00000.parquet"
  copy.write_bytes(first.read_bytes())
  pattern = "'d0' is in the store twice: in .*parquet and .*parquet"
  with pytest.raises(ValueError, match=pattern):
    store_lib.read_store(folder)
