"""The card of a store: a README.md that a data-set hub shows and reads."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re

from absl import logging

from longctx_jax.key_tokens import columns, summary
from longctx_jax.key_tokens import folder as folder_lib
from longctx_jax.key_tokens import parts as parts_lib
from longctx_jax.key_tokens import store as store_lib
from longctx_jax.key_tokens.manifest import Manifest
from longctx_jax.key_tokens.summary import Summary
from longctx_jax.runtime import files

_MARK = "<!-- written by longctx_jax; remove this line to keep your own -->"
_SIZES = (
  (1_000, "n<1K"),
  (10_000, "1K<n<10K"),
  (100_000, "10K<n<100K"),
  (1_000_000, "100K<n<1M"),
  (10_000_000, "1M<n<10M"),
)


def write(workdir: str | os.PathLike) -> None:
  """Writes `workdir`/README.md of the store in it; a person's own stays.

  Raises:
    FileNotFoundError: no store there.
  """
  workdir = pathlib.Path(workdir)
  path, folder = workdir / "README.md", workdir / "key_tokens"
  if path.exists() and _MARK not in path.read_text("utf-8", errors="replace"):
    logging.info("%s is not ours: no card is written", path)
    return
  manifest = store_lib.read_store(workdir).manifest
  read = functools.lru_cache(1)(
    lambda part, group: parts_lib.read_scalars(part, group).to_pylist()
  )
  rows = folder_lib.read_rows(folder).by_id.values()
  in_order = sorted(rows, key=lambda row: (row.path, row.group))
  found = Summary(read(row.path, row.group)[row.row] for row in in_order)
  files.write_text(path, text_of(manifest, found))


def text_of(manifest: Manifest, found: Summary) -> str:
  """The card: YAML for tools, then what a person needs."""
  evaluator = manifest.evaluator
  if re.match(r"[./~]", evaluator):  # Where it lay here tells nobody anything.
    evaluator = pathlib.Path(evaluator).name
  windows, thresholds = manifest.windows, manifest.thresholds
  title = (
    f"Key tokens by {evaluator} (K = {windows.short_len:,}, "
    f"d = {windows.stride:,})"
  )
  size = next((name for n, name in _SIZES if found.total < n), "10M<n<100M")
  reasons = ", ".join(
    f"{n:,} {reason or 'with key tokens'}"
    for reason, n in sorted(found.reasons.items())
  )
  facts = {
    "evaluator": f"{evaluator} {manifest.revision or ''}".strip(),
    "weights": f"{manifest.weight_format}, checksum {manifest.checksum}",
    "protocol": manifest.protocol,
    "windows": f"K = {windows.short_len} ids, d = {windows.stride} ids",
    "thresholds": f"alpha = {thresholds.alpha:g}, beta = {thresholds.beta:g} "
    "nats",
    "ids read of a document": f"{manifest.max_length} ({manifest.over_length})",
    "stored": manifest.detail,
    "documents": f"{found.total:,}: {reasons}",
    "cut": f"{found.n_cut:,} documents, {found.cut_share:.1%} of all targets "
    "unread",
  }
  heads = " | ".join(f"p{p}" for p in summary.PERCENTILES)
  lines = [
    "---",
    f"pretty_name: {json.dumps(title)}",
    "configs:",
    "- config_name: default",
    "  data_files: key_tokens/*.parquet",
    f"size_categories:\n- {size}",
    "tags:\n- longppl\n- long-context\n- data-filtering",
    "---",
    _MARK,
    f"# {title}",
    "",
    "What a long context adds to each token of a corpus, as an evaluator model "
    "sees it (LongPPL, arXiv 2410.23771). A row per document, without its "
    "text: documents match by `doc_id` and `text_sha256`.",
    "",
    "| | |",
    "|---|---|",
    *(f"| {name} | {value} |" for name, value in facts.items()),
    "",
    f"| of a document | {heads} | documents |",
    f"|---|{'---|' * len(summary.PERCENTILES)}---|",
    *(
      f"| {what} | {' | '.join(f'{v:,.4g}' for v in values)} | {count:,} |"
      for what, count, values in found.table()
    ),
    "",
    "## Columns",
    columns.markdown(),
    "",
  ]
  return "\n".join(lines)
