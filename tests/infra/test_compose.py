"""The stack in containers, as far as it can be known without an engine: valid, pinned, watched, private."""

import copy
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from infra.servers import compose, jars, s3
from infra.servers.server import project
from tests.commands import sluice

file = project / "docker-compose.yml"
Compose = dict[str, Any]


@pytest.fixture(scope="module")
def stack() -> Compose:
    return dict(YAML(typ="safe").load(file.read_text()))


@pytest.mark.process
def test_it_is_what_the_compose_specification_allows() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_service_is_pinned_watched_and_private(stack: Compose) -> None:
    assert problems(stack) == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda services: services["kafka"].pop("healthcheck"), "kafka is not watched"),
        (lambda services: services["kafka"].update(image="apache/kafka:latest"), "kafka has no exact version"),
        (lambda services: services["kafka"].update(image="apache/kafka"), "kafka has no exact version"),
        (lambda services: services["s3"].update(ports=["7070:7070"]), "s3 is published beyond loopback"),
        (
            lambda services: services["s3"]["environment"].update(ROOT_SECRET_ACCESS_KEY="s3cret"),
            "s3 has a default for",
        ),
        (
            lambda services: services["postgres"]["environment"].update(POSTGRES_PASSWORD="${POSTGRES_PASSWORD:-x}"),
            "postgres has a default for POSTGRES_PASSWORD",
        ),
        (lambda services: services["postgres"].pop("volumes"), "postgres keeps nothing"),
        (lambda services: services["postgres"].update(volumes=["other:/data"]), "postgres uses a volume that is not"),
    ],
)
def test_what_would_be_wrong_is_noticed(stack: Compose, change: Callable[[Compose], None], problem: str) -> None:
    broken = copy.deepcopy(stack)
    change(broken["services"])
    found = problems(broken)
    assert len(found) == 1
    assert found[0].startswith(problem)


def dockerfile_of(service: Compose) -> str:
    return Path(project, service["build"]["dockerfile"]).read_text()


def built(stack: Compose) -> dict[str, Compose]:
    """The services of images that are built from this checkout."""
    return {name: service for name, service in stack["services"].items() if "build" in service}


def test_what_images_copy_is_there_and_each_has_a_user_of_its_own(stack: Compose) -> None:
    for name, service in built(stack).items():
        lines = dockerfile_of(service).splitlines()
        copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
        assert [path for path in copied if not (project / path).exists()] == [], name
        assert [line for line in lines if line.startswith("USER ")] == ["USER sluice"], name


def test_the_user_of_an_image_may_write_the_volumes_that_are_mounted(stack: Compose) -> None:
    for name, service in built(stack).items():
        owned = re.search(r"chown sluice ((?:/\S+ ?)+)", dockerfile_of(service))
        assert owned is not None, name
        mounted = [volume.split(":")[1] for volume in service.get("volumes", [])]
        # Docker makes a new volume with the owner that the folder has in the image.
        assert set(mounted) <= set(owned[1].split()), name


def test_the_commands_of_services_are_there(stack: Compose) -> None:
    commands = [
        command for service in built(stack).values() for command in (service.get("command"), healthcheck(service))
    ]
    asked = [command for command in commands if command]
    assert len(asked) >= 3
    for command in asked:
        match command:
            case ["sluice", *arguments]:
                words = [word for word in arguments if not word.startswith("-")]
                done = sluice(*words, "--help", here=Path())
                assert done.returncode == 0, command
                options = [word for word in arguments if word.startswith("--")]
                assert all(option in done.stdout for option in options), command
            case [_, "-m", module, *_]:
                assert find_spec(module), command
            case [python, "-c", code]:
                assert python.endswith("python")
                compile(code, "healthcheck", "exec")
            case _:
                pytest.fail(f"what is {command}?")


def healthcheck(service: Compose) -> list[str] | None:
    """The command that watches a service, where it is no line of a shell."""
    kind, *command = service.get("healthcheck", {}).get("test", ["NONE"])
    return command if kind == "CMD" else None


def test_it_has_the_versions_that_run_without_containers(stack: Compose) -> None:
    image = {name: service.get("image", "") for name, service in stack["services"].items()}
    module = (s3.module / "go.mod").read_text()
    assert image["kafka"] == f"apache/kafka:{of_package('kafka_2.13')}"
    assert image["connect"].endswith(f":{of_package('debezium-connector-postgres')}")
    assert image["s3"] == f"versity/versitygw:v{s3.version}"
    assert f"github.com/versity/versitygw v{s3.version} " in module
    assert {image[name].partition(":")[2] for name in image if name.startswith("spark")} == {version("pyspark")}


def test_passwords_are_made_once_for_their_owner_alone(tmp_path: Path, stack: Compose) -> None:
    path = tmp_path / ".env"
    path.write_text("KAFKA_PORT=19092")
    assert compose.write_environment(path) == list(compose.names)
    first = path.read_text()
    assert first.startswith("KAFKA_PORT=19092\n")
    assert len({line.partition("=")[2] for line in first.splitlines()}) == 1 + len(compose.names)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert compose.write_environment(path) == []
    assert path.read_text() == first
    assert set(re.findall(r"\$\{(\w+):\?", file.read_text())) == set(compose.names)


def problems(stack: Compose) -> list[str]:
    """What is wrong with each service, in words."""
    services: Compose = stack["services"]
    once = {
        name
        for service in services.values()
        for name, how in service.get("depends_on", {}).items()
        if how["condition"] == "service_completed_successfully"
    }
    found = []
    for name, service in services.items():
        if name not in once and "test" not in service.get("healthcheck", {}):
            found.append(f"{name} is not watched")
        found += [f"{name} has no exact version: {image}" for image in images(service) if not is_exact(image)]
        found += [
            f"{name} is published beyond loopback: {port}"
            for port in service.get("ports", [])
            if not str(port).startswith("127.0.0.1:")
        ]
        found += [
            f"{name} has a default for {variable}"
            for variable, value in service.get("environment", {}).items()
            if re.search("PASSWORD|SECRET|TOKEN", variable) and not re.fullmatch(r"\$\{\w+:\?[^}]+\}", str(value))
        ]
        volumes = [str(volume).partition(":")[0] for volume in service.get("volumes", [])]
        if not volumes and name not in without_data:
            found.append(f"{name} keeps nothing")
        found += [
            f"{name} uses a volume that is not declared: {volume}"
            for volume in volumes
            if volume not in stack["volumes"]
        ]
    return found


# Connect keeps what it knows in Kafka, and a master knows what its workers tell it.
without_data = {"connect", "spark-master"}


def images(service: Compose) -> list[str]:
    """The image of a service, or those from which it is built."""
    if "image" in service:
        return [service["image"]]
    dockerfile = project / service["build"]["context"] / service["build"]["dockerfile"]
    text = dockerfile.read_text()
    defaults = {f"${{{name}}}": default for name, default in re.findall(r"^ARG (\w+)=(\S+)", text, re.MULTILINE)}
    return [defaults.get(base, base) for base in re.findall(r"^FROM (\S+)", text, re.MULTILINE)]


def is_exact(image: str) -> bool:
    """Whether its tag has at least two numbers of a version."""
    return re.search(r":v?\d+\.\d+[\w.-]*$", image) is not None


def of_package(artifact: str) -> str:
    """The version of a package of the jars."""
    return next(package.split(":")[2] for package in jars.packages if package.split(":")[1] == artifact)
