"""Kubernetes' files follow its schemas, and what they say fits the program and one another."""

from __future__ import annotations

import copy
import math
import re
import tomllib
from typing import Any

import kubernetes_validate
import pytest
import yaml

from ontrack.pipeline.kafka.shell import STOP_S_MAX
from ontrack.pipeline.settings import Settings
from tests.deploy.tools import KUBERNETES, ROOT

#: The oldest that is not out of support at the time of writing, and the newest.
VERSIONS = ["1.33", kubernetes_validate.latest_version()]
KUSTOMIZATION = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
FILES = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")
OBJECTS: list[dict[str, Any]] = [
    item
    for path in FILES
    for item in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    if item is not None
]


def the(kind: str, name: str) -> dict[str, Any]:
    (found,) = [o for o in OBJECTS if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


WORKER = the("StatefulSet", "ontrack-worker")
POD = WORKER["spec"]["template"]
PODS = [o["spec"]["template"]["spec"] for o in OBJECTS if "template" in o.get("spec", {})]
CONTAINERS = [container for pod in PODS for container in pod["containers"]]
FILE_SETTINGS = tomllib.loads(the("ConfigMap", "ontrack")["data"]["ontrack.toml"])


# ------------------------------------------------------------------ schemas


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("item", OBJECTS, ids=lambda o: f"{o['kind']}-{o['metadata']['name']}")
def test_every_object_follows_the_schema_and_has_no_field_beside_it(
    item: dict[str, Any], version: str
) -> None:
    kubernetes_validate.validate(item, version, strict=True)


def test_the_schemas_find_a_slip() -> None:
    wrong = copy.deepcopy(WORKER)
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 45
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriod"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_kustomize_takes_every_file_but_that_of_autoscaling() -> None:
    assert sorted(KUSTOMIZATION["resources"]) == [
        path.name for path in FILES if path.name != "autoscaling.yaml"
    ]
    assert the("Namespace", KUSTOMIZATION["namespace"])


# ------------------------------------------------------------------ settings and secrets


@pytest.mark.parametrize("container", CONTAINERS, ids=lambda c: c["name"])
def test_every_variable_is_a_setting_with_a_value_that_it_takes(container: dict[str, Any]) -> None:
    given = {
        item["name"]: item.get("value", "given-elsewhere-and-long") for item in container["env"]
    }
    mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    assert given.pop("ONTRACK_CONFIG") == f"{mounts['settings']}/ontrack.toml"
    given.pop("NAMESPACE", None)
    values = {name.removeprefix("ONTRACK_").lower(): value for name, value in given.items()}
    for name in ("ONTRACK_INSTANCE", "NAMESPACE"):
        if "web_advertised_url" in values:
            values["web_advertised_url"] = values["web_advertised_url"].replace(f"$({name})", "x")
    assert all(name.startswith("ONTRACK_") for name in given)
    Settings(**(FILE_SETTINGS | values))


def test_secrets_come_from_a_secret_and_stand_in_no_file() -> None:
    assert [o for o in OBJECTS if o["kind"] == "Secret"] == []
    secret = {name for name, field in Settings.model_fields.items() if "Secret" in str(field)}
    assert {"web_token", "sasl_password", "redact_key"} <= secret
    assert secret.isdisjoint(FILE_SETTINGS)
    for container in CONTAINERS:
        for item in container["env"]:
            if item["name"].removeprefix("ONTRACK_").lower() in secret:
                assert item["valueFrom"]["secretKeyRef"]["name"] == "ontrack"


def test_services_become_no_variables_that_the_settings_would_refuse() -> None:
    # ontrack-gate would be ONTRACK_GATE_SERVICE_HOST in every pod of the namespace.
    assert len(PODS) == 3
    assert [pod.get("enableServiceLinks") for pod in PODS] == [False] * len(PODS)


# ------------------------------------------------------------------ one fits the other


def test_the_image_is_that_of_the_project_and_runs_as_its_user() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {c["image"] for c in CONTAINERS} == {f"ontrack:{project['version']}"}
    assert [image["newTag"] for image in KUSTOMIZATION["images"]] == [project["version"]]
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (user,) = re.findall(r"^USER (\d+)$", dockerfile, re.MULTILINE)
    assert f"--uid {user} " in dockerfile
    assert {pod["securityContext"]["runAsUser"] for pod in PODS} == {int(user)}
    home = re.findall(r"HOME=(\S+)", dockerfile)
    mounted = [[m["mountPath"] for m in container["volumeMounts"]] for container in CONTAINERS]
    assert [mounts.count(home[0]) for mounts in mounted] == [1] * len(CONTAINERS)


def test_no_pod_may_do_more_than_it_needs() -> None:
    for pod in PODS:
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["automountServiceAccountToken"] is False
    for container in CONTAINERS:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]


def test_a_worker_has_time_to_end() -> None:
    assert POD["spec"]["terminationGracePeriodSeconds"] > STOP_S_MAX


def test_selectors_find_the_workers_and_ports_are_theirs() -> None:
    labels = POD["metadata"]["labels"]
    (container,) = POD["spec"]["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == Settings.model_fields["web_port"].default
    assert POD["metadata"]["annotations"]["prometheus.io/port"] == str(port["containerPort"])
    for name in ("ontrack-workers", "ontrack-gate"):
        service = the("Service", name)["spec"]
        assert service["selector"].items() <= labels.items()
        assert [p["targetPort"] for p in service["ports"]] == [port["name"]]
        assert [p["port"] for p in service["ports"]] == [port["containerPort"]]
    selectors = [WORKER["spec"]["selector"], the("PodDisruptionBudget", "ontrack-worker")["spec"]]
    for selector in (selectors[0], selectors[1]["selector"]):
        assert selector["matchLabels"].items() <= labels.items()


def test_the_dashboard_is_found_by_its_service_and_its_port_is_the_setting() -> None:
    pod = the("Deployment", "ontrack-dashboard")["spec"]["template"]
    service = the("Service", "ontrack-dashboard")["spec"]
    assert service["selector"].items() <= pod["metadata"]["labels"].items()
    (container,) = pod["spec"]["containers"]
    (port,) = container["ports"]
    assert port["containerPort"] == Settings.model_fields["dashboard_port"].default
    assert [p["targetPort"] for p in service["ports"]] == [port["name"]]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_a_worker_is_reached_by_the_name_that_it_tells_the_others() -> None:
    assert WORKER["spec"]["serviceName"] == "ontrack-workers"
    headless = the("Service", "ontrack-workers")["spec"]
    assert headless["clusterIP"] == "None"
    variables = {e["name"]: e for e in POD["spec"]["containers"][0]["env"]}
    assert variables["ONTRACK_INSTANCE"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
    url = variables["ONTRACK_WEB_ADVERTISED_URL"]["value"]
    assert url == "http://$(ONTRACK_INSTANCE).ontrack-workers.$(NAMESPACE).svc:6066"
    # A variable can only name those before it.
    order = list(variables)
    assert order.index("NAMESPACE") < order.index("ONTRACK_WEB_ADVERTISED_URL")


def test_probes_ask_openly_only_what_is_open() -> None:
    (container,) = POD["spec"]["containers"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] == "/healthz"
    assert "ONTRACK_WEB_TOKEN" in container["readinessProbe"]["exec"]["command"][-1]


def test_every_number_of_workers_that_autoscaling_may_choose_leaves_none_idle() -> None:
    scaler = the("HorizontalPodAutoscaler", "ontrack-worker")["spec"]
    assert scaler["scaleTargetRef"] == {
        "apiVersion": WORKER["apiVersion"],
        "kind": WORKER["kind"],
        "name": WORKER["metadata"]["name"],
    }
    partitions = FILE_SETTINGS["partitions"]
    for workers in range(scaler["minReplicas"], scaler["maxReplicas"] + 1):
        each = math.ceil(partitions / workers)  # Faust lets a worker have as many
        assert math.ceil(partitions / each) == workers, f"{workers} workers: one gets nothing"
