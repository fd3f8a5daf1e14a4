"""``transactions``: options, output and exit codes, against scripted brokers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cyproducer.cli.main import main
from cyproducer.cli.transactions import NOT_KNOWN, OTHER_WAY
from cyproducer.structs import PreparedTransaction, TopicPartition
from tests.cli.conftest import Stdin
from tests.scripted.scripted_broker import (
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    ScriptedCluster,
)
from tests.scripted.scripted_model import Act
from tests.scripted.scripted_transactions import EndTxn, ListTransactions

Capture = pytest.CaptureFixture[str]
Run = Callable[..., tuple[int, str, str]]
PREPARED = PreparedTransaction("tx", 7, 3, 2, False, {TopicPartition("t", 0): (5, 6)})
IDENTITY = ["--id", "tx", "--producer-id", "7", "--epoch", "3"]
DENIED, FENCED, INVALID_STATE = 53, 90, 48


@pytest.fixture
def cluster() -> Iterator[ScriptedCluster]:
    with ScriptedCluster(t=1) as cluster:
        cluster.set_transaction_version(2, 5)
        set_state(cluster, "tx", "Ongoing")
        set_state(cluster, "ty", "Empty")
        yield cluster


@pytest.fixture
def run(cluster: ScriptedCluster, capsys: Capture) -> Run:
    """Runs ``transactions ACTION ...``; returns the exit code, stdout and stderr."""

    def run(action: str, *options: str) -> tuple[int, str, str]:
        status = main(["transactions", action, "-b", cluster.bootstrap_servers[0], *options])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


def set_state(cluster: ScriptedCluster, name: str, state: str, epoch: int = 3) -> None:
    with cluster.changed:
        known = cluster.coordinator.of(name)
        known.state, known.epoch, known.timeout_ms, known.start_time_ms = state, epoch, 60000, 1234
        known.partitions = [("t", 0), ("u", 11)]


def written(path: Path, *prepared: PreparedTransaction) -> str:
    path.write_text("".join(each.to_json() + "\n" for each in prepared))
    return str(path)


# Listing and describing


def test_the_list_is_a_table(run: Run) -> None:
    assert run("list") == (
        0,
        "TRANSACTIONAL ID  PRODUCER ID  STATE\n"
        "tx                7            Ongoing\n"
        "ty                8            Empty\n",
        "",
    )


def test_an_empty_list_has_a_head(run: Run) -> None:
    assert run("list", "--prefix", "z") == (0, "TRANSACTIONAL ID  PRODUCER ID  STATE\n", "")


def test_the_list_as_json(run: Run) -> None:
    status, out, err = run("list", "--json")
    assert (status, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"transactional_id": "tx", "producer_id": 7, "state": "Ongoing"},
        {"transactional_id": "ty", "producer_id": 8, "state": "Empty"},
    ]


def test_the_filters_of_the_list(run: Run, cluster: ScriptedCluster) -> None:
    filters = ["--prefix", "t", "--state", "Ongoing", "--state", "PrepareAbort"]
    filters += ["--producer-id", "7", "--producer-id", "9", "--older-than", "1.5m"]
    assert run("list", *filters, "--json")[:1] == (0,)
    (received,) = cluster.received(LIST_TRANSACTIONS)
    assert received.transaction == ListTransactions(["Ongoing", "PrepareAbort"], [7, 9], 90_000, "t.*")


def test_filters_that_contradict_each_other(run: Run) -> None:
    status, out, err = run("list", "--state", "Empty", "--older-than", "60s")
    assert (status, out) == (2, "")
    assert err.startswith("cyproducer: older_than_s is for open transactions")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "ms"), [("0.25", 250), ("250ms", 250), ("3s", 3000), ("2m", 120_000), ("1h", 3_600_000),
                     ("2d", 172_800_000)],
)  # fmt: skip
def test_durations(run: Run, cluster: ScriptedCluster, text: str, ms: int) -> None:
    run("list", "--older-than", text)
    request = cluster.received(LIST_TRANSACTIONS)[0].transaction
    assert isinstance(request, ListTransactions)
    assert request.duration_ms == ms


@pytest.mark.parametrize("text", ["", "s", "5x", "-1", "nan", "inf", "5 minutes"])
def test_other_durations_are_wrong_usage(run: Run, capsys: Capture, text: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run("list", f"--older-than={text}")
    assert ended.value.code == 2
    assert f"{text!r} is not a duration such as 90, 60s" in capsys.readouterr().err


def test_ids_are_described(run: Run) -> None:
    status, out, err = run("describe", "tx", "ty")
    assert (status, err) == (0, "")
    first, second = out.split("\n\n")
    assert dict(line.split(maxsplit=1) for line in first.splitlines()) == {
        "transactional_id": "tx",
        "state": "Ongoing",
        "producer_id": "7",
        "epoch": "3",
        "timeout_ms": "60000",
        "start_time_ms": "1234",
        "partitions": "t-0, u-11",
        "coordinator": "1",
    }
    assert "ty" in second.splitlines()[0]


def test_ids_are_described_as_json(run: Run) -> None:
    status, out, err = run("describe", "--json", "tx")
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "transactional_id": "tx",
        "state": "Ongoing",
        "producer_id": 7,
        "epoch": 3,
        "timeout_ms": 60000,
        "start_time_ms": 1234,
        "partitions": [["t", 0], ["u", 11]],
        "coordinator": 1,
    }


def test_an_unknown_id_does_not_hide_the_others(run: Run) -> None:
    status, out, err = run("describe", "other", "tx", "--json")
    assert status == NOT_KNOWN
    assert json.loads(out)["transactional_id"] == "tx"
    assert err == "cyproducer: there is no transactional id 'other'\n"


# Ending


@pytest.mark.parametrize(("action", "word"), [("commit", "committed"), ("abort", "aborted")])
def test_a_prepared_transaction_of_a_file(
    run: Run, cluster: ScriptedCluster, tmp_path: Path, action: str, word: str
) -> None:
    file = written(tmp_path / "prepared.json", PREPARED)
    status, out, err = run(action, file)
    assert (status, err) == (0, "")
    assert out == (
        f"TRANSACTIONAL ID  {'OUTCOME':<{len(word)}}  NEXT PRODUCER ID  NEXT EPOCH\n"
        f"tx                {word}  7                 4\n"
    )
    (received,) = cluster.received(END_TXN)
    assert received.transaction == EndTxn("tx", 7, 3, action == "commit")
    status, out, err = run(action, file, "--json")
    assert (status, err) == (0, "")
    assert json.loads(out) == {
        "transactional_id": "tx",
        "outcome": f"{word}_before",
        "committed": action == "commit",
        "next_producer_id": 7,
        "next_epoch": 4,
    }


def test_several_of_standard_input(run: Run, cluster: ScriptedCluster, stdin: Stdin) -> None:
    set_state(cluster, "tz", "Ongoing")
    other = PREPARED._replace(transactional_id="tz", producer_id=9)
    stdin(f"{PREPARED.to_json()}\n\n{other.to_json()}\n".encode())
    status, out, _ = run("commit", "--json")
    assert status == 0
    assert [json.loads(line)["transactional_id"] for line in out.splitlines()] == ["tx", "tz"]


def test_one_that_is_written_over_several_lines(run: Run, stdin: Stdin) -> None:
    stdin(json.dumps(json.loads(PREPARED.to_json()), indent=2).encode())
    assert run("commit", "-")[0] == 0


@pytest.mark.parametrize("action", ["commit", "abort"])
def test_one_of_the_command_line(run: Run, cluster: ScriptedCluster, action: str) -> None:
    assert run(action, *IDENTITY)[0] == 0
    (received,) = cluster.received(END_TXN)
    assert received.transaction == EndTxn("tx", 7, 3, action == "commit")


def test_whoever_is_named_by_its_identity_is_fenced(
    run: Run, cluster: ScriptedCluster, tmp_path: Path
) -> None:
    cluster.set_transaction_version(0, 6)
    assert run("abort", written(tmp_path / "f", PREPARED))[0] == 0
    assert cluster.received(INIT_PRODUCER_ID) == []
    set_state(cluster, "tx", "Ongoing")
    assert run("abort", *IDENTITY)[0] == 0
    assert len(cluster.received(INIT_PRODUCER_ID)) == 1


@pytest.mark.parametrize(
    ("action", "state", "epoch", "code", "status", "outcome"),
    [
        ("commit", "CompleteCommit", 3, 0, 0, "committed before"),
        ("commit", "CompleteAbort", 3, 0, OTHER_WAY, "aborted before"),
        ("abort", "CompleteAbort", 3, 0, 0, "aborted before"),
        ("abort", "CompleteCommit", 3, 0, OTHER_WAY, "committed before"),
        ("commit", "Empty", 3, 0, 0, "empty"),
        ("commit", "Ongoing", 4, FENCED, NOT_KNOWN, "fenced"),
        ("abort", "Empty", 5, 49, NOT_KNOWN, "unknown id"),
    ],
)
def test_the_exit_code_tells_the_outcome(
    run: Run,
    cluster: ScriptedCluster,
    action: str,
    state: str,
    epoch: int,
    code: int,
    status: int,
    outcome: str,
) -> None:
    set_state(cluster, "tx", state, epoch)
    cluster.act(END_TXN, Act(error=code))
    found, out, err = run(action, *IDENTITY)
    assert found == status
    assert outcome in out.splitlines()[1]
    assert err == ""


def test_the_worst_of_several_outcomes_counts(run: Run, cluster: ScriptedCluster, stdin: Stdin) -> None:
    set_state(cluster, "ty", "CompleteAbort")
    lost = PREPARED._replace(transactional_id="ty", producer_id=8)
    unknown = PREPARED._replace(transactional_id="other")
    stdin("\n".join(each.to_json() for each in (PREPARED, unknown, lost)).encode())
    status, out, _ = run("commit")
    assert status == OTHER_WAY
    assert len(out.splitlines()) == 4
    stdin("\n".join(each.to_json() for each in (PREPARED, unknown)).encode())
    assert run("commit")[0] == NOT_KNOWN


def test_open_transactions_with_a_prefix(run: Run, cluster: ScriptedCluster) -> None:
    set_state(cluster, "tz", "Ongoing")
    head = "TRANSACTIONAL ID  PRODUCER ID  EPOCH  OUTCOME\n"
    options = ["--prefix", "t", "--older-than", "60s"]
    assert run("abort", *options, "--dry-run") == (
        0,
        f"{head}tx                7            3      open\ntz                9            3      open\n",
        "",
    )
    assert cluster.received(END_TXN) == []
    assert run("abort", *options) == (
        0,
        f"{head}tx                7            3      aborted\n"
        "tz                9            3      aborted\n",
        "",
    )
    assert [received.transaction for received in cluster.received(LIST_TRANSACTIONS)] == [
        ListTransactions(["Ongoing"], [], 60_000, "t.*")
    ] * 4
    assert run("abort", *options) == (0, head, "")


def test_open_transactions_with_a_prefix_as_json(run: Run, cluster: ScriptedCluster) -> None:
    line = json.loads(run("abort", "--prefix", "tx", "--dry-run", "--json")[1])
    assert (line["outcome"], line["state"], line["start_time_ms"]) == ("open", "Ongoing", 1234)
    line = json.loads(run("abort", "--prefix", "tx", "--json")[1])
    assert (line["outcome"], line["epoch"], line["partitions"]) == ("aborted", 3, [["t", 0], ["u", 11]])


# Failures


def test_a_timeout_is_told_in_one_line(run: Run, cluster: ScriptedCluster) -> None:
    cluster.act(END_TXN, *[Act(error=51)] * 1000)
    status, out, err = run("commit", *IDENTITY, "--timeout", "200ms")
    assert (status, out) == (1, "")
    assert err.startswith("cyproducer: KafkaTimeoutError: commit of transactional id 'tx'")
    assert "within 0.2 s" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "api"),
    [
        (["list"], LIST_TRANSACTIONS),
        (["describe", "tx"], DESCRIBE_TRANSACTIONS),
        (["abort", *IDENTITY], FIND_COORDINATOR),
    ],
)
def test_a_lack_of_rights_is_told_in_one_line(
    run: Run, cluster: ScriptedCluster, arguments: list[str], api: int
) -> None:
    cluster.act(api, Act(error=DENIED))
    status, out, err = run(*arguments)
    assert (status, out) == (1, "")
    assert "TransactionalIdAuthorizationFailedError" in err
    assert "grant this principal Write and Describe" in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_no_broker_is_told_in_one_line() -> None:
    command = [sys.executable, "-m", "cyproducer", "transactions", "list", "-b", "127.0.0.1:1"]
    done = subprocess.run(
        [*command, "--connect-timeout", "1"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("cyproducer: NoBrokersAvailable: no broker within 1 s")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["commit", "--id", "tx"], "--id, --producer-id and --epoch belong together"),
        (["commit", *IDENTITY, "FILE"], "--id, --producer-id and --epoch belong together"),
        (["abort", "--prefix", "t", *IDENTITY], "give no FILE and no --id"),
        (["abort", "--prefix", "t", "FILE"], "give no FILE and no --id"),
        (["abort", "--prefix", ""], "--prefix is empty"),
        (["abort", *IDENTITY, "--dry-run"], "--older-than and --dry-run are for --prefix"),
        (["abort", *IDENTITY, "--older-than", "0"], "--older-than and --dry-run are for --prefix"),
        (["commit", *IDENTITY[:-1], "40000"], "the command line: epoch of a prepared transaction is"),
        (["commit", "no-such-file"], "no-such-file: No such file or directory"),
        (["commit", "."], ".: Is a directory"),
        (["list", "--state", "Open"], "invalid choice: 'Open'"),
        (["describe"], "the following arguments are required: TRANSACTIONAL_ID"),
        ([], "the following arguments are required: ACTION"),
    ],
)
def test_wrong_usage_is_told_before_connecting(arguments: list[str], problem: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["transactions", *arguments[:1], *(["-b", "127.0.0.1:1"] if arguments else []), *arguments[1:]])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "stdin: no prepared transaction"),
        (b'{"transactional_id": "tx"}', "stdin:1: producer_id of a prepared transaction is"),
        (PREPARED.to_json().encode() + b"\nnonsense\n", "stdin:2: Expecting value"),
    ],
)
def test_a_text_that_is_no_transaction_is_wrong_usage(
    stdin: Stdin, capsys: Capture, text: bytes, problem: str
) -> None:
    stdin(text)
    with pytest.raises(SystemExit) as ended:
        main(["transactions", "commit", "-b", "127.0.0.1:1"])
    assert ended.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_closed_standard_input_is_wrong_usage(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit):
        main(["transactions", "commit", "-b", "127.0.0.1:1"])
    assert "standard input is closed" in capsys.readouterr().err


def test_options_come_from_files_as_in_the_other_commands(
    cluster: ScriptedCluster, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "client.properties"
    servers = ",".join(cluster.bootstrap_servers)
    file.write_text(f"bootstrap.servers={servers}\nclient.id=ops\ntransactional.id=mine\n")
    assert main(["transactions", "list", "--command-config", str(file)]) == 0
    assert capsys.readouterr().err == ""
    assert cluster.received(LIST_TRANSACTIONS)[0].header.client_id == "ops"


def test_no_server_is_wrong_usage(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["transactions", "list"])
    assert ended.value.code == 2
    assert "-b/--bootstrap-server is required" in capsys.readouterr().err
