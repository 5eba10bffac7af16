"""Docstrings of the reference in docs/ that griffe does not find, because it does not run the code."""

from __future__ import annotations

from typing import Any

import griffe

from fluss.model.config import Config, Option


class Docstrings(griffe.Extension):
    """Those that classes take from their bases (`__doc__ = Base.__doc__`), and those of the options of Config."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        self._walk(pkg)

    def _walk(self, item: griffe.Module | griffe.Class) -> None:
        for member in item.members.values():
            if member.is_alias:
                continue
            if isinstance(member, griffe.Class) and member.docstring is None:
                bases = (base for base in member.mro() if base.docstring is not None)
                member.docstring = next((base.docstring for base in bases), None)
            if isinstance(member, griffe.Module | griffe.Class):
                self._walk(member)
            elif item.path == "fluss.model.config.Config" and isinstance(member, griffe.Attribute):
                _document_option(member)


def _document_option(member: griffe.Attribute) -> None:
    option = vars(Config)[member.name]
    if isinstance(option, Option):
        default = "(empty)" if option.default == "" else option.default
        text = f"Key `{option.key}`, default `{default}`. {option.__doc__}"
        member.docstring = griffe.Docstring(text, parent=member)
        member.value = None
