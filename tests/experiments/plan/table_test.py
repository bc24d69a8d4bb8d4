"""The table of docs/tpu.md is what the command prints."""

import re

import pytest
from support.command_line import ROOT

from longctx_jax.experiments.plan import run, search, table, workloads
from longctx_jax.runtime import chips

PAGE = (ROOT / "docs" / "tpu.md").read_text()
ROWS = re.findall(r"^\| `(.*)$", PAGE, re.M)
# Their models are made on the spot, or named by whoever runs them.
WITHOUT_A_MODEL = {"tiny", "retrieval"}


def read(line):
  """(config, variant, model, slice, all cells) of a row."""
  cells = [cell.strip() for cell in f"`{line}".strip(" |").split(" | ")]
  name, model = re.fullmatch(r"`([\w:]+)` ?(.*)", cells[0]).groups()
  config, _, variant = name.partition(":")
  return config, variant, model, cells[2], cells


def test_every_shipped_config_is_in_the_table():
  assert table.header() in PAGE
  shipped = {path.stem for path in (ROOT / "configs").glob("*.py")}
  assert {read(line)[0] for line in ROWS} == shipped - WITHOUT_A_MODEL


@pytest.mark.parametrize("line", ROWS, ids=[read(r)[4][0] for r in ROWS])
def test_a_row_is_what_the_command_prints(load_config, line):
  """But for the last column, which takes a compiler."""
  config, variant, model, place, cells = read(line)
  plan = run.make(
    workloads.read(load_config(config, variant), model=model),
    chips.parse(place),
    mfu=0.4,
    compiles=False,
  )
  name = f"{config}.py" + (f":{variant}" if variant else "")
  printed = table.row(plan, name, model)
  assert printed.split(" | ")[:-1] == f"| `{line}".split(" | ")[:-1]
  # What was compiled is within the margin of the model.
  if re.fullmatch(r"[\d.]+", cells[-1]):
    planned, found = float(cells[6].split()[0]), float(cells[-1])
    assert found / search.MARGIN < planned < found * search.MARGIN
