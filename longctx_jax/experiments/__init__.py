"""What was done with it.

Doors, for other rooms:
  demo: one model against itself, its context cut ever shorter
  controls: what must come out where there is nothing to find
  rounding: an evaluator in int8 beside itself
  govreport: the paper's evaluation set
  pg19: the paper's training set
  slice_check: whether published slices fit a corpus
  retrieval.experiment: does LongCE learn retrieval faster than CE?
  plan.workloads: what a config asks of TPUs, as programs and shapes
  plan.run: whether a slice of them can do it, and in what time
  plan.table: the same for readers
"""

__all__ = [
  "demo",
  "controls",
  "rounding",
  "govreport",
  "pg19",
  "slice_check",
  "retrieval.experiment",
  "plan.workloads",
  "plan.run",
  "plan.table",
]
