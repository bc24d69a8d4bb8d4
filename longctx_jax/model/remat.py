"""What training keeps of a block for the backward pass: policies by name.

Attention costs most to run again where rows are long, and least to keep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name

POLICIES = ("block", "attention", "none")
NAME = "attention"
# Forward kernels that give what is to be kept, and take no name for it: cuDNN.
_KERNELS = ("dot_product_attention_fwd", "dot_product_attention_fwd_wrapper")


def require_policy(policy: str, *, others: tuple[str, ...] = ()) -> None:
  """Raises ValueError for what is neither a policy nor one of the others."""
  if policy not in (*others, *POLICIES):
    raise ValueError(
      f"remat={policy!r} is not one of {', '.join((*others, *POLICIES))}"
    )


def keep(x: jax.Array) -> jax.Array:
  """Marks an output or log-normaliser of attention; the identity."""
  return checkpoint_name(x, NAME)


def apply_policy(block: Callable[..., Any], policy: str) -> Callable[..., Any]:
  """The block of a scan with what its backward pass keeps.

  Args:
    block: pure.
    policy: "block" keeps its inputs and runs all of it again; "attention"
      keeps the output and log-normaliser of its attention too, which is not
      run again; "none" keeps everything.

  Raises:
    ValueError: for another policy.
  """
  require_policy(policy)
  if policy == "none":
    return block
  # Inside a scan nothing can be merged with the second run anyway.
  return jax.checkpoint(
    block,
    prevent_cse=False,
    policy=_is_kept if policy == "attention" else None,
  )


_is_named = jax.checkpoint_policies.save_only_these_names(NAME)


def _is_kept(primitive: Any, *arguments: Any, **params: Any) -> bool:
  named = _is_named(primitive, *arguments, **params)
  return named or primitive.name in _KERNELS
