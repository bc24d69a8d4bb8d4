"""From summed losses to reported numbers: NumPy, float64, on the host.

Sums and counts travel through every pass; the one division is made here.
Losses are negative log-probabilities in nats. Every per-token array obeys the
alignment law: `ids` has length n, an array over targets has length n - 1, and
its index t speaks of id t + 1.
"""

import numpy as np
from jaxtyping import Float, Int

_MAX_MEAN_NLL = float(np.log(np.finfo(np.float64).max))


def perplexity(nll_sum: float, count: int) -> float | None:
  """Perplexity, exp(nll_sum / count).

  None where there is no such finite number: for count 0, and for a mean above
  709.78 nats, whose exponential no float64 (and so no JSON file) can hold. The
  sum and the count are always reported beside it, so nothing is lost.

  Raises:
    ValueError: the sum is NaN, or the count is negative.

  >>> perplexity(6.0, 3) == float(np.exp(2.0))
  True
  >>> perplexity(0.0, 0) is None
  True
  """
  if np.isnan(nll_sum) or count < 0:
    raise ValueError(
      f"nll_sum {nll_sum} over {count} tokens is no loss: the log-probs hold "
      "NaN, or the count is negative. Check the pass that made them."
    )
  if count == 0 or nll_sum / count > _MAX_MEAN_NLL:
    return None
  return float(np.exp(nll_sum / count))


def bits_per_byte(nll_sum: float, n_bytes: int) -> float | None:
  """Loss per UTF-8 byte of the scored text, in bits; None for 0 bytes.

  Comparable between tokenizers: nll_sum / (n_bytes ln 2), the base-2 logarithm
  of the perplexity per byte.

  >>> round(bits_per_byte(np.log(2) * 12, 8), 6)
  1.5
  """
  return float(nll_sum / (n_bytes * np.log(2))) if n_bytes else None


def pooled_perplexity(
  nll_sums: Float[np.ndarray, "D"], counts: Int[np.ndarray, "D"]
) -> float | None:
  """Corpus perplexity with every token equal: exp(sum nll / sum count).

  LongPPL of a corpus is this over key tokens (paper section 1.4): documents
  without one add nothing to either sum.

  >>> ppl = pooled_perplexity(np.array([1.0, 27.0]), np.array([1, 9]))
  >>> round(float(np.log(ppl)), 6)
  2.8
  """
  return perplexity(
    float(np.sum(nll_sums, dtype=np.float64)), int(np.sum(counts))
  )


def strict_ppl(
  nll_sums: Float[np.ndarray, "D"], n_tokens: Int[np.ndarray, "D"]
) -> float | None:
  """PPL of protocol `strict`: pooled over the targets that were scored."""
  return pooled_perplexity(nll_sums, n_tokens)


def paper_ppl(
  nll_sums: Float[np.ndarray, "D"], n_tokens: Int[np.ndarray, "D"]
) -> float | None:
  """PPL of protocol `paper`: as the reference code averages (section 1.4).

  A document's mean over its n - 1 targets is weighted by its n ids,
  exp(sum_d n_d mean_d / sum_d n_d); a bias of the order of 1 / n against
  `strict_ppl`. Documents without a target are left out.

  Args:
    nll_sums: [D], nats.
    n_tokens: [D], scored targets of each document, that is ids - 1.

  >>> ppl = paper_ppl(np.array([1.0, 27.0]), np.array([1, 9]))
  >>> round(float(np.log(ppl)), 6)  # (2 * 1 + 10 * 3) / 12
  2.666667
  """
  return perplexity(*map(np.sum, paper_weighted(nll_sums, n_tokens)))


def paper_weighted(
  nll_sums: Float[np.ndarray, "D"], n_tokens: Int[np.ndarray, "D"]
) -> tuple[Float[np.ndarray, "D"], Int[np.ndarray, "D"]]:
  """Sums and counts whose pooled perplexity is `paper_ppl`.

  Returns:
    (n_d mean_d, n_d), both 0 where a document has no target.
  """
  nll_sums = np.asarray(nll_sums, np.float64)
  n_tokens = np.asarray(n_tokens, np.int64)
  n_ids = np.where(n_tokens > 0, n_tokens + 1, 0)
  return nll_sums * n_ids / np.maximum(n_tokens, 1), n_ids


def top_documents_share(
  counts: Int[np.ndarray, "D"], top: int = 5
) -> float | None:
  """Share of all key tokens in the `top` documents that hold most."""
  counts = np.asarray(counts)
  total = counts.sum()
  return float(np.sort(counts)[::-1][:top].sum() / total) if total else None
