"""The command line: what is loaded when, what is printed, and what each failure ends with."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.cli import app, failure
from headrace.cli.failure import report
from headrace.cli.origins import check_origins
from headrace.kernel import errors
from headrace.kernel.errors import ExitCode, HeadraceError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
COMMAND = [sys.executable, "-m", "headrace.cli"]


def headrace(*arguments: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HEADRACE")}
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=clean | {"PYTHONPATH": str(ROOT)} | environ,
        timeout=60,
        check=False,
    )


class TestStart:
    def test_help_loads_nothing_heavy(self) -> None:
        heavy = [
            "polars",
            "pyarrow",
            "pyiceberg",
            "confluent_kafka",
            "pydantic",
            "yaml",
            "rich",
            "fastapi",
            "boto3",
            "sqlalchemy",
        ]
        probe = f"""
import sys
from headrace.cli.app import run
code = run(["--help"])
loaded = [name for name in {heavy!r} if name in sys.modules]
assert not loaded, loaded
sys.exit(code)
"""
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
        for command in ("run", "plan", "boundary", "archive", "dev", "spec", "demo", "seam", "serve", "state"):
            assert re.search(rf"^  {command} ", done.stdout, re.MULTILINE)

    @pytest.mark.parametrize(
        "command",
        [
            "run",
            "plan",
            "archive",
            "serve",
            "boundary show",
            "boundary set",
            "dev up",
            "dev logs",
            "spec check",
            "state",
        ],
    )
    def test_every_command_has_help(self, command: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert app.run([*command.split(), "--help"]) == ExitCode.OK
        assert f"headrace {command}" in capsys.readouterr().out

    def test_no_arguments_show_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert app.run([]) == ExitCode.OK
        assert "Commands:" in capsys.readouterr().out

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert app.run(["--version"]) == ExitCode.OK
        assert re.fullmatch(r"\d+\.\d+\.\d+\n", capsys.readouterr().out)

    def test_folder_that_hides_a_package_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "operators").mkdir()
        (tmp_path / "operators" / "__init__.py").touch()
        done = headrace("spec", "schema", cwd=tmp_path)
        assert done.returncode == ExitCode.USER
        assert f"found {tmp_path}/operators" in done.stderr
        assert "error[PACKAGE_HIDDEN]: package 'operators' of headrace is hidden" in done.stderr

    def test_our_own_packages_are_not_hidden(self) -> None:
        check_origins()


class TestUsage:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["rum"], "no such command 'rum'"),
            (["run"], "missing argument 'JOB'"),
            (["run", "job.yaml", "--untl", "x"], "no such option: --untl"),
            (["spec"], "missing command"),
        ],
    )
    def test_wrong_usage(self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert app.run(arguments) == ExitCode.USER
        shown = capsys.readouterr().err
        assert shown.startswith(f"error[USAGE]: {message}")
        assert "hint: see headrace" in shown

    def test_an_end_that_is_none(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert app.run(["run", "job.yaml", "--until", "x"]) == ExitCode.USER
        assert capsys.readouterr().err.startswith("error[UNTIL_INVALID]: 'x' is no end of a run")


class TestSpecCommands:
    def test_check(self) -> None:
        done = headrace("spec", "check", "examples/clicks.yaml", "examples/orders.py", cwd=ROOT)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            "examples/clicks.yaml: job clicks-per-minute is well-formed",
            "examples/orders.py: job revenue-by-day is well-formed",
        ]

    def test_check_of_a_bad_job(self, tmp_path: Path) -> None:
        (tmp_path / "job.yaml").write_text("nme: x\n")
        done = headrace("spec", "check", "job.yaml", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (ExitCode.USER, "")
        assert (
            done.stderr == "error[SPEC_INVALID]: job.yaml:1:1: nme: unknown key 'nme'\n  hint: did you mean 'name'?\n"
        )
        assert "Traceback" in headrace("spec", "check", "job.yaml", "--debug", cwd=tmp_path).stderr

    def test_schema_is_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert app.run(["spec", "schema"]) == ExitCode.OK
        assert json.loads(capsys.readouterr().out)["title"] == "Headrace job"

    def test_closed_pipe_is_no_failure(self) -> None:
        reader = f"{' '.join(COMMAND)} spec schema | head -c 10; exit ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", reader], capture_output=True, text=True, cwd=ROOT, check=False)
        assert (done.returncode, done.stderr) == (0, "")


class TestFailures:
    def test_every_error_has_its_documented_exit_code(self) -> None:
        documented = (DOCS / "exit-codes.md").read_text()
        kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, HeadraceError)]
        for kind in kinds:
            assert report(kind("x"), debug=False, stream=io.StringIO()) == kind.exit_code
        for code in ExitCode:
            assert f"| {code.value} |" in documented

    def test_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        error = errors.GapError("offsets are gone", detail="wanted 5, log starts at 9", hint="read a newer snapshot")
        assert failure.report(error, debug=False) == ExitCode.DATA
        assert capsys.readouterr().err == (
            "error[OFFSET_GAP]: offsets are gone\n  detail: wanted 5, log starts at 9\n  hint: read a newer snapshot\n"
        )

    def test_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        failure.report(errors.GapError("gone", context={"partition": 3}), debug=False, as_json=True)
        record = json.loads(capsys.readouterr().err)["error"]
        assert (record["code"], record["context"]) == ("OFFSET_GAP", {"partition": 3})

    def test_unexpected_errors_are_internal_and_short(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert failure.report(RuntimeError("boom"), debug=False) == ExitCode.INTERNAL
        shown = capsys.readouterr().err
        assert shown.startswith("error[INTERNAL]: unexpected RuntimeError\n  detail: boom")
        assert "Traceback" not in shown


SIGNALS = """
import os, sys
from headrace.cli.signals import graceful_stop
from headrace.runtime.observer import StopSignal
stop = StopSignal()
with graceful_stop(stop, lambda: os.write(1, b"told\\n")):
    print("ready", flush=True)
    stop.wait(240)
    if "stubborn" in sys.argv:
        print("finishing", flush=True)
        sys.stdin.readline()
print("stopped", flush=True)
"""


SECONDS = 120.0


class TestSignals:
    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", SIGNALS, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_first_one_stops_gracefully(self, number: signal.Signals) -> None:
        process = self.start()
        process.send_signal(number)
        out, _ = process.communicate(timeout=SECONDS)
        assert (process.returncode, out) == (0, "told\nstopped\n")

    def test_second_interrupt_ends_at_once(self) -> None:
        process = self.start("stubborn")
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert [process.stdout.readline(), process.stdout.readline()] == ["told\n", "finishing\n"]
        process.send_signal(signal.SIGINT)
        _, shown = process.communicate(timeout=SECONDS)
        assert process.returncode == ExitCode.INTERRUPTED
        assert "run the job again to go on from its last checkpoint" in shown

    def test_second_sigterm_does_not_cut_the_stop_short(self) -> None:
        process = self.start("stubborn")
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert [process.stdout.readline(), process.stdout.readline()] == ["told\n", "finishing\n"]
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate("finish\n", timeout=SECONDS)
        assert (process.returncode, out) == (0, "stopped\n")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("--port", "99999"), 2, "error[USAGE]: invalid value for '--port'"),
        (("--store", "foo://x"), 2, "is neither a SQLite file nor PostgreSQL"),
        (("--store", "postgresql://me:secret@127.0.0.1:1/jobs"), 3, "job store"),
    ],
)
def test_a_service_that_cannot_start_says_so_like_every_command(
    arguments: tuple[str, ...], code: int, says: str, tmp_path: Path
) -> None:
    done = headrace("serve", "--port", "0", *arguments, cwd=tmp_path)
    assert done.returncode == code
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert "secret" not in done.stderr


def test_the_job_store_may_be_named_by_the_environment(tmp_path: Path) -> None:
    done = headrace("serve", "--port", "0", cwd=tmp_path, HEADRACE_JOB_STORE="foo://me:secret@x")
    assert done.returncode == 2
    assert "is neither a SQLite file nor PostgreSQL" in done.stderr
    assert "secret" not in done.stderr


def test_missing_job_files_are_missing_whatever_their_names(tmp_path: Path) -> None:
    done = headrace("spec", "check", "job.yml2", cwd=tmp_path)
    assert done.returncode == 2
    assert "error[FILE_NOT_FOUND]" in done.stderr
