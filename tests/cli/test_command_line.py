"""The `laplex` command as users type it: quick help, defaults, misspelt words, missing packages, TAB, closed pipes."""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import laplex
from laplex import cli
from laplex.cli import commands, completion, doctor, packages
from laplex.cli.parsing import Formatter, as_command, default_text, did_you_mean
from laplex.density._starts import NAMED_PLACES

ROOT = Path(__file__).parents[2]


def started(*words, code="", **options):
    """The command as its script starts it, in a process of its own."""
    script = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); sys.argv = {['laplex', *words]!r}\n{code}\n"
    script += "from _laplex_command import main\nmain()"
    environment = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", script], text=True, env=environment, **({"capture_output": True} | options)
    )


@pytest.fixture
def command(monkeypatch, capsys):
    """`laplex` with these words, here: exit status, output and errors."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["laplex", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code, *capsys.readouterr()

    return run


# --- quick, before torch is imported ----------------------------------------------------------------------------------

WATCHED = "import atexit; atexit.register(lambda: print([m for m in ('torch', 'numpy') if m in sys.modules]))"
QUICK = {
    "help": (("--help",), 0),
    "no command": ((), 2),
    "version": (("--version",), 0),
    "help of a command": (("fit", "--help"), 0),
    "a mistake": (("docter",), 2),
    "a missing option": (("fit", "folder"), 2),
}


@pytest.mark.parametrize("name", QUICK)
def test_help_and_mistakes_do_not_wait_for_torch(name):
    words, status = QUICK[name]
    done = started(*words, code=WATCHED)
    assert done.returncode == status, done.stderr
    assert done.stdout.endswith("[]\n")
    assert "Traceback" not in done.stderr


def test_a_command_that_runs_has_all_of_laplex():
    done = started("doctor")
    assert done.returncode == 0, done.stderr
    assert "pass" in done.stdout


def test_the_script_of_an_install_is_this_command():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["scripts"] == {"laplex": "_laplex_command:main"}
    assert "src/_laplex_command" in project["tool"]["scikit-build"]["wheel"]["packages"]


def test_what_is_copied_for_quick_help_is_still_the_same():
    assert commands.PLACES == NAMED_PLACES


# --- help -------------------------------------------------------------------------------------------------------------

PARSERS = {"": commands.parser(), **completion.commands_of(commands.parser())}
# Without these options nothing is done, or the data say it.
NOTHING = {"--json", "--files", "--validation", "--hold-out", "--components", "--side", "--channels", "--out"}


@pytest.mark.parametrize("name", PARSERS)
def test_help_states_every_default(name):
    for action in PARSERS[name]._actions:
        shown = Formatter("laplex")._get_help_string(action)
        name = next(iter(action.option_strings), "")
        default = default_text(action)
        if default:
            assert f"{default} if not given" in shown, (name, shown)
            assert shown.count("if not given") == 1
        elif name.startswith("--") and action.nargs != 0 and not action.required:
            assert "if not given" in shown or name in NOTHING, (name, shown)


def test_every_option_of_every_command_has_help():
    for name, parser in PARSERS.items():
        for action in parser._actions:
            assert action.help or isinstance(action, argparse._SubParsersAction), (name, action.option_strings)


def test_defaults_are_shown_as_a_user_writes_them(command):
    shown = " ".join(command("bench", "--help")[1].split())
    for text in ("1 if not given", "--no-phase if not given", "4 if not given", "auto if not given"):
        assert text in shown
    assert "(default:" not in shown


def test_auto_is_the_device_that_there_is(monkeypatch):
    for available, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr("torch.cuda.is_available", lambda available=available: available)
        assert commands.parser().parse_args(["bench"]).device == expected
        assert commands.parser().parse_args(["bench", "--device", "auto"]).device == expected
    assert commands.parser().parse_args(["bench", "--device", "cuda:7"]).device == "cuda:7"


# --- misspelt words ---------------------------------------------------------------------------------------------------

MISSPELT = {
    ("docter",): "did you mean doctor?",
    ("reconstrcut", "--out", "x.png"): "did you mean reconstruct?",
    ("bench", "--rwos", "3"): "laplex bench: error: unrecognized arguments: --rwos 3; did you mean --rows for --rwos?",
    ("fit", "x", "--out", "y", "--rank", "2", "--chanels=3"): "--chanels=3; did you mean --channels for --chanels?",
    ("fit", "x", "--sdie", "8"): "are required: --out, --rank; did you mean --side for --sdie?",
    ("fit", "x", "--out", "y", "--rank", "2", "--places", "rastr"): "did you mean raster?",
    ("bench", "--dtype", "float23"): "did you mean float32?",
    ("completion", "bahs"): "did you mean bash?",
}


@pytest.mark.parametrize("words", MISSPELT, ids=" ".join)
def test_misspelt_words_are_answered_with_what_may_be_meant(words, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, errors = command(*words)
    assert status == 2
    assert MISSPELT[words] in errors
    assert errors.count("did you mean") == 1
    assert not list(tmp_path.iterdir())


OLD = {
    ("reproduce", "theorem-1"): "; in a checkout, use python -m paper run",
    ("report",): "; in a checkout, use python -m paper report",
    ("experiment", "heads"): "; in a checkout, use python -m paper experiment",
    ("fit", "x", "--out", "y", "--rank", "2", "--start", "tree"): "--start tree; --start is now called --places",
}


@pytest.mark.parametrize("words", OLD, ids=" ".join)
def test_old_words_are_answered_with_the_new_ones(words, command):
    status, _, text = command(*words)
    assert status == 2
    assert text.endswith(f"{OLD[words]}\n")


def test_other_words_are_answered_without_a_guess(command):
    for words in (("xyz",), ("bench", "--xyz"), ("bench", "extra"), ("bench", "--row", "3")):
        assert "did you mean" not in command(*words)[2]
    assert did_you_mean("xyz", ("doctor",)) == ""


def test_an_option_that_is_not_known_shows_the_usage_of_its_command(command):
    assert command("fit", "x", "--nonsense")[2].startswith("usage: laplex fit")


# --- messages ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Images of two sizes and kinds, and arrays, in the folder where commands run."""
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    Path("pictures").mkdir()
    for name, size in (("a", (9, 8, 3)), ("b", (8, 8, 3)), ("grey", (8, 8))):
        image.fromarray(np.full(size, 7, np.uint8)).save(f"pictures/{name}.png")
    np.save("array.npy", np.zeros((4, 8, 8, 3), np.uint8))
    np.savez("two.npz", one=np.zeros((4, 5)), two=np.zeros((4, 5)))


FIT = ("--out", "out", "--rank", "2", "--functions", "1", "--rounds", "1")
SAID = {
    ("fit", "pictures", *FIT): "laplex fit: --side must be given for a folder",
    (
        "fit",
        "pictures",
        "--side",
        "8",
        *FIT,
    ): "laplex fit: --channels must be given where grey images are among coloured "
    "ones, got none for pictures with 1 grey and 2 coloured images; pass --channels 3, or 1",
    ("fit", "array.npy", "--side", "9", *FIT): "--side and --channels must fit an array, which is not resized, got "
    "--side 9 and no --channels for (4, 8, 8, 3)",
    ("fit", "two.npz", *FIT): "laplex fit: DATA must name one of the parts one, two",
    ("fit", "nowhere", *FIT): "laplex fit: DATA must be a folder of images",
    ("fit", "pictures", "--side", "100000", "--channels", "3", *FIT): "laplex fit: --side must make images of at most",
    ("sample", "nowhere", "--out", "x.png"): "laplex sample: MODEL must be",
}


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("words", SAID, ids=" ".join)
def test_commands_speak_of_their_options(words, command):
    status, _, errors = command(*words)
    assert status == 2
    assert SAID[words] in errors
    assert "laplex." not in errors
    assert not re.search(r"`\w+`|\b(side|channels|source|path)=", errors)


def test_a_message_of_a_function_is_said_of_the_command():
    said = as_command(
        "laplex.density.images.load: `side` and side=3, `channels` and channels=None of `other`, outside=4"
    )
    assert said == "--side and --side 3, --channels and no --channels of `other`, outside=4"


# --- packages ---------------------------------------------------------------------------------------------------------


def without(monkeypatch, *missing):
    """As if these modules were not installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name in missing else find(name, *more))


PACKAGES = {
    "a fit": (("fit", ".", *FIT), "laplex fit: it needs safetensors and pillow (and matplotlib, for plots), which are "
              "missing; pip install safetensors pillow matplotlib\n"),
    "bundled images": (("fit", "bundled:train", *FIT), "it needs safetensors and pillow"),
    "an array": (("fit", "x.npy", *FIT), "it needs safetensors (and matplotlib, for plots), which is missing"),
    "validation": (("fit", "x.npy", "--validation", ".", *FIT), "it needs safetensors and pillow"),
    "samples": (("sample", "x", "--out", "x.png"), "laplex sample: it needs safetensors and pillow, which are missing"),
    "a filling": (("inpaint", "x", "y", "--out", "x.png"), "it needs safetensors and pillow"),
    "numbers": (("evaluate", "x", "y.npy"), "it needs safetensors, which is missing; pip install safetensors\n"),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKAGES)
def test_one_message_names_all_packages_that_are_missing(name, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    without(monkeypatch, "safetensors", "PIL", "matplotlib")
    words, message = PACKAGES[name]
    status, _, errors = command(*words)
    assert status == 2
    assert message in errors
    assert errors.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_what_only_draws_is_not_needed(monkeypatch):
    without(monkeypatch, "matplotlib")
    for name in ("fit", "sample", "reconstruct", "inpaint", "evaluate"):
        packages.refuse(name, ".")


# --- the TAB key ------------------------------------------------------------------------------------------------------

COMPLETED = {
    ("fi",): "fit",
    ("re",): "reconstruct",
    ("fit", ""): "",  # a file: bash takes its own
    ("fit", "folder", "--s"): "--side --seed",
    ("fit", "folder", "--places", ""): " ".join(NAMED_PLACES),
    ("fit", "--side", "fit", "--ra"): "--rank",
    ("bench", "--json", ""): "",
    ("bench", "--device", "c"): "cpu cuda",
    ("bench", "--dtype", "float3"): "float32",
    ("completion", ""): "bash zsh",
    ("--v",): "--version",
}


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="there is no bash")
def test_tab_completes_commands_options_and_names(command):
    status, script, _ = command("completion", "bash")
    assert status == 0
    asked = [
        f"COMP_WORDS=({' '.join(repr(word) for word in ('laplex', *words))}); COMP_CWORD={len(words)}; _laplex; "
        'echo "${COMPREPLY[*]}"'
        for words in COMPLETED
    ]
    done = subprocess.run(["/bin/bash", "-c", "\n".join([script, *asked])], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert dict(zip(COMPLETED, done.stdout.split("\n"))) == COMPLETED


def test_the_script_has_all_names(command):
    script = command("completion", "bash")[1]
    assert all(name in script for name in PARSERS)
    zsh = command("completion", "zsh")[1]
    assert zsh.endswith(script)
    assert "bashcompinit" in zsh


# --- readers that leave -----------------------------------------------------------------------------------------------

GONE = {("doctor",): cli.CLOSED, ("fit", "--help"): cli.CLOSED, ("bench", "--rows"): 2}


@pytest.mark.skipif(os.name == "nt", reason="pipes of Windows are other ones")
@pytest.mark.parametrize("words", GONE, ids=" ".join)
def test_a_reader_that_has_gone_is_no_error(words):
    read, write = os.pipe()
    os.close(read)
    try:
        done = started(*words, capture_output=False, stdout=write, stderr=subprocess.PIPE)
    finally:
        os.close(write)
    assert done.returncode == GONE[words]
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="pipes of Windows are other ones")
def test_an_output_that_is_closed_from_the_start_is_no_error():
    done = started("doctor", code="sys.stdout = None")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_ctrl_c_ends_any_command_without_a_traceback(command, monkeypatch):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run", interrupted)
    assert command("doctor") == (130, "", "\nlaplex doctor: interrupted\n")


# --- what users read of it --------------------------------------------------------------------------------------------


def test_the_install_takes_the_versions_that_are_tested():
    for page in ("README.md", "docs/quickstart.md"):
        assert "pip install -c constraints.txt ." in (ROOT / page).read_text(encoding="utf-8")
    assert "laplex completion bash" in (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")


def test_the_page_of_commands_names_all(command):
    page = (ROOT / "docs/reference/command-line.md").read_text(encoding="utf-8")
    assert set(PARSERS) - {""} <= set(re.findall(r"`(?:laplex )?(\w+)`", page))
    assert laplex.__version__ in command("--version")[1]
