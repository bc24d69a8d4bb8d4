"""The paper's definitions: arrays in, arrays out.

Doors, for other rooms:
  windows: what is scored when, and from how much context
  contrast: LSD, key tokens, LongCE weights
  spans: key tokens as characters, projected onto other tokens
  perplexity: from summed losses to perplexities
  intervals: key regions and 95 % intervals
  document_scores: how much one document needs a long context
"""

__all__ = [
  "windows",
  "contrast",
  "spans",
  "perplexity",
  "intervals",
  "document_scores",
]
