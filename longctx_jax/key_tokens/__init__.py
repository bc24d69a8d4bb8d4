"""What an evaluator found, in memory and on disk; no JAX.

Doors, for other rooms:
  manifest: how key tokens were made
  record: key tokens of one document, at their thresholds
  store: a folder of them, to be read
  slices: the slice files that the reference published
  span_file: spans that were found elsewhere
  writer: writes one, also by several processes at once
  merging: several stores into one
  selection: the documents of a corpus with the highest scores
  summary: what a store holds, in numbers
  card: the README.md beside a store

Inside:
  columns: what each column is
  folder: where its files lie
  parts: the Parquet files of a store
"""

__all__ = [
  "manifest",
  "record",
  "store",
  "slices",
  "span_file",
  "writer",
  "merging",
  "selection",
  "summary",
  "card",
]
