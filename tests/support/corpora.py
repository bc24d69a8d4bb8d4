"""Files that hold documents, and what is read of them."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

from longctx_jax.text import corpus as corpus_lib

# Newlines of every kind, a byte-order mark, an emoji of four code points, "".
TEXTS = ["one\r\ntwo\n", "\ufefféa 👩‍🚀", "", "plain", "zero\x00width\u2028sep"]
ROWS = [{"id": f"r{i}", "text": text} for i, text in enumerate(TEXTS)]


def write_texts(folder, texts=TEXTS):
  """A folder with a file for each text."""
  folder.mkdir()
  for i, text in enumerate(texts):
    (folder / f"d{i}.txt").write_bytes(text.encode())
  return folder


def write_json(path, rows):
  """A file with an object a line."""
  path.write_text("".join(json.dumps(row) + "\n" for row in rows))
  return path


def write_parquet(path, columns, row_group_size=2):
  """A file with several row groups."""
  pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
  return path


def texts(sources, **kwargs):
  """The text of each document; None where it can't be read."""
  return [d.text for d in corpus_lib.open_corpus(sources, **kwargs)]


def errors(sources, **kwargs):
  """Why each document can't be read, empty where it can."""
  documents = list(corpus_lib.open_corpus(sources, **kwargs))
  for document in documents:
    nothing = document.text is None and document.ids is None
    assert nothing == bool(document.error)
  return [document.error for document in documents]
