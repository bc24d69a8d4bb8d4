"""Tables in four formats, read back where a reader exists."""

import csv
import io

import pytest

from longctx_jax.report import tables

HEADER = ["Model", "PPL", "Notes"]
GROUPS = [
  ("", [["a|b_c", "1.50", "50% & <more>"], ["d", "12.00", ""]]),
  ("Others", [["e", "-", "two\nlines"]]),
  ("Nobody", []),
]


def test_csv_reads_back():
  rows = list(
    csv.reader(io.StringIO(tables.format_table(HEADER, GROUPS, fmt="csv")))
  )
  assert rows == [
    HEADER,
    ["a|b_c", "1.50", "50% & <more>"],
    ["d", "12.00", ""],
    ["e", "-", "two lines"],
  ]


def test_text_columns_align_and_end_without_blanks():
  text = tables.format_table(HEADER, GROUPS, fmt="text")
  assert text == (
    "Model    PPL  Notes\n"
    "-----  -----  ------------\n"
    "a|b_c   1.50  50% & <more>\n"
    "d      12.00\n"
    "\nOthers\n"
    "e          -  two lines\n"
  )


def test_markdown_rows_have_as_many_cells_as_the_header():
  lines = tables.format_table(HEADER, GROUPS, fmt="markdown").splitlines()
  for line in lines:
    assert line.replace(r"\|", "").count("|") == 4, line
  assert lines[1] == "| :-- | --: | :-- |"
  assert lines[2] == r"| a\|b_c | 1.50 | 50% & \<more> |"
  assert lines[4] == "| *Others* | | |"


def test_latex_escapes_every_special_character():
  text = tables.format_table(
    ["x", "y"], [("T_1", [["a&b", r"\%$#_{}~^<>|"]])], fmt="latex"
  )
  assert text.splitlines() == [
    r"\begin{tabular}{ll}",
    r"\toprule",
    r"x & y \\",
    r"\midrule",
    r"\multicolumn{2}{l}{\emph{T\_1}} \\",
    r"a\&b & \textbackslash{}\%\$\#\_\{\}\textasciitilde{}"
    r"\textasciicircum{}\textless{}\textgreater{}\textbar{} \\",
    r"\bottomrule",
    r"\end{tabular}",
  ]


def test_an_unknown_format_names_the_known_ones():
  with pytest.raises(ValueError, match="'html'.*text, markdown, csv, latex"):
    tables.format_table(HEADER, GROUPS, fmt="html")


def test_notes_stand_below_each_a_line_and_escaped():
  notes = ["a|b: 50%", "two\nlines"]
  assert tables.format_notes(notes, fmt="text") == "\na|b: 50%\ntwo lines\n"
  assert r"- a\|b: 50%" in tables.format_notes(notes, fmt="markdown")
  assert r"a\textbar{}b: 50\%" in tables.format_notes(notes, fmt="latex")
