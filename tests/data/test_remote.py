"""Remote stores, sources, models and outputs: in memory://, and on a real S3 server."""

import gzip
import io
import json

import numpy as np
import pytest
from click.testing import CliRunner

from bigscreen import Inline, NystroemSVC, TrainOptions, Tuning, local_cluster
from bigscreen.cli.commands import group
from bigscreen.data.dataset import MANIFEST, Dataset
from bigscreen.errors import InputError
from bigscreen.evaluate.evaluate import evaluate
from bigscreen.files.output import replacing
from bigscreen.files.remote import RemotePath, as_path, is_url
from bigscreen.intake.ingest import ingest
from bigscreen.model.model import Model
from bigscreen.train.run import train

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def place(temporary):
    """A folder in memory://, empty."""
    system = fsspec.filesystem("memory")
    yield RemotePath("memory://bucket")
    if system.exists("/bucket"):
        system.rm("/bucket", recursive=True)


def table(n=400, d=3):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d)).round(4)
    return np.column_stack([X, X[:, 0] + X[:, 1] ** 2 > 0.5])


def put(place, content):
    with replacing(str(place)) as file:
        file.write(content)


def text(rows):
    file = io.StringIO()
    np.savetxt(file, rows, delimiter=",", fmt="%.6g")
    return file.getvalue().encode()


def test_urls_and_paths_are_told_apart():
    assert is_url("s3://bucket/key") and is_url(RemotePath("memory://a"))
    assert not is_url("/tmp/a") and not is_url("a.csv") and not is_url("C:/a")
    assert as_path("/tmp/a").name == "a" and as_path("s3://b/c/d.csv.gz").name == "d.csv.gz"
    one = RemotePath("s3://b/c/train.store")
    assert str(one / "X" / "zarr.json") == "s3://b/c/train.store/X/zarr.json"
    assert str(one.with_name("a")) == "s3://b/c/a" and one.suffix == ".store"
    assert str(one.with_suffix(".wip")) == "s3://b/c/train.wip" and one.absolute() is one
    with pytest.raises(InputError, match="no place that can be reached"):
        RemotePath("nowhere://b/work").exists()
    with pytest.raises(FileNotFoundError):
        RemotePath("memory://bucket/none").read_bytes()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_remote_store_equals_the_local_store(place, tmp_path, sparse):
    rows = table()
    source = "rows.csv.gz"
    content = gzip.compress(text(rows))
    if sparse:
        source = "rows.svm"
        lines = [
            f"{y:g} " + " ".join(f"{j + 1}:{v:g}" for j, v in enumerate(x) if j != k % 3)
            for k, (*x, y) in enumerate(rows.tolist())
        ]
        content = "\n".join(lines).encode() + b"\n"
    put(place / source, content)
    (tmp_path / source).write_bytes(content)
    options = {"holdout": 0.2, "scale": "standard", "layout": "sparse" if sparse else "auto"}
    here = ingest(tmp_path / source, tmp_path / "train.store", **options)
    there = ingest(str(place / source), str(place / "train.store"), **options)
    again = Dataset.open(str(place / "train.store"))
    again.verify()
    for one, other in ((here.store, again), (here.holdout, there.holdout)):
        assert one.fingerprint == other.fingerprint and other.stored_bytes > 4 * 3 * one.n_rows
        some = np.array([0, 5, 3])
        found = [part.toarray() if sparse else part for part in (one.rows(some), other.rows(some))]
        np.testing.assert_array_equal(*found)
    machines = [
        NystroemSVC(n_components=20, random_state=0).fit(store) for store in (here.store, again)
    ]
    assert machines[0].dual_gap_ == machines[1].dual_gap_
    np.testing.assert_array_equal(machines[0].coef_, machines[1].coef_)
    machines[1].model_.save(str(place / "model.bsm"))
    model = Model.load(str(place / "model.bsm"))
    found = [evaluate(model, part)["error"] for part in (here.holdout, there.holdout)]
    assert found[0] == found[1] < 0.4
    like = ingest(str(place / source), tmp_path / "like.store", like=str(place / "model.bsm"))
    assert like.store.preparation.factor is not None
    with pytest.raises(InputError, match="exists already"):
        ingest(str(place / source), str(place / "train.store"))
    assert ingest(str(place / source), str(place / "train.store"), overwrite=True).holdout is None
    assert not list(tmp_path.glob("bigscreen-*"))


def test_rows_that_a_remote_ingest_drops_are_counted(place):
    put(place / "gaps.csv", b"a,y\n1,0\n,1\n3,1\n4,0\n")
    made = ingest(str(place / "gaps.csv"), place / "gaps.store", label="y", drop_missing=True)
    assert made.dropped == 1 and made.store.n_rows == 3


def test_remote_parquet_files_are_ingested(place, tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    rows = table()
    columns = {f"x{j}": rows[:, j] for j in range(3)} | {"label": rows[:, 3].astype(int)}
    pq.write_table(pyarrow.table(columns), tmp_path / "rows.parquet", row_group_size=100)
    put(place / "rows.parquet", (tmp_path / "rows.parquet").read_bytes())
    here = ingest(tmp_path / "rows.parquet", tmp_path / "a.store").store
    there = ingest(str(place / "rows.parquet"), tmp_path / "b.store").store
    assert here.fingerprint == there.fingerprint


def test_errors_of_remote_files_are_one_sentence(place, tmp_path):
    put(place / "rows.csv", text(table()))
    ingest(str(place / "rows.csv"), str(place / "a.store"))
    store = place / "a.store"
    with pytest.raises(InputError, match="there is no dataset memory://bucket/b.store"):
        Dataset.open(str(place / "b.store"))
    with pytest.raises(InputError, match="memory://bucket/b.csv cannot be opened"):
        ingest(str(place / "b.csv"), tmp_path / "b.store")
    chunk = store / "X" / "c" / "0" / "0"
    content = chunk.read_bytes()
    put(chunk, content[:-9] + b"x" + content[-8:])
    opened = Dataset.open(str(store))
    with pytest.raises(InputError, match=r"memory://bucket/a.store/X/c/0/0 is damaged"):
        opened.X(0, 10)
    with pytest.raises(InputError, match="is damaged"):
        opened.rows(np.arange(3))
    put(chunk, content[:-9])
    with pytest.raises(InputError, match="is damaged"):
        Dataset.open(str(store))
    chunk.remove()
    with pytest.raises(InputError, match="is missing"):
        Dataset.open(str(store))
    buffer = io.BytesIO()
    np.save(buffer, table())
    put(place / "rows.npy", buffer.getvalue())
    with pytest.raises(InputError, match="copy it here first"):
        ingest(str(place / "rows.npy"), tmp_path / "c.store")
    put(place / "model.bsm", b"nothing")
    with pytest.raises(InputError, match="is not a bigscreen model"):
        Model.load(str(place / "model.bsm"))


def test_the_command_line_takes_urls(place, tmp_path):
    put(place / "rows.csv", text(table()))

    def run(*words):
        done = CliRunner().invoke(group, [str(word) for word in words])
        return done.exit_code, done.output

    store, model = place / "train.store", place / "model.bsm"
    assert run("ingest", place / "rows.csv", store, "--holdout", ".2")[0] == 0
    assert run("ingest", place / "rows.csv", store)[0] == 2
    code, said = run("fit", store, model, "--landmarks", 20)
    assert code == 2 and "name a folder with --work" in said
    options = "--landmarks", 20, "--work", tmp_path / "work", "--json", place / "fit.json"
    code, said = run("fit", store, model, *options)
    assert code == 0, said
    assert json.loads((place / "fit.json").read_bytes())["relative_gap"] <= 1e-3
    for words in (
        ("info", store),
        ("info", model),
        ("evaluate", model, place / "train-holdout.store"),
        ("predict", model, place / "train-holdout.store", place / "p.csv"),
    ):
        code, said = run(*words)
        assert code == 0, said
    assert len((place / "p.csv").read_bytes().splitlines()) == 81


@pytest.fixture
def s3(monkeypatch, tmp_path):
    """A bucket of an S3 server that runs here."""
    pytest.importorskip("s3fs", reason="no s3fs: pip install 'bigscreen[remote]'")
    moto = pytest.importorskip("moto.server", reason="no S3 server: pip install 'bigscreen[test]'")
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    _host, port = server.get_host_and_port()
    known = {
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    system = fsspec.filesystem("s3")
    system.clear_instance_cache()
    fsspec.filesystem("s3").mkdir("bigscreen-test")
    yield RemotePath("s3://bigscreen-test")
    system.clear_instance_cache()
    server.stop()


@pytest.mark.slow
def test_a_worker_without_a_shared_disk_reads_s3(s3, tmp_path):
    """Rows, model and predictions are in a bucket, so workers need no access to the local disk."""
    put(s3 / "rows.csv", text(table(600)))
    made = ingest(str(s3 / "rows.csv"), str(s3 / "train.store"), holdout=0.2)
    options = TrainOptions(landmarks=20, gamma=0.5, tuning=Tuning(features="recomputed"))
    with local_cluster(1) as fleet:
        model = train(made.store, options, fleet)
        found = evaluate(model, made.holdout, fleet.each)
    certificate = model.provenance["certificates"][0]
    assert certificate["relative_gap"] <= 1e-3 and found["error"] < 0.2
    copy = ingest(str(s3 / "rows.csv"), tmp_path / "train.store", holdout=0.2)
    with Inline(1) as fleet:
        alone = train(copy.store, options, fleet).provenance["certificates"][0]
    assert copy.store.fingerprint == made.store.fingerprint
    assert alone["primal"] == certificate["primal"] and alone["dual"] == certificate["dual"]
    (s3 / "train.store" / MANIFEST).remove()
    with pytest.raises(InputError, match="no manifest.json"):
        Dataset.open(str(s3 / "train.store"))
    with pytest.raises(InputError, match="there is no dataset s3://bigscreen-nobody/a.store"):
        Dataset.open("s3://bigscreen-nobody/a.store")
