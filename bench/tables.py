"""What the comparisons print: every value, medians, ratios and their aims."""

from __future__ import annotations

import statistics
from typing import Any

import against

STOCK, OURS, UNLOCKED = "reference", "ours", "reference, MKL unlocked"
BFLOAT16 = ", bfloat16"
# Of the reference with every kernel that it has.
_STEP_AIMS = {"CE": 1.2, "LongCE": 1.3}
_VALUES = {
  "load_s": "loading, CPU s",
  "compile_s": "compilation, CPU s",
  "pass_s": "LongPPL, CPU s",
  "wall_s": "LongPPL, wall s",
  "plain_s": "plain PPL, CPU s",
  "peak_rss_mib": "peak memory, MiB",
}

Results = dict[str, list[dict[str, Any]]]


def median(results: Results, kind: str, value: str) -> float:
  """Median over the pairs."""
  return statistics.median(result[value] for result in results[kind])


def print_values(results: Results) -> None:
  """Prints every value, and the medians."""
  for value, title in _VALUES.items():
    for kind, runs in results.items():
      if value in runs[0]:
        values = "  ".join(f"{run[value]:.2f}" for run in runs)
        print(
          f"{title:<18}  {kind:<{len(UNLOCKED)}}  "
          f"median {median(results, kind, value):.2f}  of  {values}"
        )


def print_ratio(
  title: str, ratio: float, *, at_least: float = 0.0, at_most: float = 0.0
) -> None:
  """Prints a ratio and, where it has an aim, whether that is met."""
  verdict = ""
  if at_least:
    met = ratio >= at_least
    verdict = f"aim: at least {at_least:g}: {'met' if met else 'MISSED'}"
  if at_most:
    met = ratio <= at_most
    verdict = f"aim: at most {at_most:g}: {'met' if met else 'MISSED'}"
  print(f"{title:<44}  {ratio:6.2f}  {verdict}")


def print_ratios(results: Results, n: int) -> None:
  """Prints the ratios of the medians at n ids against their aims."""
  ours = {value: median(results, OURS, value) for value in _VALUES}
  for kind in (STOCK, UNLOCKED):
    if kind in results:
      theirs = median(results, kind, "pass_s")
      print_ratio(f"{kind} / ours, CPU", theirs / ours["pass_s"], at_least=1.5)
      print_ratio(
        "  with our compilation",
        theirs / (ours["pass_s"] + ours["compile_s"]),
      )
  if OURS + BFLOAT16 in results:
    half = median(results, OURS + BFLOAT16, "pass_s")
    print_ratio(
      "bfloat16: reference / ours, CPU",
      median(results, STOCK + BFLOAT16, "pass_s") / half,
      at_least=1.2,
    )
    print_ratio("ours in bfloat16 / in float32, CPU", half / ours["pass_s"])
  print_ratio(
    "our peak memory / the reference's",
    ours["peak_rss_mib"] / median(results, STOCK, "peak_rss_mib"),
    # At shorter documents it is mostly the weights.
    at_most=0.5 if n >= 8000 else 0.0,
  )
  print_ratio(
    "our LongPPL / our plain PPL, CPU",
    ours["pass_s"] / ours["plain_s"],
    at_most=3.5,
  )


def print_agreement(results: Results) -> None:
  """Prints what both sides found."""
  ours, theirs = (results[kind][0] for kind in (OURS, STOCK))
  print(
    f"key tokens: {ours['n_keys']} ours, {theirs['n_keys']} reference; "
    f"PPL differs by {ours['ppl'] / theirs['ppl'] - 1:+.1e}",
    end="",
  )
  if ours["longppl"] and theirs["longppl"]:
    print(f", LongPPL by {ours['longppl'] / theirs['longppl'] - 1:+.1e}")
  else:
    print(f"; LongPPL {ours['longppl']} ours, {theirs['longppl']} reference")


def print_training_ratios(results: Results) -> None:
  """Prints the ratios of the training steps' medians against their aims."""

  def seconds(side, loss, value="pass_s"):
    return median(results, f"{side}, {loss}", value)

  for loss in ("CE", "LongCE"):
    for side in (STOCK, UNLOCKED):
      if f"{side}, {loss}" in results:
        print_ratio(
          f"{loss}: {side} / ours, CPU",
          seconds(side, loss) / seconds(OURS, loss),
          at_least=_STEP_AIMS[loss],
        )
    print_ratio(
      f"{loss}: our peak memory / the reference's",
      seconds(OURS, loss, "peak_rss_mib")
      / seconds(STOCK, loss, "peak_rss_mib"),
    )
  ce = seconds(OURS, "CE")
  print_ratio(
    "our LongCE / our CE, CPU", seconds(OURS, "LongCE") / ce, at_most=1.5
  )
  print_ratio(
    "our stored weights / our CE, CPU",
    seconds(OURS, "stored weights") / ce,
    at_most=1.05,
  )


def print_against(title: str, results: Results, value: str) -> None:
  """Prints the median of the ratios, and all seconds of both versions."""
  ratio, every = against.ratios(results, value)
  print(f"{title:<16}  {ratio:.3f}  of", *(f"{one:.3f}" for one in every))
  for name, runs in results.items():
    print(f"  {name:<8}", *(f"{run[value]:.2f}" for run in runs), "s")


def print_documents(
  ready: dict[str, dict[str, Any]], results: against.Rounds
) -> None:
  """Prints what devices on all cores gain, and whether the bits are the same.

  Args:
    ready: what each way to run said of itself.
    results: its rounds; "all cores" first.
  """
  for work, other, aim in (
    ("8 documents", "one core", 1.9),
    ("8 documents", "one device", 0.0),
    ("1 document", "one device", 1.0),
  ):
    pair = {name: results[name] for name in ("all cores", other)}
    ratio, every = against.ratios(pair, work)
    print_ratio(f"{work}: {other} / all cores", ratio, at_least=aim)
    print("  of", *(f"{one:.2f}" for one in every))
  for name, rounds in results.items():
    for work in rounds[0]:
      values = " ".join(f"{one[work]:.2f}" for one in rounds)
      print(f"  {work}, {name}: {values}")
  same = len({said["log_probs"] for said in ready.values()}) == 1
  print(f"log-probs: {'the same bits' if same else 'NOT THE SAME BITS'}")
