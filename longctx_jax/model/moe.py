"""Routed experts: each token goes through a few of a layer's many MLPs.

Tokens are sorted by expert, so that each expert multiplies its own rows alone.
`jax.lax.ragged_dot` does so on TPU; elsewhere XLA turns it into every expert
on every row, and blocks of rows, each of one expert, take its place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int, Num

from longctx_jax.model import int8, sharding
from longctx_jax.model.config import ModelConfig
from longctx_jax.model.int8 import Int8Kernel, Kernel
from longctx_jax.model.layers import ACTIVATIONS, Linear

# Rows of one expert that are multiplied at a time.
_BLOCK = 128


# (rows sorted by their expert, kernels) -> rows.
Product = Callable[[Array, Array], Array]
# Of the projections gate, up and down: [E, D, F], [E, D, F], [E, F, D].
ExpertKernels = tuple[Kernel, Kernel, Kernel]


class Kernels(nnx.Module):
  """One projection of all experts, kernel [E, in, out]."""

  def __init__(self, shape: tuple[int, int, int], *, dtype: DTypeLike):
    self.kernel = nnx.Param(jnp.zeros(shape, dtype))


class Experts(nnx.Module):
  """sum_e w_e down_e(act(gate_e(x)) * up_e(x)) over the experts e of a token.

  The weights w are a softmax over all experts, of which the largest
  `experts_per_token` are kept and, with `norm_topk`, divided by their sum.
  """

  def __init__(self, config: ModelConfig, *, dtype: DTypeLike):
    count, dim, mlp_dim = (
      config.num_experts,
      config.embed_dim,
      config.expert_dim,
    )
    kwargs = dict(dtype=dtype)
    self.router = Linear(dim, count, bias=False, **kwargs)
    self.gate_proj = Kernels((count, dim, mlp_dim), **kwargs)
    self.up_proj = Kernels((count, dim, mlp_dim), **kwargs)
    self.down_proj = Kernels((count, mlp_dim, dim), **kwargs)
    self.config = config

  def __call__(self, x: Float[Array, "B T D"]) -> Float[Array, "B T D"]:
    """Maps each position by itself.

    Under a mesh each shard of the batch routes its own rows, as far as the
    batch divides evenly, and the axis "tensor" splits every expert.
    """
    projections = (self.gate_proj, self.up_proj, self.down_proj)
    kernels = tuple(one.kernel.get_value() for one in projections)
    arguments = (x, self.router.kernel[...], kernels)
    route = functools.partial(_route, config=self.config)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
      return route(*arguments).astype(x.dtype)
    rows = P(sharding.batch_axes(len(x), mesh))
    wide, narrow = P(None, None, "tensor"), P(None, "tensor", None)
    specs = map(int8.like, kernels, (wide, wide, narrow))
    return jax.shard_map(
      lambda *shard: jax.lax.psum(route(*shard), "tensor").astype(x.dtype),
      in_specs=(rows, P(), tuple(specs)),
      out_specs=rows,
      # The loop over blocks does not say over which axes it varies.
      check_vma=False,
    )(*arguments)


def _route(
  x: Float[Array, "B T D"],
  router: Float[Array, "D E"],
  kernels: ExpertKernels,
  config: ModelConfig,
) -> Float[Array, "B T D"]:
  """[B, T, D] -> float32 [B, T, D], a part of the sum where F is split."""
  rows = x.reshape(-1, x.shape[-1])
  count = config.experts_per_token
  logits = jnp.dot(rows, router, preferred_element_type=jnp.float32)
  weights, chosen = jax.lax.top_k(jax.nn.softmax(logits), count)
  if config.norm_topk:
    weights /= weights.sum(-1, keepdims=True)
  chosen = chosen.reshape(-1)
  order = jnp.argsort(chosen)
  run = functools.partial(_run_experts, act=ACTIVATIONS[config.activation])
  out = jax.lax.platform_dependent(
    rows[order // count],
    chosen[order],
    kernels,
    tpu=functools.partial(run, make_product=_ragged_product),
    default=functools.partial(run, make_product=_block_product),
  )
  out = out[jnp.argsort(order)].reshape(-1, count, x.shape[-1])
  return (out * weights[..., None]).sum(1).reshape(x.shape)


def _run_experts(
  rows: Float[Array, "M D"],
  owner: Int[Array, " M"],
  kernels: ExpertKernels,
  *,
  act: Callable[[Array], Array],
  make_product: Callable[[Array, int], Product],
) -> Float[Array, "M D"]:
  """The MLPs on rows [M, D] sorted by their expert, owner [M]."""
  gate, up, down = kernels
  plain = make_product(owner, gate.shape[0])

  def product(rows: Float[Array, "M I"], kernel: Kernel) -> Array:
    if not isinstance(kernel, Int8Kernel):
      return plain(rows, kernel)
    return plain(rows, kernel.values) * kernel.scale[owner]

  hidden = act(product(rows, gate)) * product(rows, up)
  return product(hidden.astype(rows.dtype), down)


def _ragged_product(owner: Int[Array, " M"], num_experts: int) -> Product:
  sizes = jnp.bincount(owner, length=num_experts).astype(jnp.int32)

  def product(
    rows: Float[Array, "M I"], kernels: Num[Array, "E I O"]
  ) -> Float[Array, "M O"]:
    return jax.lax.ragged_dot(
      rows,
      kernels.astype(rows.dtype),
      group_sizes=sizes,
      preferred_element_type=jnp.float32,
    )

  return product


def _block_product(owner: Int[Array, " M"], num_experts: int) -> Product:
  """The same by blocks: an expert's rows begin a block, the rest is padding."""
  count = owner.size
  size = min(_BLOCK, count)
  num_blocks = min(count, count // size + num_experts)
  rows_of = jnp.bincount(owner, length=num_experts)
  blocks_of = -(-rows_of // size)
  last_block = jnp.cumsum(blocks_of)
  first_row = jnp.cumsum(rows_of) - rows_of
  within = jnp.arange(count) - first_row[owner]
  slots = (last_block - blocks_of)[owner] * size + within
  expert = jnp.searchsorted(last_block, jnp.arange(num_blocks), side="right")

  def product(
    rows: Float[Array, "M I"], kernels: Num[Array, "E I O"]
  ) -> Float[Array, "M O"]:
    padded = jnp.zeros((num_blocks * size, rows.shape[-1]), rows.dtype)
    blocks = padded.at[slots].set(rows).reshape(num_blocks, size, -1)
    out = _multiply(blocks, kernels, expert, last_block[-1])
    return out.reshape(num_blocks * size, -1)[slots]

  return product


def _take(x: Array, i: int | Int[Array, ""]) -> Array:
  return jax.lax.dynamic_index_in_dim(x, i, keepdims=False)


def _put(x: Array, part: Array, i: int | Int[Array, ""]) -> Array:
  return jax.lax.dynamic_update_index_in_dim(x, part, i, 0)


def _dot(
  a: Float[Array, "i j"],
  b: Float[Array, "k l"],
  contract: tuple[tuple[int, ...], tuple[int, ...]],
) -> Float[Array, "m n"]:
  return jax.lax.dot_general(
    a, b, (contract, ((), ())), preferred_element_type=jnp.float32
  )


@jax.custom_vjp
def _multiply(
  blocks: Float[Array, "b R I"],
  kernels: Num[Array, "E I O"],
  expert: Int[Array, " b"],
  used: Int[Array, ""],
) -> Float[Array, "b R O"]:
  """blocks[i] @ kernels[expert[i]] for i < used, else 0; float32."""

  def step(i: Int[Array, ""], out: Float[Array, "b R O"]) -> Array:
    kernel = _take(kernels, _take(expert, i)).astype(blocks.dtype)
    return _put(out, _dot(_take(blocks, i), kernel, ((1,), (0,))), i)

  shape = (*blocks.shape[:2], kernels.shape[-1])
  return jax.lax.fori_loop(0, used, step, jnp.zeros(shape))


def _multiply_forward(
  blocks: Float[Array, "b R I"],
  kernels: Float[Array, "E I O"],
  expert: Int[Array, " b"],
  used: Int[Array, ""],
) -> tuple[Float[Array, "b R O"], tuple[Array, ...]]:
  saved = blocks, kernels, expert, used
  return _multiply(*saved), saved


def _multiply_backward(
  saved: tuple[Array, ...], d_out: Float[Array, "b R O"]
) -> tuple[Float[Array, "b R I"], Float[Array, "E I O"], None, None]:
  blocks, kernels, expert, used = saved

  def step(
    i: Int[Array, ""], carry: tuple[Array, Array]
  ) -> tuple[Array, Array]:
    d_blocks, d_kernels = carry
    owner, d = _take(expert, i), _take(d_out, i)
    d_block = _dot(d, _take(kernels, owner).astype(d.dtype), ((1,), (1,)))
    d_kernel = _dot(_take(blocks, i).astype(d.dtype), d, ((0,), (0,)))
    # In place: the kernels' gradient is never copied.
    d_kernels = _put(d_kernels, _take(d_kernels, owner) + d_kernel, owner)
    return _put(d_blocks, d_block, i), d_kernels

  d_blocks, d_kernels = jax.lax.fori_loop(
    0, used, step, (jnp.zeros(blocks.shape), jnp.zeros(kernels.shape))
  )
  return (
    d_blocks.astype(blocks.dtype),
    d_kernels.astype(kernels.dtype),
    None,
    None,
  )


_multiply.defvjp(_multiply_forward, _multiply_backward)
