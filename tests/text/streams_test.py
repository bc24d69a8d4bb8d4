import bz2
import gzip
import json
import lzma

import pyarrow as pa
import pytest
from support import corpora

from longctx_jax.text import corpus as corpus_lib

COMPRESS = {
  "gz": gzip.compress,
  "bz2": bz2.compress,
  "xz": lzma.compress,
  "zst": lambda data: pa.Codec("zstd").compress(data, asbytes=True),
}


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_files_read_like_others(tmp_path, ending):
  """Also those of several streams, as `cat a.gz b.gz` makes them."""
  compress = COMPRESS[ending]
  lines = [json.dumps(row).encode() + b"\n" for row in corpora.ROWS]
  whole = compress(lines[0]) + compress(b"".join(lines[1:]))
  (tmp_path / f"a.jsonl.{ending}").write_bytes(whole)
  (tmp_path / f"b.txt.{ending}").write_bytes(
    compress(corpora.TEXTS[1].encode())
  )
  (tmp_path / f"c.MD.{ending.upper()}").write_bytes(compress(b"three"))
  documents = list(corpus_lib.open_corpus(tmp_path))
  assert [d.text for d in documents] == [
    *corpora.TEXTS,
    corpora.TEXTS[1],
    "three",
  ]
  assert documents[-2].doc_id == f"b.txt.{ending}"


@pytest.mark.parametrize("ending", COMPRESS)
def test_a_damaged_compressed_file_is_named(tmp_path, ending):
  data = COMPRESS[ending](json.dumps(corpora.ROWS).encode() * 100)
  for name, damaged in (("cut", data[: len(data) // 2]), ("junk", b"x" * 99)):
    path = tmp_path / f"{name}.jsonl.{ending}"
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=f"{name}.jsonl.{ending} is damaged"):
      corpus_lib.open_corpus(path)
    path = path.rename(tmp_path / f"{name}.txt.{ending}")
    assert f"{name}.txt.{ending} is damaged" in corpora.errors(path)[0]
