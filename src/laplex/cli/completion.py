"""`laplex completion`: a script that completes commands, options and names at the TAB key, in bash and zsh.

The script holds all words, so that nothing is started at a TAB. It is made once, and again after an update.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from laplex.cli.parsing import Parser

SHELLS = ("bash", "zsh")
HELP = "Print a script that completes commands and options at the TAB key."
ABOUT = """Print a script that completes commands, options and names at the TAB key. Write it to a file, as in laplex
completion bash > ~/.laplex-completion, and let every shell read it, with the line `source ~/.laplex-completion` in
~/.bashrc, or in ~/.zshrc for zsh."""
ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -Uz bashcompinit && bashcompinit
"""
SCRIPT = """\
_laplex() {{
    local path="" words="" options="" index current="${{COMP_WORDS[COMP_CWORD]}}"
    for ((index = 1; index < COMP_CWORD; index++)); do
        case "$path ${{COMP_WORDS[index]}}" in
            {commands}) path="$path ${{COMP_WORDS[index]}}" ;;
        esac
    done
    case "$path" in
{words}
    esac
    case "$current" in
        -*) words="$options" ;;
    esac
    case "$path ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _laplex laplex
"""


def add_to(commands: Any) -> None:
    """Add the command."""
    made = commands.add_parser("completion", help=HELP, description=ABOUT)
    made.add_argument("shell", choices=SHELLS, metavar="SHELL", help=" or ".join(SHELLS))


def run(given: argparse.Namespace) -> int:
    """The command."""
    from laplex.cli import options

    print(script(options.parser(), given.shell), end="")
    return 0


def script(parser: Parser, shell: str) -> str:
    """The script for all commands of a parser."""
    found = dict(_commands(parser, ""))
    lines = [line for path, one in found.items() for line in _value_lines(path, one)]
    made = SCRIPT.format(
        commands="|".join(f'"{path}"' for path in found if path),
        words="\n".join(_word_line(path, one) for path, one in found.items()),
        values="\n".join(lines),
    )
    return ZSH + made if shell == "zsh" else made


def _commands(parser: Parser, path: str) -> Iterator[tuple[str, Parser]]:
    """All parsers, each by the words that lead to it."""
    yield path, parser.filled()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, one in action.choices.items():
                yield from _commands(one, f"{path} {name}")


def _word_line(path: str, parser: Parser) -> str:
    """What may come after a command: names, and options where a dash was typed."""
    names = [name for action in parser._actions if not action.option_strings for name in _names(action)]
    return f'        "{path}") words="{" ".join(names)}" options="{" ".join(_options(parser))}" ;;'


def _value_lines(path: str, parser: Parser) -> Iterator[str]:
    """What may come after options that take a value: one of their names, or else a file."""
    taking = [option for option in _options(parser) if parser._option_string_actions[option].nargs != 0]
    files = [option for option in taking if not _names(parser._option_string_actions[option])]
    for option in taking:
        names = _names(parser._option_string_actions[option])
        if names:
            yield f'        "{path} {option}") words="{" ".join(names)}" ;;'
    if files:
        pattern = "|".join(f'"{path} {option}"' for option in files)
        yield f'        {pattern}) words="" ;;'


def _options(parser: Parser) -> list[str]:
    return [option for option in parser._option_string_actions if option.startswith("--")]


def _names(action: argparse.Action) -> list[str]:
    """What an argument may be, where that is known."""
    from laplex.cli.options import DTYPES

    known: dict[str, Sequence[str]] = {"dtype": DTYPES, "device": ("auto", "cpu", "cuda")}
    return list(map(str, action.choices or known.get(action.dest, ())))
