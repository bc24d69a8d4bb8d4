r"""Does LongCE learn retrieval faster than CE? From scratch, on a laptop.

Purpose: a model that retrieves at 64 tokens is fine-tuned at 256, where its
  retrieval is broken, with CE, LongCE, the same weights shuffled over
  positions, true labels, a weight floor, and an evaluator's stored weights.
Command: python scripts/retrieval.py --workdir runs/retrieval
Hardware: 2 CPU cores, about 5 minutes.
Expected (docs/results.md): exact match at 50 / 100 / 200 steps CE .27 / .67 /
  .92, LongCE .65 / .87 / .94, stored hard weights .70 / .90 / .94; LongCE at
  least 15 points above CE at step 50 in every seed.
"""

from ml_collections import ConfigDict


def get_config(variant: str = "") -> ConfigDict:
  """Returns the config; there are no variants."""
  if variant:
    raise ValueError(f"variant {variant!r}: this config has none")
  config = ConfigDict()
  config.program = "retrieval"  # scripts/retrieval.py, whichever is called
  config.arms = ("ce", "longce", "shuffled", "oracle", "floor", "hard")
  config.seeds = (0, 1, 2)  # of the fine-tuning documents
  config.language = ConfigDict(
    dict(
      names=32, value_words=32, fillers=64, value_len=1, branches=4, seed=1234
    )
  )
  config.data = ConfigDict(
    dict(
      seq_len=256,  # targets of a document (T)
      batch_size=2,  # documents of a step
      definitions=6,  # of a document
      questions=2,  # of a document
    )
  )
  config.model = ConfigDict(
    dict(embed_dim=64, num_layers=2, num_heads=4, mlp_dim=168, theta=10000.0)
  )
  config.loss = ConfigDict(
    dict(
      short_len=64,  # ids (K)
      stride=32,  # ids (d)
      gamma=5.0,  # cap on the weight
      alpha=2.0,  # nats, of the evaluator's key tokens
      beta=-2.0,  # nats
      chunk=256,  # positions whose logits are held at a time
      window_batch=12,  # windows of the short pass at a time
    )
  )
  config.optimizer = ConfigDict(
    dict(
      steps=200,
      learning_rate=1e-3,
      schedule="constant",
      warmup_steps=10,
      b1=0.9,
      b2=0.95,
      weight_decay=0.0,
      clip_norm=1.0,
    )
  )
  config.pretraining = ConfigDict(
    dict(
      seed=0,
      seq_len=64,
      batch_size=32,  # documents, half of them copies
      definitions=(2, 6),
      questions=(6, 9),
      learning_rate=3e-3,
      warmup_steps=50,
      weight_decay=0.01,
      check_every=100,  # steps
      enough=0.97,  # exact match at which it stops
      most_steps=1500,
    )
  )
  config.evaluator = ConfigDict(
    dict(seed=5, theta=500000.0, steps=800)  # LongCE on a wider RoPE base
  )
  # Where LongCE does not help: a model that cannot retrieve at all.
  config.blind = ConfigDict(dict(arms=("ce", "longce"), pretraining_steps=200))
  config.eval = ConfigDict(
    dict(
      steps=(25, 50, 75, 100, 150, 200),
      headline_step=50,
      documents=128,
      questions=4,  # of a document
    )
  )
  return config
