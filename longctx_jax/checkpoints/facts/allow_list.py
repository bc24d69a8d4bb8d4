"""Which fields of a config.json may stand there unread."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

# Cannot change a forward pass without dropout.
HARMLESS = {
  "architectures",
  "attention_dropout",
  "attn_implementation",
  "auto_map",
  "bos_token_id",
  "chunk_size_feed_forward",
  "dtype",
  "eos_token_id",
  "finetuning_task",
  "id2label",
  "initializer_range",
  "is_decoder",
  "is_llama_config",
  "keys_to_ignore_at_inference",
  "label2id",
  "max_length",
  "max_sequence_length",
  "model_max_length",
  "output_attentions",
  "output_hidden_states",
  "pad_token_id",
  "pretraining_tp",
  "return_dict",
  "tokenizer_class",
  "torch_dtype",
  "transformers.js_config",
  "transformers_version",
  "unk_token_id",
  "unsloth_fixed",
  "unsloth_version",
  "use_cache",
}


# How to generate, which old checkpoints state beside the facts.
_GENERATION = {
  "bad_words_ids",
  "diversity_penalty",
  "do_sample",
  "early_stopping",
  "encoder_no_repeat_ngram_size",
  "length_penalty",
  "min_length",
  "no_repeat_ngram_size",
  "num_beam_groups",
  "num_beams",
  "num_return_sequences",
  "output_scores",
  "repetition_penalty",
  "return_dict_in_generate",
  "temperature",
  "tf_legacy_loss",
  "top_k",
  "top_p",
  "typical_p",
}
HARMLESS |= _GENERATION
# What changes nothing with this value, and might with any other.
NEUTRAL = {
  "add_cross_attention": False,
  "attention_bias": False,
  "is_causal": True,
  "is_encoder_decoder": False,
  "lm_head_bias": False,
  "mlp_bias": False,
  "pruned_heads": {},
  "qkv_bias": False,
  "remove_invalid_values": False,
  "rope_interleaved": False,
  "tie_encoder_decoder": False,
  "torchscript": False,
  "use_bfloat16": False,
  "use_bidirectional_attention": False,
  "use_mrope": False,
  "use_sliding_window": False,
}


def refuse_unknown(
  fields: Mapping[str, Any],
  known: Collection[str],
  neutral: Mapping[str, Any],
) -> None:
  """Raises for fields that could change the numbers, whatever their value.

  Args:
    fields: of a config.json; null is as absent.
    known: fields that are read, or harmless.
    neutral: field -> the one value that changes nothing, beside `NEUTRAL`.

  Raises:
    ValueError: naming the fields that are not understood, and their values.
  """
  neutral = NEUTRAL | neutral
  unknown = sorted(
    name
    for name, value in fields.items()
    if name not in known
    and not name.startswith("_")
    and value is not None
    and not (name in neutral and value == neutral[name])
  )
  if unknown:
    raise ValueError(
      "fields that are not understood and could change the numbers: "
      f"{', '.join(f'{name}={fields[name]!r}' for name in unknown)}"
    )
