"""Lists, watches and resumes with Kubernetes' client library for Python; the argument is the URL of an agent."""

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

# Patches: the library sends a strategic merge patch for a map, and a JSON patch for a list.
patched = api.patch_namespaced_pod("a", "default", {"spec": {"containers": [{"name": "c", "image": "i:3"}]}})
equal(patched.spec.containers[0].image, "i:3")
operations = [{"op": "add", "path": "/metadata/labels/patched", "value": "yes"}]
equal(api.patch_namespaced_pod("a", "default", operations).metadata.labels["patched"], "yes")

print("done")
