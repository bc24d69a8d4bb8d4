"""What was done with it.

Doors, for other rooms:
  demo: one model against itself, its context cut ever shorter
  controls: what must come out where there is nothing to find
  rounding: an evaluator in int8 beside itself
  govreport: the paper's evaluation set
  slice_check: whether published slices fit a corpus
  retrieval.experiment: does LongCE learn retrieval faster than CE?
"""

__all__ = [
  "demo",
  "controls",
  "rounding",
  "govreport",
  "slice_check",
  "retrieval.experiment",
]
