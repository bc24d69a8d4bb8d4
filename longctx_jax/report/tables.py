"""A table of strings as plain text, Markdown, CSV or LaTeX."""

import csv
import io
import re
from collections.abc import Sequence

_Groups = list[tuple[str, list[list[str]]]]
_LATEX = str.maketrans(
  {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    **{char: "\\" + char for char in "&%$#_{}"},
  }
)


def format_table(
  header: Sequence[str],
  groups: Sequence[tuple[str, Sequence[Sequence[str]]]],
  *,
  fmt: str,
) -> str:
  """Lays out titled groups of rows under one header, ending in a newline.

  The first and the last column are aligned left, those between right. A
  group's title stands on a line of its own above its rows, if it has one; CSV
  has no place for titles and leaves them out. LaTeX needs `booktabs`.

  Args:
    header: one name for each column.
    groups: (title, rows); a row has one cell for each column.
    fmt: text, markdown, csv or latex; cells are escaped for it.

  Raises:
    ValueError: `fmt` is none of these.
  """
  if fmt not in _WRITERS:
    raise ValueError(f"format {fmt!r}: choose one of {', '.join(_WRITERS)}.")
  groups = [
    (title, [[" ".join(cell.split()) for cell in row] for row in rows])
    for title, rows in groups
    if rows
  ]
  return _WRITERS[fmt](list(header), groups)


def format_notes(notes: Sequence[str], *, fmt: str) -> str:
  """Sentences below a table, each a paragraph; as `format_table`."""
  lines = []
  for note in notes:
    note = " ".join(note.split())
    if fmt == "latex":
      note = rf"\par\footnotesize {note.translate(_LATEX)}"
    elif fmt == "markdown":
      note = f"- {_escaped(note)}"
    lines.append(f"{note}\n")
  return "".join(["\n", *lines])


def _text(header: list[str], groups: _Groups) -> str:
  rows = [header, *(row for _, group in groups for row in group)]
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

  def line(row: Sequence[str]) -> str:
    first, *middle, last = row
    cells = map(str.rjust, middle, widths[1:-1])
    return "  ".join([first.ljust(widths[0]), *cells, last]).rstrip()

  lines = [line(header), line(["-" * width for width in widths])]
  for title, group in groups:
    lines += ["", title] if title else []
    lines += map(line, group)
  return "\n".join(lines) + "\n"


def _escaped(cell: str) -> str:
  return re.sub(r"[|*`<\\]", r"\\\g<0>", cell)


def _markdown(header: list[str], groups: _Groups) -> str:
  def line(row: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, row))} |"

  rules = [":--", *["--:"] * (len(header) - 2), ":--"]
  lines = [line(header), line(rules)]
  for title, group in groups:
    lines += [f"| *{title}* |" + " |" * (len(header) - 1)] if title else []
    lines += map(line, group)
  return "\n".join(lines) + "\n"


def _csv(header: list[str], groups: _Groups) -> str:
  stream = io.StringIO()
  writer = csv.writer(stream, lineterminator="\n")
  writer.writerow(header)
  for _, group in groups:
    writer.writerows(group)
  return stream.getvalue()


def _latex(header: list[str], groups: _Groups) -> str:
  def line(row: Sequence[str]) -> str:
    return " & ".join(cell.translate(_LATEX) for cell in row) + r" \\"

  columns = "l" + "r" * (len(header) - 2) + "l"
  lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", line(header)]
  for title, group in groups:
    lines.append(r"\midrule")
    if title:
      span = rf"\multicolumn{{{len(header)}}}{{l}}"
      lines.append(rf"{span}{{\emph{{{title.translate(_LATEX)}}}}} \\")
    lines += map(line, group)
  return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


_WRITERS = {
  "text": _text,
  "markdown": _markdown,
  "csv": _csv,
  "latex": _latex,
}
FORMATS = tuple(_WRITERS)
