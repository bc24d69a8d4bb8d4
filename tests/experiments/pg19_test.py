"""PG-19 from a stand-in hub, killed on its way, and read by the config."""

import io
import json
import re
import types

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.command_line import ROOT, Killed, run
from support.hub_server import COMMIT, Repository, serving

from longctx_jax.experiments import pg19
from longctx_jax.runtime import files
from longctx_jax.text import corpus, prepared

PREPARE = ["scripts/data.py", "pg19"]
# An odd number of files and of books in each; whitespace around the texts.
BOOKS = {"train": [[11, 12, 13], [14], [15, 16]], "validation": [[21]],
         "test": [[31, 32]]}  # fmt: skip


def text_of(number):
  return f"Book {number} — a long one. " * number


def parquet(numbers, **changes):
  columns = {
    "short_book_title": [f"T{n}" for n in numbers],
    "publication_date": pa.array([1900 + n for n in numbers], pa.int32()),
    "url": [f"http://www.gutenberg.org/ebooks/{n}" for n in numbers],
    "text": [f"\n\n {text_of(n)}\n" for n in numbers],
  } | changes
  file = io.BytesIO()
  pq.write_table(pa.table(columns), file)
  return file.getvalue()


def shards():
  """data/train-00000-of-00003-abc.parquet, ... as the hub names them."""
  return {
    f"data/{split}-{i:05}-of-{len(parts):05}-a{i}c.parquet": parquet(numbers)
    for split, parts in BOOKS.items()
    for i, numbers in enumerate(parts)
  }


def repository(**options):
  return Repository(shards() | {"README.md": b"a card"}, **options)


def read(split="train"):
  """id -> text, as configs/llama2_7b.py reads them."""
  found = corpus.open_corpus(
    f"tfds:pg19/{split}", text_column="book_text", id_column="book_id"
  )
  return {int(one.doc_id): one.text for one in found}


@pytest.fixture
def home(tmp_path, monkeypatch):
  monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "sets"))
  return tmp_path / "sets"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
  """A preparation that is cut off, killed, and given again and again."""
  folder = tmp_path_factory.mktemp("pg19")
  broken = sorted(shards())[1]
  hub = {"datasets/emozilla/pg19": repository(broken={broken: 20})}
  with serving(hub) as served:
    begun = folder / "sets" / "pg19" / "parquet" / "*.parquet"
    done = run(
      [Killed(PREPARE, str(begun), 1), PREPARE, PREPARE, PREPARE],
      cwd=folder,
      home=folder / "home",
      loopback=True,
      HF_ENDPOINT=served.url,
      TFDS_DATA_DIR=str(folder / "sets"),
    )
  return done, served.asked, folder / "sets"


def test_a_preparation_that_was_killed_goes_on(stopped, monkeypatch):
  done, asked, home = stopped
  assert [one.status for one in done] == [-9, 0, 0, 0], [o.err for o in done]
  monkeypatch.setenv("TFDS_DATA_DIR", str(home))
  expected = {n: text_of(n).strip() for part in BOOKS["train"] for n in part}
  assert read() == expected and list(read()) == list(expected)
  assert set(read("validation")) == {21} and set(read("test")) == {31, 32}
  # What was whole when it was killed is not fetched again.
  (first,) = (path for path in done[0].files)
  name = first.rpartition("/")[2]
  gets = [path for method, path, _ in asked if method == "GET"]
  assert sum(path.endswith(name) for path in gets) == 1
  assert len([p for p in gets if p.endswith(".parquet")]) >= len(shards())


def test_size_and_progress_are_said(stopped):
  done, _, _ = stopped
  total = sum(map(len, shards().values()))
  assert re.search(
    rf"pg19: 5 of 5 files, .* GB, from emozilla/pg19 \({COMMIT[:7]}\)",
    done[0].err,
  )
  left = int(re.search(r"pg19: (\d) of 5 files", done[1].err)[1])
  lines = re.findall(
    r"pg19: \S+\.parquet \| .* GB .* MB/s .* left", done[1].err
  )
  assert left < 5 and len(lines) == left and total > 0
  assert "pg19 is prepared already" in done[2].err


def test_the_command_ends_with_the_next_one(stopped):
  for one in stopped[0][1:]:
    assert "6 books" in one.out
    assert "next: python scripts/train.py --config configs/llama2_7b" in one.out


def test_nothing_that_is_not_whole_is_read(home):
  with pytest.raises(FileNotFoundError, match="data.py pg19` does it once"):
    read()
  prepared.folder("pg19").mkdir(parents=True)
  (prepared.folder("pg19") / "train-0.parquet").write_bytes(parquet([1]))
  with pytest.raises(FileNotFoundError, match="in part .*pg19` goes on with"):
    read()


def stand_in(monkeypatch, content, commit=COMMIT):
  """The hub's answers, without a hub; returns what is downloaded."""
  taken = []

  def download(repository, name, *, revision, folder):
    taken.append((name, revision))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name.replace("/", "_")
    path.write_bytes(content[name])
    return path

  sizes = {name: len(data) for name, data in content.items()}
  monkeypatch.setattr(pg19.hub, "list_data", lambda _: (commit, sizes))
  monkeypatch.setattr(pg19.hub, "download", download)
  return taken


def test_what_goes_on_is_what_was_begun(home, monkeypatch):
  """A hub that is newer by then does not mix its books with the old ones."""
  content = shards()
  stand_in(monkeypatch, content)
  seen = []

  def stop(source, target, write=pg19._rewrite):
    if seen:
      raise KeyboardInterrupt
    seen.append(target.name)
    write(source, target)

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(pg19, "_rewrite", stop)
    pg19.prepare(way="hub")
  taken = stand_in(monkeypatch, content, commit="d" * 40)
  assert pg19.prepare() == 6
  assert {revision for _, revision in taken} == {COMMIT}
  assert seen[0] not in {name.rpartition("/")[2] for name, _ in taken}
  manifest = json.loads((prepared.folder("pg19") / "manifest.json").read_text())
  assert manifest["revision"] == COMMIT
  assert manifest["data_set"] == "emozilla/pg19"
  # Nothing of what was downloaded stays.
  assert not [p for p in prepared.folder("pg19").rglob("data_*")]


@pytest.mark.parametrize(
  ("content", "message"),
  [
    ({"README.md": b""}, "holds no train-.*README.md"),
    ({"data/train-0.parquet": b"junk"}, "train-0.parquet is damaged"),
    ({"data/train-0.parquet": parquet([])}, "holds no book"),
    (
      {"data/train-0.parquet": parquet([1, 2], url=["a/b/7", "a/b"])},
      "'a/b' ends in no number of a book",
    ),
  ],
)
def test_files_of_another_kind_are_refused(home, monkeypatch, content, message):
  stand_in(monkeypatch, content)
  with pytest.raises(ValueError, match=message):
    pg19.prepare()
  assert not prepared.is_whole("pg19")


def test_a_missing_column_is_named(home, monkeypatch):
  file = io.BytesIO()
  pq.write_table(pa.table({"text": ["x"]}), file)
  stand_in(monkeypatch, {"data/train-0.parquet": file.getvalue()})
  with pytest.raises(ValueError, match="publication_date, short_book_title"):
    pg19.prepare()


def test_a_small_disk_is_refused_before_a_download(home, monkeypatch):
  taken = stand_in(monkeypatch, {"data/train-0.parquet": bytes(10**9)})
  monkeypatch.setattr(files, "disk_of", lambda path: (path, 1.9e9))
  with pytest.raises(OSError, match=r"2\.0 GB more .* 1\.9 GB free.*TFDS_DATA"):
    pg19.prepare()
  assert not taken


@pytest.fixture
def tensorflow(monkeypatch):
  """As if TensorFlow were here; yields what is run and how that ends."""
  ended = types.SimpleNamespace(returncode=0, ran=[])
  monkeypatch.setattr(pg19.importlib.util, "find_spec", lambda name: name)

  def process(command, check):
    ended.ran.append(command)
    return ended

  monkeypatch.setattr(pg19.subprocess, "run", process)
  return ended


def test_tensorflow_prepares_in_a_process_of_its_own(
  home, monkeypatch, tensorflow
):
  opened = iter([FileNotFoundError, types.SimpleNamespace(count=9)])

  def open_corpus():
    found = next(opened)
    if found is FileNotFoundError:
      raise found
    return found

  monkeypatch.setattr(pg19, "_open", open_corpus)
  assert pg19.prepare() == 9
  (command,) = tensorflow.ran
  assert command[-1] == str(home) and "tfds.builder('pg19'" in command[2]
  compile(command[2], "prepare", "exec")


def test_where_tensorflow_fails_the_hub_has_the_books(
  home, monkeypatch, tensorflow
):
  tensorflow.returncode = 1
  stand_in(monkeypatch, shards())
  with pytest.raises(ValueError, match="could not prepare .*--source hub"):
    pg19.prepare(way="tfds")
  assert pg19.prepare() == 6 and len(tensorflow.ran) == 2


def test_a_way_that_can_not_be_is_refused(home, monkeypatch):
  with pytest.raises(ValueError, match="'tape' is not one of 'tfds', 'hub'"):
    pg19.prepare(way="tape")
  monkeypatch.setattr(pg19.importlib.util, "find_spec", lambda name: None)
  with pytest.raises(ValueError, match="pip install tensorflow.*--source hub"):
    pg19.prepare(way="tfds")


def test_the_config_reads_what_is_prepared(home, monkeypatch):
  stand_in(monkeypatch, shards())
  pg19.prepare()
  text = (ROOT / "configs" / "llama2_7b.py").read_text()
  for name in ("tfds:pg19/train", '"book_text"', '"book_id"'):
    assert name in text
  with pytest.raises(ValueError, match="rows are taken by row_range"):
    read("train[:3]")
  with pytest.raises(ValueError, match="no split 'dev'; there are test, train"):
    read("dev")
