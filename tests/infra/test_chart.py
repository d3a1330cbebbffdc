"""The Helm chart: every combination of values that matters gives valid objects that fit each other."""

from __future__ import annotations

import itertools
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from infra.deploy_tools import kubernetes_tools
from services.settings import load_hub, load_region
from tests.infra.chart import CHART, KUBERNETES, VERSION, Object, Refused, by_kind, helm, objects_of, pods, render

REGION: Object = {"region": {"name": "us-east"}, "kafka": {"bootstrap": "hub-1:9092,hub-2:9092"}}
HUB: Object = {
    "region": {"enabled": False},
    "kafka": {"bootstrap": "hub-1:9092"},
    "hub": {"enabled": True, "regions": {"us-east": {"nodes": ["http://a:80"], "sync": "http://b"}, "eu-west": {}}},
}
KEPT = HUB | {"hub": HUB["hub"] | {"storageClass": "fast"}}
OURS = {"monitoring.coreos.com/v1"}
"""Kinds of others' operators, which Kubernetes' own schemas do not know."""


def merged(*parts: Object) -> Object:
    whole: Object = {}
    for part in parts:
        for key, value in part.items():
            old = whole.get(key)
            whole[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return whole


REDIS: dict[str, Object] = {
    "own redis": {},
    "own redis without replicas": {"redis": {"primaries": 5, "replicasEach": 0, "storageClass": "fast"}},
    "redis of somebody else": {"redis": {"own": False, "servers": ["10.0.0.1:6379", "cache.internal:6380"]}},
}
SCALE: dict[str, Object] = {
    "fixed": {"nodes": {"replicas": 2, "nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]}},
    "scaled": {"nodes": {"autoscaling": {"enabled": True, "min": 2, "max": 9, "cpuPercent": 70}}},
}
ROUND: dict[str, Object] = {
    "plain": {},
    "watched and closed": {
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "networkPolicy": {"callers": [{"namespaceSelector": {"matchLabels": {"team": "edge"}}}]},
        "image": {"digest": "sha256:" + "0" * 64, "pullSecrets": ["registry"]},
        "podAnnotations": {"example.com/owner": "limits"},
    },
    "open, by node port": {
        "networkPolicy": {"enabled": False},
        "nodes": {"service": {"type": "NodePort", "annotations": {"a": "b"}}},
        "redis": {"nodeSelector": {"disk": "ssd"}, "tolerations": [{"operator": "Exists"}]},
    },
}
COMBINATIONS = {
    " / ".join(names): merged(REGION, REDIS[names[0]], SCALE[names[1]], ROUND[names[2]])
    for names in itertools.product(REDIS, SCALE, ROUND)
} | {
    "hub": HUB,
    "hub that keeps": KEPT,
    "hub, watched": merged(HUB, ROUND["watched and closed"]),
    "both in one": merged(HUB, REGION, {"region": {"enabled": True}}),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_every_combination_gives_objects_that_kubernetes_takes(name: str, tmp_path: Path) -> None:
    objects = render(COMBINATIONS[name], tmp_path)
    assert objects
    for found in objects:
        if found["apiVersion"] not in OURS:
            kubernetes_validate.validate(found, VERSION, strict=True)
    _no_pod_may_more_than_it_must(objects)
    _every_reference_leads_somewhere(objects)


def _no_pod_may_more_than_it_must(objects: list[Object]) -> None:
    for name, pod in pods(objects):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True, name
        assert spec["securityContext"]["runAsUser"] > 0, name
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True, name
            assert security["allowPrivilegeEscalation"] is False, name
            assert security["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["limits"]["memory"], name
            assert container["resources"]["requests"]["cpu"], name


def _every_reference_leads_somewhere(objects: list[Object]) -> None:
    templates = [pod for _, pod in pods(objects)]

    def selects(labels: dict[str, str]) -> list[Object]:
        return [pod for pod in templates if labels.items() <= pod["metadata"]["labels"].items()]

    for name, service in by_kind(objects, "Service").items():
        (pod,) = selects(service["spec"]["selector"])
        ports = {port["name"] for container in pod["spec"]["containers"] for port in container["ports"]}
        assert {port.get("targetPort", port["name"]) for port in service["spec"]["ports"]} <= ports, name
    for kind in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
        for name, found in by_kind(objects, kind).items():
            assert len(selects(found["spec"]["selector"]["matchLabels"])) == 1, f"{kind} {name}"
    for name, policy in by_kind(objects, "NetworkPolicy").items():
        assert selects(policy["spec"]["podSelector"]["matchLabels"]), name
    for name, scaler in by_kind(objects, "HorizontalPodAutoscaler").items():
        target = by_kind(objects, "Deployment")[scaler["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"], f"{name}: both would set the number of nodes"
    maps = by_kind(objects, "ConfigMap")
    kept = by_kind(objects, "PersistentVolumeClaim")
    for name, pod in pods(objects):
        mounted = {mount["name"] for container in pod["spec"]["containers"] for mount in container["volumeMounts"]}
        given = {volume["name"] for volume in pod["spec"]["volumes"]}
        claims = {"data"} if "redis" in name else set()
        assert mounted == given | (mounted & claims), name
        for volume in pod["spec"]["volumes"]:
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps, name
            if "persistentVolumeClaim" in volume:
                assert volume["persistentVolumeClaim"]["claimName"] in kept, name


@pytest.mark.parametrize("values", [REGION, merged(REGION, REDIS["redis of somebody else"])], ids=["own", "others"])
def test_the_rendered_region_file_is_one_that_the_services_take(
    values: Object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = render(values, tmp_path)
    file = _with_secrets_in(tmp_path, by_kind(objects, "ConfigMap")["edge-region"]["data"]["region.toml"])
    node = by_kind(objects, "Deployment")["edge-node"]["spec"]["template"]["spec"]["containers"][0]
    monkeypatch.setenv("APPORTION_CHECK_API__NAME", "edge-node-7d9f8b6c5-x2x9z")
    monkeypatch.setenv("APPORTION_CHECK_API__ADDRESS", "http://10.1.2.3:8080")
    settings = load_region(file)
    assert settings.check_api.address_of(1) == "http://10.1.2.3:8080"
    assert settings.check_api.port(1) == node["ports"][0]["containerPort"]
    assert settings.sync.port == 8080
    assert settings.redis.username == "apportion"
    named = [variable["name"] for variable in node["env"]]
    assert named == ["APPORTION_CHECK_API__NAME", "POD_IP", "APPORTION_CHECK_API__ADDRESS"]


def test_the_rendered_hub_file_is_one_that_the_services_take(tmp_path: Path) -> None:
    text = by_kind(render(HUB, tmp_path), "ConfigMap")["edge-hub"]["data"]["hub.toml"]
    settings = load_hub(_with_secrets_in(tmp_path, text))
    assert set(settings.regions) == {"us-east", "eu-west"}
    assert settings.kafka.replication == 3


def _with_secrets_in(directory: Path, text: str) -> Path:
    secrets = directory / "secrets"
    secrets.mkdir()
    for name in ("token", "key_secret", "redis_password"):
        (secrets / name).write_text("a secret of 23 letters\n")
    file = directory / "settings.toml"
    file.write_text(text.replace("/run/secrets", str(secrets)))
    return file


def test_a_region_has_as_many_servers_as_its_cluster_is_made_of(tmp_path: Path) -> None:
    objects = render(merged(REGION, {"redis": {"primaries": 4, "replicasEach": 2}}), tmp_path)
    assert by_kind(objects, "StatefulSet")["edge-redis"]["spec"]["replicas"] == 12
    job = by_kind(objects, "Job")["edge-redis-form"]["spec"]["template"]["spec"]["containers"][0]
    variables = {variable["name"]: variable["value"] for variable in job["env"]}
    servers = variables["REDIS_SERVERS"].split()
    assert (len(servers), servers[0]) == (12, "edge-redis-0.edge-redis.apportion.svc:6379")
    told = tomllib.loads(by_kind(objects, "ConfigMap")["edge-region"]["data"]["region.toml"])
    assert told["redis"]["servers"] == servers


def test_the_control_api_keeps_its_files_where_a_storage_class_is_given(tmp_path: Path) -> None:
    objects = render(KEPT, tmp_path)
    (claim,) = by_kind(objects, "PersistentVolumeClaim").values()
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    control = by_kind(objects, "Deployment")["edge-control"]["spec"]
    assert _state_of(control) == {
        "name": "state",
        "persistentVolumeClaim": {"claimName": claim["metadata"]["name"]},
    }
    # One owner of the files: the old pod ends before the new one begins.
    assert (control["replicas"], control["strategy"]) == (1, {"type": "Recreate"})
    assert "emptyDir" in _state_of(by_kind(objects, "Deployment")["edge-dashboard"]["spec"])


def test_without_a_storage_class_the_hub_asks_for_no_disk(tmp_path: Path) -> None:
    objects = render(HUB, tmp_path)
    assert not by_kind(objects, "PersistentVolumeClaim")
    for name in ("edge-control", "edge-dashboard"):
        deployment = by_kind(objects, "Deployment")[name]["spec"]
        assert _state_of(deployment) == {"name": "state", "emptyDir": {"sizeLimit": "2Gi"}}
        assert "strategy" not in deployment


def _state_of(deployment: Object) -> Object:
    volumes: list[Object] = deployment["template"]["spec"]["volumes"]
    (state,) = [volume for volume in volumes if volume["name"] == "state"]
    return state


def test_no_secret_is_made_or_written_out(tmp_path: Path) -> None:
    for values in (REGION, HUB):
        objects = render(values, tmp_path)
        assert not by_kind(objects, "Secret")
        for _, pod in pods(objects):
            for container in pod["spec"]["containers"]:
                for variable in container.get("env", []):
                    assert "PASSWORD" not in variable["name"]
                    assert "TOKEN" not in variable["name"]


REFUSED: list[tuple[str, Object, str]] = [
    ("a region without a name", {"kafka": {"bootstrap": "a:1"}}, "region"),
    ("no kafka", {"region": {"name": "a"}}, "bootstrap"),
    ("servers of somebody else that are not said", merged(REGION, {"redis": {"own": False}}), "servers"),
    ("two primaries", merged(REGION, {"redis": {"primaries": 2}}), "primaries"),
    ("a misspelt field", merged(REGION, {"nodes": {"replica": 2}}), "replica"),
    ("a hub of no regions", merged(HUB, {"hub": {"regions": None}}), "regions"),
    ("brokers with a space", merged(REGION, {"kafka": {"bootstrap": "a:1, b:2"}}), "bootstrap"),
    ("a memory bound in words", merged(REGION, {"redis": {"maxmemory": "plenty"}}), "maxmemory"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "field"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_wrong_values_are_refused_by_the_name_of_their_field(values: Object, field: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=field):
        render(values, tmp_path)


def test_helm_finds_nothing_to_say(tmp_path: Path) -> None:
    said = helm("lint", "--strict", values=REGION, directory=tmp_path)
    assert "1 chart(s) linted, 0 chart(s) failed" in said


@pytest.mark.parametrize("overlay", sorted(path.name for path in (KUBERNETES / "regions").iterdir()))
def test_the_overlays_of_three_regions_and_a_hub_are_whole(overlay: str) -> None:
    tools = kubernetes_tools()
    folder = KUBERNETES / "regions" / overlay
    command = [str(tools.kubectl), "kustomize", "--enable-helm", "--helm-command", str(tools.helm), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    objects = objects_of(done.stdout)
    for found in objects:
        kubernetes_validate.validate(found, VERSION, strict=True)
        assert found["metadata"]["namespace"] == "apportion"
    parts: set[Any] = {pod["metadata"]["labels"]["app.kubernetes.io/component"] for _, pod in pods(objects)}
    assert parts == ({"control", "dashboard"} if overlay == "hub" else {"node", "sync", "redis", "redis-form"})


def test_the_chart_is_of_this_version() -> None:
    project = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text())["project"]
    chart = (CHART / "Chart.yaml").read_text()
    assert f"\nappVersion: {project['version']}\n" in chart
