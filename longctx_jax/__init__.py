"""How well a language model uses a long context: LongPPL and LongCE in JAX."""

from longctx_jax.checkpoints.loading import load_model as load_model
from longctx_jax.evaluation.results import LongPplResult as LongPplResult
from longctx_jax.key_tokens.record import KeyTokens as KeyTokens
from longctx_jax.key_tokens.store import KeyTokenStore as KeyTokenStore
from longctx_jax.key_tokens.store import read_store as read_store
from longctx_jax.longppl import compute_longppl as compute_longppl
from longctx_jax.longppl import find_key_tokens as find_key_tokens
from longctx_jax.longppl import longppl_from_log_probs as longppl_from_log_probs
from longctx_jax.model.loaded import LoadedModel as LoadedModel
from longctx_jax.report.cell import heatmap as heatmap

__version__ = "0.1.0"
