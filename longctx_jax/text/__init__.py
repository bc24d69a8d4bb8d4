"""Documents, their tokens, and offsets that are proved; no JAX.

Doors, for other rooms:
  corpus: documents of files, folders, URLs, streamed in order
  row_files: files of rows: text, JSON, Parquet
  tokenizer_files: the files of a tokenizer
  tokenizer: token ids with verified character offsets
  chunks: documents cut as training cuts them
  token_cache: a corpus tokenised and cut once
  prepared: data sets that a command of ours prepared as Parquet

Inside:
  json_rows: rows of JSON lines, or of one array
  streams: bytes of a file, decompressed
  offsets: where the bytes of tokens lie in a text
  tfds_files: data sets of tensorflow-datasets, row by row
"""

__all__ = [
  "corpus",
  "row_files",
  "tokenizer_files",
  "tokenizer",
  "chunks",
  "token_cache",
  "prepared",
]
