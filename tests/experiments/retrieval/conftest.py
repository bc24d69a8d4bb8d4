import pytest
from support.retrieval_config import make_config


@pytest.fixture(scope="module")
def small():
  """All arms at sizes that compile fast and learn nothing."""
  return make_config(
    seeds=(3,),
    data__seq_len=64,
    data__definitions=3,
    model__embed_dim=16,
    model__num_layers=1,
    model__num_heads=2,
    model__mlp_dim=24,
    loss__short_len=16,
    loss__stride=8,
    optimizer__steps=4,
    optimizer__warmup_steps=1,
    pretraining__seq_len=60,
    pretraining__batch_size=4,
    pretraining__warmup_steps=1,
    pretraining__check_every=2,
    pretraining__enough=-1.0,
    evaluator__steps=2,
    blind__pretraining_steps=2,
    eval__steps=(2, 4),
    eval__headline_step=2,
    eval__documents=8,
    eval__questions=3,
  )
