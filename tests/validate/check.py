"""Checks standard input against a schema, or counts the manifests that the API's JSON schema rejects.

check.py sarif                       SARIF 2.1.0
check.py junit                       JUnit XML
check.py manifests OPENAPI LIST      prints those of the listed files that the schema accepts
"""

import json
import os
import sys

import jsonschema
import xmlschema
import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
KINDS = {"Pod": "Pod", "PodList": "PodList"}


def sarif():
    with open(os.path.join(HERE, "sarif-schema-2.1.0.json")) as schema:
        jsonschema.validate(json.load(sys.stdin), json.load(schema))


def junit():
    xmlschema.XMLSchema(os.path.join(HERE, "junit-10.xsd")).validate(sys.stdin.read())


class Loader(yaml.CSafeLoader):
    """YAML without times: JSON has none."""


Loader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for letter, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def closed(schema):
    """Objects with known fields have no others, as for `kubeconform -strict`."""
    if isinstance(schema, dict):
        for value in list(schema.values()):
            closed(value)
        if "properties" in schema and isinstance(schema["properties"], dict):
            schema.setdefault("additionalProperties", False)
    elif isinstance(schema, list):
        for value in schema:
            closed(value)


def without_nulls(value):
    """For the API a field that is null is absent."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [without_nulls(inner) for inner in value]
    return value


def validators(openapi):
    with open(openapi) as file:
        components = json.load(file)["components"]
    closed(components["schemas"])
    of = {}
    for kind, name in KINDS.items():
        root = {"$ref": f"#/components/schemas/io.k8s.api.core.v1.{name}", "components": components}
        of[kind] = jsonschema.Draft4Validator(root)
    return of


def is_accepted(path, of):
    """Whether the file is YAML, and each document an object of a known kind that fits its schema."""
    try:
        with open(path, "rb") as file:
            documents = [document for document in yaml.load_all(file, Loader) if document is not None]
    except (yaml.YAMLError, ValueError, RecursionError):
        return False
    for document in documents:
        if not isinstance(document, dict) or document.get("apiVersion") != "v1":
            return False
        items = document.get("items") or [] if document.get("kind") == "List" else [document]
        for item in items:
            validator = of.get(item.get("kind")) if isinstance(item, dict) else None
            if validator is None or not validator.is_valid(without_nulls(item)):
                return False
    return bool(documents)


def manifests(openapi, paths):
    of = validators(openapi)
    for path in paths:
        if is_accepted(path, of):
            print(path)


if sys.argv[1] == "manifests":
    with open(sys.argv[3]) as listed:
        manifests(sys.argv[2], listed.read().splitlines())
else:
    {"sarif": sarif, "junit": junit}[sys.argv[1]]()
