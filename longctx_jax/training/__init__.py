"""LongCE and CE: losses, step, data, the run.

Doors, for other rooms:
  run: trains, or goes on with a training
  preflight: what a run lacks, all at once
  program: the compiled step; the jit is there
  losses: weighted likelihood losses, and which weights targets carry
  step: one pure training step
  losses: weighted likelihood losses
  state: what a run carries from step to step
  optimizer: AdamW, schedule, clipping
  rows: documents packed into rows of a fixed length
  checkpoint: state, data position and settings, by Orbax
  metrics: a line per interval, and TensorBoard events
  config: the settings of the parts

Inside:
  start: where a run begins, or goes on
  workdir: the folder of a run
  inventory: what the data holds, and what is odd about it
  head_sweep: log-probs, weights and gradients of the output head at once
  data: batches of shuffled rows, exact to resume
  stored_weights: weights from a key-token store
  context: another RoPE table for the same weights
  validation: LongPPL on held-out documents
"""

__all__ = [
  "run",
  "preflight",
  "program",
  "losses",
  "step",
  "state",
  "optimizer",
  "rows",
  "checkpoint",
  "metrics",
  "config",
]
