"""A tokenizer of SentencePiece's kind, made by hand."""

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers


def metaspace(*, by_normalizer=False, alphabet="acehst"):
  """SentencePiece's kind of BPE, with byte fallback and a dummy prefix."""
  merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("c", "a"), ("ca", "t")]
  merges = [
    pair for pair in merges if set("".join(pair)) <= set("▁" + alphabet)
  ]
  tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
  tokens += ["▁", *alphabet, *("".join(pair) for pair in merges)]
  tokenizer = tokenizers.Tokenizer(
    models.BPE(
      vocab={token: i for i, token in enumerate(tokens)},
      merges=merges,
      unk_token="<unk>",
      fuse_unk=True,
      byte_fallback=True,
    )
  )
  if by_normalizer:
    tokenizer.normalizer = normalizers.Sequence(
      [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
  else:
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
      prepend_scheme="first", split=False
    )
  tokenizer.decoder = decoders.Sequence(
    [
      decoders.Replace("▁", " "),
      decoders.ByteFallback(),
      decoders.Fuse(),
      decoders.Strip(" ", 1, 0),
    ]
  )
  tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
  return tokenizer
