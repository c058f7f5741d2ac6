"""Kubernetes' side of a manifest: whether it would be taken, field by field, and what its pods are started with."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import yaml

CRD = Path(__file__).parent / "crd"
KUBERNETES = "1.37"
Document = dict[str, Any]


def documents(text: str) -> list[Document]:
    return list(yaml.load_all(text, yaml.CSafeLoader))


def refused(document: Document) -> list[str]:
    """What Kubernetes does not take of it, unknown fields among it: "spec/replicas: 'x' is not of type 'integer'"."""
    own = _schemas().get((document["apiVersion"], document["kind"]))
    if own is None:
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [str(error.message)]
        return []
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:200]}" for error in own.iter_errors(document)]


@cache
def _schemas() -> dict[tuple[str, str], jsonschema.Draft7Validator]:
    actual = [json.loads(path.read_text()) for path in CRD.glob("*.json")]
    return {(f"{each['group']}/{each['version']}", each["kind"]): _validator(each["schema"]) for each in actual}


def _validator(schema: Document) -> jsonschema.Draft7Validator:
    closed = _closed(schema)
    closed["properties"]["metadata"] = {"type": "object"}
    return jsonschema.Draft7Validator(closed)


def _closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    found = {key: _part(key, value) for key, value in schema.items()}
    if "properties" in found and not schema.get("x-kubernetes-preserve-unknown-fields"):
        found.setdefault("additionalProperties", False)
    return found


def _part(key: str, value: Any) -> Any:
    if key in ("enum", "default", "required"):
        return value
    return {name: _closed(each) for name, each in value.items()} if key == "properties" else _closed(value)


@dataclass(frozen=True)
class Pod:
    """A pod as it starts: the words of its first process, and its environment."""

    words: list[str]
    env: dict[str, str]


def pods(container: Mapping[str, Any], count: int, fields: Mapping[str, str]) -> Iterator[Pod]:
    """Return the pods of an indexed Job, by number; `fields` are those of the downward API, without {index}."""
    for index in range(count):
        env: dict[str, str] = {}
        for each in container.get("env", ()):
            path = each.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            env[each["name"]] = fields[path].format(index=index) if path else expanded(each["value"], env)
        words = [expanded(word, env) for word in [*container["command"], *container.get("args", ())]]
        yield Pod(words, {**env, "JOB_COMPLETION_INDEX": str(index)})


def expanded(text: str, env: Mapping[str, str]) -> str:
    """As the kubelet does: $(NAME) where there is such a variable, one $ of two. Source: k8s.io, third_party/forked/golang/expansion."""

    def one(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else env.get(found[1], found[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", one, text)
