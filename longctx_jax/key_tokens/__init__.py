"""What an evaluator found, in memory and on disk; no JAX.

Doors, for other rooms:
  manifest: how key tokens were made
  record: key tokens of one document, at their thresholds
  store: a folder of them: resumable and checked
  slices: the slice files that the reference published

Inside:
  parts: the Parquet files of a store
"""

__all__ = ["manifest", "record", "store", "slices"]
