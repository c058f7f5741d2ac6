"""Labels of exchanges: all ranks must give the same one, so that a label has no value of one host, such as an interface or a path."""

import ast
from pathlib import Path

import collbench

PACKAGE = Path(collbench.__file__).parent
EXCHANGES = {"gather", "gather_array", "gather_into", "broadcast", "allgather", "first_error", "at_rank_0"}
PASSED_ON = {"what", "doing"}  # parameters and variables that hold a label

# Values in labels. Each is the same at all ranks: names from the command line, and cases of the sweep.
SAME_AT_ALL_RANKS = {
    "backend.name", "self.name", "name", "items[0][2].name", "stage.backend.name", "context.backend.name", "tool.name", "kind.name",
    "training.regime.name", "case.title()", "self.case.title()", "ready.case.title()", "self.ready.case.title()",
    "prepared.ready.case.title()", "step.ready.case.title()", "run.title", "self.title", "title", "what", "doing", "device", "len(ranks)",
    "'+'.join(row.mix)", "'on' if on else 'off'", "self.what", "verifying",
}  # fmt: skip


def labels(function):
    """Return the labels of a function's exchanges, and what the function assigns to the variables that hold them."""
    given = []
    assigned = []
    for node in ast.walk(function):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
            place = 2 if name == "at_rank_0" else 1
            if name in EXCHANGES and len(node.args) > place:
                given.append(node.args[place])
        elif isinstance(node, ast.Assign):
            targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            pairs = zip(targets, values, strict=False)
            assigned += [value for target, value in pairs if isinstance(target, ast.Name) and target.id in PASSED_ON]
    return given + assigned if given else []


def functions(module):
    """Yield the functions of a module."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            yield node


def test_no_label_of_an_exchange_has_a_value_of_one_host():
    found = {}
    for module in (file for folder in ("backends", "measuring", "cli", "control", "plugins") for file in (PACKAGE / folder).rglob("*.py")):
        for label in (label for function in functions(module) for label in labels(function)):
            for value in (part.value for part in ast.walk(label) if isinstance(part, ast.FormattedValue)):
                found.setdefault(ast.unparse(value), set()).add(f"{module.relative_to(PACKAGE)}:{label.lineno}")
    assert len(found) > 5  # labels are found at all
    unknown = {value: places for value, places in found.items() if value not in SAME_AT_ALL_RANKS}
    assert not unknown, f"a value that differs between hosts ends every launch over them; add those that do not to the list: {unknown}"
