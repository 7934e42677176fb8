"""`laplex completion`: a script that completes commands, options and names at the TAB key, in bash and zsh.

The script contains all words, so that a TAB starts no program. Write it once, and again after an update.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from laplex.cli import commands

ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
autoload -Uz bashcompinit && bashcompinit
"""
SCRIPT = """\
_laplex() {{
    local command="" words="" options="" index current="${{COMP_WORDS[COMP_CWORD]}}"
    for ((index = 1; index < COMP_CWORD; index++)); do
        case "${{COMP_WORDS[index]}}" in
            {commands}) command="${{COMP_WORDS[index]}}"; break ;;
        esac
    done
    case "$command" in
{words}
    esac
    case "$current" in
        -*) words="$options" ;;
    esac
    case "$command ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _laplex laplex
"""


def run(options: argparse.Namespace) -> int:
    """The command."""
    print(script(options.shell), end="")
    return 0


def script(shell: str) -> str:
    """The script for all commands."""
    parser = commands.parser()
    parsers = {"": parser, **commands_of(parser)}
    text = SCRIPT.format(
        commands="|".join(f'"{name}"' for name in parsers if name),
        words="\n".join(_word_line(name, one) for name, one in parsers.items()),
        values="\n".join(line for name, one in parsers.items() for line in _value_lines(name, one)),
    )
    return ZSH + text if shell == "zsh" else text


def commands_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the commands, by name."""
    (action,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(action.choices)


def _word_line(command: str, parser: argparse.ArgumentParser) -> str:
    """What may come after a command: names, and options once a dash was typed."""
    names = [name for action in parser._actions if not action.option_strings for name in _choices(action)]
    return f'        "{command}") words="{" ".join(names)}" options="{" ".join(_options(parser))}" ;;'


def _value_lines(command: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """What may come after options that take a value: one of its choices, or else a file."""
    actions = {option: parser._option_string_actions[option] for option in _options(parser)}
    files = []
    for option, action in actions.items():
        if choices := _choices(action):
            yield f'        "{command} {option}") words="{" ".join(choices)}" ;;'
        elif action.nargs != 0:
            files.append(f'"{command} {option}"')
    if files:
        yield f'        {"|".join(files)}) words="" ;;'


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for option in parser._option_string_actions if option.startswith("--")]


def _choices(action: argparse.Action) -> list[str]:
    """The values that an argument may have, if they are known."""
    choices = ("auto", "cpu", "cuda") if action.dest == "device" else action.choices or ()
    return list(map(str, choices))
