"""What was done with it.

Doors, for other rooms:
  demo: one model against itself, its context cut ever shorter
  controls: what must come out where there is nothing to find
  govreport: the paper's evaluation set
  pg19: the paper's training set
  slice_check: whether published slices fit a corpus
  retrieval.experiment: does LongCE learn retrieval faster than CE?
"""

__all__ = [
  "demo",
  "controls",
  "govreport",
  "pg19",
  "slice_check",
  "retrieval.experiment",
]
