"""What processes tell each other: messages in order, facts, the end."""

import pytest
from support import loopback

from longctx_jax.runtime import channel, settings


def test_one_process_is_alone():
  assert (channel.is_open(), channel.index(), channel.count()) == (False, 0, 1)


def test_messages_come_in_order_and_are_forgotten_once_read(monkeypatch):
  become = loopback.pretend(monkeypatch, count=2)
  told, heard = channel.Channel("c"), channel.Channel("c")
  most = 0
  for n in range(2000):
    become(0)
    told.tell({"n": n}, b"\n\x00" * n)
    # The reader is two hundred behind.
    become(1)
    if n >= 200:
      assert heard.hear() == ({"n": n - 200}, b"\n\x00" * (n - 200))
    most = max(most, len(channel.distributed.global_state.client.values))
  assert 512 < most < 800


def test_whoever_waits_hears_that_another_ended(monkeypatch):
  become = loopback.pretend(monkeypatch, count=3)
  become(2)
  channel.end(channel.Ended("process 2 of 3 ended: no space", 2))
  channel.end(channel.Ended("process 1 of 3 ended: because of that", 1))
  for process in (0, 1):
    become(process)
    with pytest.raises(channel.Ended, match="^process 2 .*no space$") as caught:
      channel.wait("never")
    assert caught.value.status == 2
  # The reader is gone: what it did not read is not waited for without end.
  become(0)
  told = channel.Channel("c")
  with pytest.raises(channel.Ended, match="no space"):
    for n in range(1000):
      told.tell({"n": n})


def test_facts_that_differ_are_named_with_their_process(monkeypatch):
  become = loopback.pretend(monkeypatch, count=3)
  facts = [{"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1, "b": 3, "c": "x"}]
  for process in (2, 1, 0):
    become(process)
    channel.put(f"longctx/q/{process}", "{}")
  for process in range(3):
    become(process)
    channel.put(f"longctx/q/{process}", channel.json.dumps(facts[process]))
  become(0)
  found = channel.gather("q", facts[0])
  assert found == facts
  with pytest.raises(settings.OtherSettings) as caught:
    channel.require_alike(found)
  assert (
    "b is 2 in process 0 and 3 in process 2; "
    "c is not there in process 0 and 'x' in process 2"
  ) in str(caught.value)
  channel.require_alike(found[:2])
