"""The definitions in float64 NumPy: no JAX, batches, buckets or padding.

Written from the paper and from the published form of the Llama decoder, for
the tiny models of `testing`; every oracle of the tests above the kernels.
"""

import functools

import numpy as np

from longctx_jax.model import parameters


@functools.cache
def _parameters(model):
  return {
    name: np.asarray(value[...], np.float64)
    for name, value in parameters.flatten(model.params).items()
  }


def logits(model, ids):
  """Logits [n, V] of a tiny Llama with plain RoPE over ids [n]."""
  config, params = model.config, _parameters(model)
  assert config.rope.rope_type == "default" and not any(config.windows)
  position = np.arange(len(ids), dtype=np.float32)
  exponent = np.arange(0, config.head_dim, 2) / config.head_dim
  frequency = (config.rope.theta**-exponent).astype(np.float32)
  # Float32 radians, as the model's; their cosine is exact.
  angle = (position[:, None] * frequency).astype(np.float64)[:, None]
  future = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)

  def norm(x, name, layer=...):
    rms = np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps)
    return x / rms * params[f"{name}.scale"][layer]

  def heads(x, name, layer):
    x = x @ params[f"layers.attention.{name}.kernel"][layer]
    return x.reshape(len(ids), -1, config.head_dim)

  def rotate(x):
    a, b = np.split(x, 2, axis=-1)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

  x = params["embedding"][ids]
  for layer in range(config.num_layers):
    h = norm(x, "layers.attention_norm", layer)
    q, k = (rotate(heads(h, name, layer)) for name in ("q_proj", "k_proj"))
    k, v = (
      np.repeat(part, config.num_heads // config.num_kv_heads, axis=1)
      for part in (k, heads(h, "v_proj", layer))
    )
    scores = np.einsum("tnh,snh->nts", q, k) / np.sqrt(config.head_dim)
    weights = np.exp(scores + future)
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("nts,snh->tnh", weights, v).reshape(len(ids), -1)
    x = x + out @ params["layers.attention.o_proj.kernel"][layer]
    h = norm(x, "layers.mlp_norm", layer)
    gate, up, down = (
      params[f"layers.mlp.{name}_proj.kernel"][layer]
      for name in ("gate", "up", "down")
    )
    gated = h @ gate
    x = x + (gated / (1 + np.exp(-gated)) * (h @ up)) @ down
  return norm(x, "norm") @ params["embedding"].T


def log_probs(model, ids):
  """log P(ids[t + 1] | ids[0..t]) for every t, [n - 1]."""
  scores = logits(model, ids[:-1])
  scores -= scores.max(-1, keepdims=True)
  scores -= np.log(np.exp(scores).sum(-1, keepdims=True))
  return scores[np.arange(len(ids) - 1), ids[1:]]


def short_log_probs(model, ids, *, short_len, stride, prefix_len=0):
  """The same under the short context (paper, appendix A.1).

  Id i of the text, i = K + k d + r with 0 <= r < d, is predicted from ids
  [k d, i); the prefix stands in front. NaN where i < K.
  """
  prefix, text = ids[:prefix_len], ids[prefix_len:]
  found = np.full(len(ids) - 1, np.nan)
  by_start = {}
  for i in range(short_len, len(text)):
    start = (i - short_len) // stride * stride
    if start not in by_start:
      context = text[start : start + short_len + stride]
      by_start[start] = log_probs(model, np.concatenate([prefix, context]))
    found[prefix_len + i - 1] = by_start[start][prefix_len + i - start - 1]
  return found
