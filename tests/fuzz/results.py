"""What an evaluation wrote and a report says, against the definitions."""

import csv
import dataclasses
import json
import re

import pyarrow as pa
import pyarrow.parquet as pq

from fuzz.truth import same
from longctx_jax.evaluation import files


def check(workdir, expected, wrong, *, is_killed=False):
  """Compares results/, documents/ and tokens/ with the facts behind them.

  Args:
    workdir: of the evaluation.
    expected: model -> [(facts, whether there are rows per token)], one of
      which its files must have been made of.
    wrong: called with the kind and the detail of a fault.
    is_killed: a process was killed there. Of a model's two files one may be
      the later, if the program refuses both by name.

  Returns:
    Model -> facts, of the models that have numbers.
  """
  found = {}
  for path in sorted((workdir / "results").glob("*.json")):
    name = path.stem
    try:
      result = json.loads(path.read_text())
    except ValueError as error:
      wrong("a result is half a file", f"{path}: {error}")
      continue
    known = expected.get(name, [])
    if known and (result["reason"] or "").startswith("failed: "):
      continue
    faults = []
    for facts, per_token in reversed(known):
      fault = _fault(workdir, name, result, facts, per_token)
      if not fault:
        found[name] = facts
        break
      faults.append(fault)
    else:
      if is_killed and _is_refused(workdir):
        continue
      kind, detail = faults[0] if faults else ("a result of nothing", path)
      wrong(kind, f"{workdir.name} {name}: {detail}")
  return found


def _is_refused(workdir):
  try:
    files.load_results(workdir)
  except ValueError as error:
    return str(workdir) in str(error)
  return False


def _fault(workdir, name, result, facts, per_token):
  """(kind, detail) of the first number that is not that of the facts."""
  for field, value in facts.result.items():
    if not same(result[field], value):
      return f"result: {field}", f"{result[field]}, and is {value}"
  own = facts.spans is None and facts.model == facts.evaluator
  if result["self_evaluated"] != own:
    return "result: self_evaluated", f"{result['self_evaluated']}, and is {own}"
  if not own and result["n_tokens"] and result["tokens_per_second"] is None:
    return "result: a model ran, and tokens_per_second is null", ""
  path = workdir / "documents" / f"{name}.parquet"
  try:
    rows = {row["doc_id"]: row for row in pq.read_table(path).to_pylist()}
  except (pa.ArrowException, OSError) as error:
    return "documents.parquet is half a file, or none", error
  if rows.keys() != facts.rows.keys():
    return "documents.parquet: documents", f"{[*rows]}, and are {[*facts.rows]}"
  for doc_id, expected in facts.rows.items():
    for field, value in expected.items():
      if not same(rows[doc_id][field], value):
        detail = f"{doc_id}: {rows[doc_id][field]}, and is {value}"
        return f"documents.parquet: {field}", detail
  return _token_fault(workdir / "tokens" / name, facts) if per_token else None


def _token_fault(folder, facts):
  found = {}
  for path in sorted(folder.glob("*.parquet")):
    for row in pq.read_table(path).to_pylist():
      found.setdefault(row["doc_id"], []).append(row)
  expected = {d: row for d, row in facts.rows.items() if row["n_tokens"]}
  if found.keys() != expected.keys():
    detail = f"{sorted(found)}, and are {sorted(expected)}"
    return "tokens: documents", detail
  for doc_id, row in expected.items():
    nll_sum = sum(one["nll_long"] for one in found[doc_id])
    n_keys = sum(one["key"] for one in found[doc_id])
    if not same((nll_sum, n_keys), (row["nll_sum"], row["n_key_tokens"])):
      return "tokens: sums", doc_id
  return None


def check_alike(found, where, wrong):
  """That models beside each other have one corpus and one set of keys."""
  if len({facts.alike() for facts in found.values()}) > 1:
    wrong(f"{where}: unlike results side by side", sorted(found))


def check_table(text, found, wrong):
  """Compares a table as CSV."""
  table = text[text.index("model,") :]
  for row in csv.DictReader(table.strip().splitlines()):
    if row["model"] not in found:
      continue
    result = found[row["model"]].result
    for name in ("longppl", "ppl", "n_key_tokens"):
      value = float(row[name]) if row[name] else None
      if not same(value, result[name]):
        wrong(f"compare: {name}", f"{value}, and is {result[name]}")


def check_sweep(text, found, wrong):
  """Compares each cell of a sweep, as CSV, with an evaluation there."""
  table = text[text.index("short_len,") :]
  for row in csv.DictReader(table.strip().splitlines()):
    if row["model"] not in found:
      continue
    alpha, beta = float(row["alpha"]), float(row["beta"])
    facts = dataclasses.replace(found[row["model"]], alpha=alpha, beta=beta)
    for name in ("longppl", "n_key_tokens"):
      value = float(row[name]) if row[name] else None
      if not same(value, facts.result[name]):
        wrong(f"sweep: {name}", f"{value}, and is {facts.result[name]}")


def check_page(text, found, wrong):
  """Compares the key tokens that heat maps show with those of the results."""
  for facts in found.values():
    keys = facts.key_tokens()
    shown = re.findall(r"<h3>(.*?)</h3>.*?([\d,]+) key tokens", text, re.DOTALL)
    for doc_id, count in shown:
      mask = keys[doc_id].key if doc_id in keys else None
      number = 0 if mask is None else int(mask.sum())
      if int(count) != number:
        detail = f"{doc_id}: {count}, and are {number}"
        wrong("html: heat maps of other key tokens than the results", detail)
