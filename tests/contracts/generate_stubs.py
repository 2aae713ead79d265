"""Writes tests/contracts/<import name>_<version>.json from the source or wheel of a package: its functions and their arguments.

    pip download --no-deps --no-clean deepinfer-gemm      (a source that wants CUDA to say its name stays unpacked)
    python tests/contracts/generate_stubs.py FOLDER_OR_WHEEL …

Python functions are read from the syntax tree; functions that exist only in C++ from pybind11's `m.def(…, py::arg(…))` and the
declaration that it names, those of a compiled torch library from the schemas that it registers (schemas.py). Nothing of the
package is imported or run.
"""

import argparse
import ast
import json
import re
import tempfile
import zipfile
from collections.abc import Iterator
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import schemas

HERE = Path(__file__).parent
PACKAGES = {  # distribution → import name, and the modules whose names are public
    "deepinfer-flashmla": ("flash_mla", ("flash_mla_interface", "fused_norm_rope_attn_rope_cast")),
    "deepinfer-gemm": ("deep_gemm", ("mega",)),
    "deepinfer-ep": ("deep_ep", ("buffers.ep", "buffers.engram")),
    "tile-kernels": ("tile_kernels", ("quant", "moe", "mhc", "engram", "transform", "config")),
    "tokenspeed-deepselect": ("deep_select", ("interface",)),
    "torch-npu": ("torch_npu", ()),
}
COMPILED = {  # import name → its torch library, its table of dtypes, and the functions that the adapters call or that fit less
    "torch_npu": (
        "lib/libtorch_npu.so",
        "op_plugin/meta/_meta_registrations.py",
        (
            "npu_quant_matmul",
            "npu_grouped_matmul",
            "npu_weight_quant_preprocess",
            "npu_quant_lightning_indexer",
            "npu_lightning_indexer",
        ),
    )
}
RE_EXPORTED = {
    "flash_mla_interface",
    "mega",
    "buffers.ep",
    "buffers.engram",
    "interface",
    "config",
}  # to the package itself
Argument = dict[str, str]


def contract(root: Path) -> dict[str, Any]:
    """Distribution, version, import name, and dotted name → arguments of every public function, method and constructor."""
    headers = HeaderParser().parsestr(_metadata(root).read_text())
    distribution = re.sub(r"[-_.]+", "-", headers["Name"]).lower()
    name, modules = PACKAGES[distribution]
    functions: dict[str, list[Argument]] = {}
    for module in modules:
        prefix = name if module in RE_EXPORTED else f"{name}.{module}"
        for function, arguments in python_functions(root / name, module):
            functions[f"{prefix}.{function}"] = arguments
    exported = set(_re_exported(root / name))
    for function, arguments in cpp_functions(root / "csrc"):
        if function in exported:
            functions.setdefault(f"{name}.{function}", arguments)
    found: dict[str, Any] = {"distribution": distribution, "version": headers["Version"], "import": name}
    if name in COMPILED:
        library, table, wanted = COMPILED[name]
        compiled = schemas.registered(root / name / library, wanted)
        functions.update({f"{name}.{key}": value for key, value in compiled.items()})
        found["constants"] = schemas.constants(root / name / table)
    return {**found, "functions": dict(sorted(functions.items()))}


def _re_exported(package: Path) -> Iterator[str]:
    """Names that a package takes from its compiled module `_C`, in its `__init__` or in its folder `utils`."""
    for source in (package / "__init__.py", *sorted(package.glob("utils/*.py"))):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[-1] == "_C":
                yield from (alias.name for alias in node.names)


def python_functions(package: Path, module: str) -> Iterator[tuple[str, list[Argument]]]:
    """Public functions and methods of a module; of a package's `__init__` also those that it imports from its own files."""
    path = package / module.replace(".", "/")
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    tree = ast.parse(source.read_text())
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module and path.is_dir():
            wanted = {alias.name for alias in node.names}
            for name, arguments in python_functions(path, node.module):
                if name.split(".")[0] in wanted:
                    yield name, arguments
        else:
            yield from _defined(node)


def _defined(node: ast.stmt) -> Iterator[tuple[str, list[Argument]]]:
    if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
        yield node.name, _arguments(node)
    if isinstance(node, ast.ClassDef):
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and (item.name == "__init__" or not item.name.startswith("_")):
                static = any(isinstance(mark, ast.Name) and mark.id == "staticmethod" for mark in item.decorator_list)
                yield f"{node.name}.{item.name}", _arguments(item)[0 if static else 1 :]


def _arguments(function: ast.FunctionDef) -> list[Argument]:
    spec = function.args
    plain = [*spec.posonlyargs, *spec.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(spec.defaults)) + list(spec.defaults)
    found = [_argument(argument, default) for argument, default in zip(plain, defaults)]
    if spec.vararg:
        found.append({"name": "*" + spec.vararg.arg})
    found += [_argument(argument, default) for argument, default in zip(spec.kwonlyargs, spec.kw_defaults)]
    if spec.kwarg:
        found.append({"name": "**" + spec.kwarg.arg})
    return found


def _argument(argument: ast.arg, default: ast.expr | None) -> Argument:
    found = {"name": argument.arg}
    if argument.annotation:
        found["annotation"] = ast.unparse(argument.annotation)
    if default is not None:
        found["default"] = ast.unparse(default)
    return found


def cpp_functions(folder: Path) -> Iterator[tuple[str, list[Argument]]]:
    """Functions that pybind11 is given, and their aliases."""
    for path in sorted((*folder.rglob("*.hpp"), *folder.rglob("*.cpp"))) if folder.is_dir() else ():
        text = re.sub(r"//[^\n]*|/\*.*?\*/", "", path.read_text(errors="replace"), flags=re.DOTALL)
        given: dict[str, list[Argument]] = {}
        for match in re.finditer(r"m\.def\(\s*\"(\w+)\"\s*,\s*(?:&(\w+)|\[&?\])", text):
            body = _parenthesised(text, match.start() + len("m.def"))
            declared = _declared(text, match[2]) if match[2] else _split(_parenthesised(text, match.end()))
            given[match[1]] = _bound(list(_named(body)), declared)
        for alias, known in re.findall(r"m\.attr\(\"(\w+)\"\)\s*=\s*m\.attr\(\"(\w+)\"\)", text):
            given[alias] = given[known]
        yield from given.items()


def _bound(named: list[tuple[str, str]], declared: list[str] | None) -> list[Argument]:
    """Arguments by pybind11's names, or by the declaration's where it gives none; types are the declaration's."""
    if not named and declared is None:
        return [{"name": "*args"}]  # declared in another file
    names = named or [(re.findall(r"\w+", one)[-1], "") for one in declared or ()]
    types = [
        re.sub(r"\s+", " ", re.sub(r"\b\w+\s*(=.*)?$", "", one, flags=re.DOTALL)).strip() for one in declared or ()
    ]
    return [
        {"name": name, **({"annotation": types[i]} if i < len(types) else {}), **_default(default)}
        for i, (name, default) in enumerate(names)
    ]


def _named(body: str) -> Iterator[tuple[str, str]]:
    """Each py::arg of an m.def with its default, which ends where the next argument or the call does."""
    for part in re.split(r",\s*(?=py::arg)", body)[1:]:
        match = re.match(r"py::arg\(\"(\w+)\"\)\s*(?:=\s*(.*))?", part.strip(), re.DOTALL)
        assert match, part
        yield match[1], (match[2] or "").strip()


def _default(text: str) -> Argument:
    python = {"std::nullopt": "None", "nullptr": "None", "true": "True", "false": "False"}
    if not text:
        return {}
    return {"default": python.get(text, re.sub(r"^std::make_tuple", "", text))}


def _declared(text: str, function: str) -> list[str] | None:
    match = re.search(rf"\b{function}\s*\((?=[^)]*&)", text)
    return _split(_parenthesised(text, match.end() - 1)) if match else None


def _parenthesised(text: str, start: int) -> str:
    depth = 0
    for i in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0 and i > start:
            return text[start + 1 : i]
    raise ValueError(f"a bracket is never closed after {text[start : start + 40]!r}")


def _split(parameters: str) -> list[str]:
    """At commas outside <> and ()."""
    depth, parts = 0, [""]
    for letter in parameters:
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _metadata(root: Path) -> Path:
    found = [*root.glob("PKG-INFO"), *root.glob("*.dist-info/METADATA")]
    assert len(found) == 1, f"{root} is no unpacked source or wheel"
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=Path, help="an unpacked source folder, or a wheel")
    given = parser.parse_args()
    for path in given.paths:
        if not path.exists():
            parser.error(f"{path} does not exist")
        with tempfile.TemporaryDirectory() as folder:
            if path.is_file():
                zipfile.ZipFile(path).extractall(folder)
            found = contract(Path(folder) if path.is_file() else path)
        target = HERE / f"{found['import']}_{found['version']}.json"
        functions = found.pop("functions")
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(arguments)}" for name, arguments in functions.items())
        target.write_text(json.dumps(found)[:-1] + ',\n "functions": {\n' + lines + "\n}}\n")
        print(f"{target}: {len(functions)} functions")


if __name__ == "__main__":
    main()
