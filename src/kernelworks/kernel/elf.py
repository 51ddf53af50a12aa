"""The image of an ELF shared library as far as descriptors and digests need it: bytes, symbols, relocations.

Read with pyelftools, which is loaded on the first call only.
"""

from __future__ import annotations

import hashlib
import importlib
from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kernelworks.errors import EvaluationError

_SHF_WRITE, _SHF_ALLOC, _SHF_EXECINSTR = 1, 2, 4
_NAME_SECTIONS = frozenset(
    ".dynsym .dynstr .hash .gnu.hash .gnu.version .gnu.version_r .gnu.version_d .note.gnu.build-id .note.gnu.property"
    " .comment .rela.dyn .rela.plt .eh_frame .eh_frame_hdr .gcc_except_table .dynamic".split()
)
"""Allocated sections that hold names, build ids, unwinding or linking tables: no part of what is computed."""


@dataclass(frozen=True, slots=True)
class Section:
    """One allocated section; ``data`` of a zero-initialised one is empty."""

    name: str
    address: int
    size_bytes: int
    data: bytes
    executable: bool
    writable: bool


@dataclass(frozen=True, slots=True)
class Symbol:
    """A function or object that is defined here."""

    name: str
    address: int
    size_bytes: int
    is_function: bool


@dataclass(frozen=True, slots=True)
class Relocation:
    """What the loader writes into one slot: ``target`` inside this library, else the import ``name`` + ``addend``."""

    name: str
    target: int | None
    addend: int = 0


@dataclass(frozen=True)
class Image:
    """Sections, symbols and relocations of one library, by link-time address."""

    machine: str
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: dict[int, Relocation]

    @cached_property
    def _section_starts(self) -> list[int]:
        return [section.address for section in self.sections]

    @cached_property
    def function_starts(self) -> frozenset[int]:
        """Addresses at which a symbol says that a function begins."""
        return frozenset(symbol.address for symbol in self.symbols if symbol.is_function)

    @cached_property
    def _sized(self) -> dict[bool, tuple[list[int], list[Symbol]]]:
        found: dict[bool, tuple[list[int], list[Symbol]]] = {}
        for is_function in (False, True):
            chosen = sorted(
                (s for s in self.symbols if s.size_bytes and s.is_function is is_function), key=lambda s: s.address
            )
            found[is_function] = ([s.address for s in chosen], chosen)
        return found

    def section_at(self, address: int) -> Section | None:
        """The section that holds this address."""
        at = bisect_right(self._section_starts, address) - 1
        if at < 0:
            return None
        section = self.sections[at]
        return section if address < section.address + section.size_bytes else None

    def symbol_at(self, address: int, *, is_function: bool) -> Symbol | None:
        """The sized symbol of this kind that holds this address."""
        starts, symbols = self._sized[is_function]
        at = bisect_right(starts, address) - 1
        if at < 0:
            return None
        symbol = symbols[at]
        return symbol if address < symbol.address + symbol.size_bytes else None

    def function_named(self, name: str) -> int | None:
        """Address of the function of this name."""
        return next((s.address for s in self.symbols if s.is_function and s.name == name), None)

    def is_code(self, address: int) -> bool:
        """Whether the address lies in an executable section."""
        section = self.section_at(address)
        return section is not None and section.executable

    def read(self, address: int, size_bytes: int) -> bytes:
        """Bytes as they are before relocation; zeros where the section is zero-initialised, short at its end."""
        section = self.section_at(address)
        if section is None:
            return b""
        start = address - section.address
        size_bytes = min(size_bytes, section.size_bytes - start)
        return section.data[start : start + size_bytes].ljust(size_bytes, b"\0")


def read_image(library: Path) -> Image:
    """Read a shared library.

    Raises:
        EvaluationError: the file cannot be read or is no ELF file.
    """
    # pyelftools carries no types, hence Any at this border
    elf_module: Any = importlib.import_module("elftools.elf.elffile")
    exceptions: Any = importlib.import_module("elftools.common.exceptions")
    try:
        with library.open("rb") as stream:
            elf: Any = elf_module.ELFFile(stream)
            return Image(
                machine=str(elf["e_machine"]),
                sections=_sections(elf),
                symbols=_symbols(elf),
                relocations=_relocations(elf),
            )
    except OSError as error:
        raise EvaluationError(f"library {library}: expected a readable file, found {error.strerror}") from error
    except exceptions.ELFError as error:
        raise EvaluationError(f"library {library}: expected an ELF shared library, found {error}") from error


def sections_digest(library: Path) -> str:
    """Hash of everything that is executed or read at run time, for machines whose code is not disassembled.

    Equal digests mean equal code and data at equal addresses: stricter than needed, never too lax.

    Returns:
        32 hex digits.
    """
    image = read_image(library)
    digest = hashlib.sha256(image.machine.encode())
    for section in image.sections:
        if section.name not in _NAME_SECTIONS:
            digest.update(f"\0{section.name}\0{section.address}\0{section.size_bytes}\0".encode())
            digest.update(section.data)
    for address, relocation in sorted(image.relocations.items()):
        digest.update(f"\0{address}\0{relocation.name}\0{relocation.target}\0{relocation.addend}".encode())
    return digest.hexdigest()[:32]


def _sections(elf: Any) -> tuple[Section, ...]:
    found: list[Section] = []
    for section in elf.iter_sections():
        flags = int(section["sh_flags"])
        is_thread_local_bss = section["sh_type"] == "SHT_NOBITS" and section.name == ".tbss"
        if not flags & _SHF_ALLOC or not section["sh_size"] or is_thread_local_bss:
            continue
        data: bytes = b"" if section["sh_type"] == "SHT_NOBITS" else section.data()
        found.append(
            Section(
                name=str(section.name),
                address=int(section["sh_addr"]),
                size_bytes=int(section["sh_size"]),
                data=data,
                executable=bool(flags & _SHF_EXECINSTR),
                writable=bool(flags & _SHF_WRITE),
            )
        )
    return tuple(sorted(found, key=lambda s: s.address))


def _symbols(elf: Any) -> tuple[Symbol, ...]:
    found: dict[tuple[int, str], Symbol] = {}
    for name in (".symtab", ".dynsym"):
        table = elf.get_section_by_name(name)
        if table is None:
            continue
        for symbol in table.iter_symbols():
            kind = symbol["st_info"]["type"]
            if symbol["st_shndx"] == "SHN_UNDEF" or kind not in ("STT_FUNC", "STT_OBJECT"):
                continue
            address = int(symbol["st_value"])
            entry = Symbol(str(symbol.name), address, int(symbol["st_size"]), kind == "STT_FUNC")
            found.setdefault((address, entry.name), entry)
    return tuple(found.values())


def _relocations(elf: Any) -> dict[int, Relocation]:
    found: dict[int, Relocation] = {}
    for section in elf.iter_sections():
        if section["sh_type"] != "SHT_RELA" or not int(section["sh_flags"]) & _SHF_ALLOC:
            continue
        symbols = elf.get_section(section["sh_link"])
        for relocation in section.iter_relocations():
            addend = int(relocation["r_addend"])
            name, target = "", addend
            if relocation["r_info_sym"]:
                symbol = symbols.get_symbol(relocation["r_info_sym"])
                name = str(symbol.name)
                defined = symbol["st_shndx"] != "SHN_UNDEF"
                target = int(symbol["st_value"]) + addend if defined else None
            found[int(relocation["r_offset"])] = Relocation(name, target, addend)
    return found
