"""Lists, watches and resumes with Kubernetes' client library for Python; the arguments are the URL of an
agent and its directory of manifests."""

import json
import os
import sys

from kubernetes import client, dynamic, watch

configuration = client.Configuration()
configuration.host = sys.argv[1]
api_client = client.ApiClient(configuration)
api = client.CoreV1Api(api_client)


def pod(name, image="i:1"):
    containers = [{"name": "c", "image": image}]
    metadata = {"name": name, "labels": {"app": "python"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def names(items):
    return [item.metadata.name for item in items]


def equal(found, wanted):
    assert found == wanted, f"{found!r} is not {wanted!r}"


def events(version, count):
    """The first events after a version, and the version after them."""
    stream = watch.Watch()
    found = []
    for event in stream.stream(
        api.list_namespaced_pod, "default", label_selector="app=python", resource_version=version, timeout_seconds=60
    ):
        found.append((event["type"], event["object"].metadata.name))
        if len(found) == count:
            stream.stop()
    return found, stream.resource_version


# A pod with its defaults: created, read, replaced and deleted.
made = api.create_namespaced_pod("default", pod("crud"), field_validation="Strict")
equal((made.spec.restart_policy, made.spec.containers[0].image_pull_policy), ("Always", "IfNotPresent"))
read = api.read_namespaced_pod("crud", "default")
equal(read.metadata.uid, made.metadata.uid)
read.metadata.labels["tier"] = "front"
read.spec.containers[0].image = "i:2"
replaced = api.replace_namespaced_pod("crud", "default", read)
equal((replaced.metadata.labels["tier"], replaced.spec.containers[0].image), ("front", "i:2"))
try:
    api.replace_namespaced_pod("crud", "default", made)
    raise AssertionError("a pod of an old version was accepted")
except client.ApiException as error:
    equal(error.status, 409)
tried = api.delete_namespaced_pod("crud", "default", dry_run="All")
equal(tried.metadata.uid, made.metadata.uid)
api.delete_namespaced_pod("crud", "default", grace_period_seconds=0)

# A collection.
for name in ["f", "g", "h"]:
    api.create_namespaced_pod("default", {**pod(name), "metadata": {"name": name, "labels": {"app": "many"}}})
selected = {"label_selector": "app=many", "field_selector": "metadata.name!=h", "grace_period_seconds": 0}
for options, left in [({"dry_run": "All"}, ["f", "g", "h"]), ({}, ["h"])]:
    api.delete_collection_namespaced_pod("default", **selected, **options)
    equal(names(api.list_namespaced_pod("default", label_selector="app=many").items), left)
options = client.V1DeleteOptions(grace_period_seconds=0)
api.delete_collection_namespaced_pod("default", label_selector="app=many", body=options)
equal(api.list_namespaced_pod("default", label_selector="app=many").items, [])

# Lists, in pages too.
for name in ["a", "b", "c"]:
    created = api.create_namespaced_pod("default", pod(name))
    equal(created.status.phase, "Pending")
listed = api.list_namespaced_pod("default", label_selector="app=python")
equal(names(listed.items), ["a", "b", "c"])
page = api.list_pod_for_all_namespaces(limit=2)
equal(names(page.items), ["a", "b"])
equal(names(api.list_pod_for_all_namespaces(limit=2, _continue=page.metadata._continue).items), ["c"])

# A watch resumes where the one before it ended.
api.delete_namespaced_pod("b", "default", grace_period_seconds=0)
api.replace_namespaced_pod("c", "default", pod("c", "i:2"))
found, version = events(listed.metadata.resource_version, 2)
equal(found, [("DELETED", "b"), ("MODIFIED", "c")])
api.create_namespaced_pod("default", pod("d"))
equal(events(version, 1)[0], [("ADDED", "d")])
try:
    events("1", 1)
    raise AssertionError("a version of no run was accepted")
except client.ApiException as error:
    equal(error.status, 410)

# Errors.
try:
    api.read_namespaced_pod("none", "default")
    raise AssertionError("there is no such pod")
except client.ApiException as error:
    equal((error.status, error.reason), (404, "Not Found"))

# Other objects. The library rejects those that lack a field.
equal(api.list_node().items[0].status.conditions[0].type, "Ready")
equal(names(api.list_namespace().items), ["default"])
for event in watch.Watch().stream(api.list_node, timeout_seconds=60):
    equal((event["type"], event["object"].status.conditions[0].status), ("ADDED", "True"))
    break
attributes = client.V1ResourceAttributes(verb="list", resource="pods")
review = client.V1SelfSubjectAccessReview(
    spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
)
authorization = client.AuthorizationV1Api(api_client)
equal(authorization.create_self_subject_access_review(review).status.allowed, True)

# The dynamic client reads discovery.
pods = dynamic.DynamicClient(api_client).resources.get(api_version="v1", kind="Pod")
equal(names(pods.get(namespace="default", label_selector="app=python").items), ["a", "c", "d"])
equal(pods.get(name="a", namespace="default").spec.containers[0].image, "i:1")
pods.create(namespace="default", body=pod("e"))
for event in pods.watch(namespace="default", name="e", timeout=60):
    equal((event["type"], event["object"].metadata.name), ("ADDED", "e"))
    break
equal(pods.delete(name="e", namespace="default", body={"gracePeriodSeconds": 0}).kind, "Pod")
found = pods.get(name="a", namespace="default").to_dict()
found["metadata"]["labels"]["tier"] = "back"
equal(pods.replace(namespace="default", body=found).metadata.labels.tier, "back")
deleted = pods.delete(namespace="default", label_selector="tier=back", body={"gracePeriodSeconds": 0})
equal((deleted.kind, names(deleted.items)), ("PodList", ["a"]))

# Events of a pod: a manifest in a file has its name.
def of_pod(name):
    return api.list_namespaced_event("default", field_selector=f"involvedObject.name={name}").items


stream = watch.Watch()
api.create_namespaced_pod("default", pod("shared-python"))
with open(sys.argv[2] + "/new", "w") as manifest:
    json.dump(pod("shared"), manifest)
os.rename(sys.argv[2] + "/new", sys.argv[2] + "/shared.json")
for seen in stream.stream(api.list_namespaced_event, "default", timeout_seconds=60):
    equal(seen["object"].involved_object.name, "shared-python")
    if seen["object"].reason == "Conflict":
        stream.stop()
equal([event.reason for event in of_pod("shared-python")], ["Conflict"])
equal(of_pod("none"), [])
read = api.read_namespaced_event(of_pod("shared-python")[0].metadata.name, "default")
equal((read.type, read.reporting_component), ("Warning", "podmux"))

# Patches: the library sends a strategic merge patch for a map, and a JSON patch for a list.
patched = api.patch_namespaced_pod("c", "default", {"spec": {"containers": [{"name": "c", "image": "i:3"}]}})
equal(patched.spec.containers[0].image, "i:3")
operations = [{"op": "add", "path": "/metadata/labels/patched", "value": "yes"}]
equal(api.patch_namespaced_pod("c", "default", operations).metadata.labels["patched"], "yes")

print("done")
