#!/usr/bin/env python3
"""A second world for veyra-sandboxd, written from the documents alone.

It plays everything that the daemon talks to: the control plane, the git host
with its REST interface, and an OpenAI-compatible model. It shares no line with
the daemon or its own fakes, so a rule that both of those misread shows here.
Needs python 3.11, git and openssl; the daemon needs what its policy needs.

    python3 tools/foreign/world.py --daemon bin/veyra-sandboxd --policy strict

One line a scenario (`ok` or `FAIL why`), then `N passed, N failed`; exit 0
only when nothing failed. Everything lives in one temporary directory.
"""
import argparse
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from forge import Forge
from model import Model
from plane import Job, Plane
from reviews import REVIEWS, reviewing_ends
from scenarios import SCENARIOS, SLOW, connecting, ending, pairing, qualification, wait
from web import Trap


class World:
    """Everything together: servers, one daemon, and what went wrong so far."""

    def __init__(self, options):
        self.options, self.policy, self.role = options, options.policy, options.role
        self.root = tempfile.mkdtemp(prefix="foreign-world-")
        self.violations, self.counter = [], 0
        self.trap = Trap()
        self.plane = Plane(self)
        forge_root = os.path.join(self.root, "forge")
        os.makedirs(forge_root)
        self.forge, self.model = Forge(self, forge_root), Model(self)
        self.state = os.path.join(self.root, "state")
        self.log_path = os.path.join(self.root, "daemon.log")
        self.port, self.admin = free_port(), free_port()
        self.env = {
            "PATH": os.environ["PATH"], "VEYRA_CONTROL_PLANE": self.plane.origin, "VEYRA_GIT_ORIGINS": self.forge.origin,
            "GITHUB_API_URL": self.forge.api, "AI_BASE_URL": self.model.base_url, "AI_MODEL": self.model.name,
            "AI_API_KEY": self.model.key, "AI_PROVIDER": "foreign", "RUNTIME_BIND_HOST": "127.0.0.1",
            "RUNTIME_PORT": str(self.port), "RUNTIME_PUBLIC_HOST": "127.0.0.1", "RUNTIME_PUBLIC_PORT": str(self.port),
            "VEYRA_SANDBOX_RUNTIME": os.environ.get("VEYRA_SANDBOX_RUNTIME", "runc"),  # auto is the strongest: slower
            "VEYRA_HEARTBEAT_SECONDS": "2", "VEYRA_RUNTIME_ROLE": self.role, "VEYRA_ADMIN_ADDR": f"127.0.0.1:{self.admin}"}
        if cache := os.environ.get("VEYRA_CACHE_DIR"):  # where this host keeps its images, when elsewhere
            self.env["VEYRA_CACHE_DIR"] = cache
        self.daemon = None

    def violation(self, text):
        self.violations.append(text)

    def secrets(self):
        tokens = [t for job in self.plane.jobs.values() for t in job.secrets()]
        return [s for s in (self.model.key, self.plane.credential, *tokens) if s]

    def start(self):
        log = open(self.log_path, "ab")
        self.daemon = subprocess.Popen([self.options.daemon, "--policy", self.policy, "--state-dir", self.state],
                                       env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        log.close()
        wait(lambda: self.health() is not None or self.daemon.poll() is not None, 60, "the public listener")
        assert self.daemon.poll() is None, f"the daemon ended with {self.daemon.returncode}: {self.tail()}"

    def stop(self):
        if self.daemon and self.daemon.poll() is None:
            self.daemon.send_signal(signal.SIGTERM)
            try:
                self.daemon.wait(240)
            except subprocess.TimeoutExpired:
                self.daemon.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.daemon.wait(80)
                if self.daemon.poll() is None:
                    self.daemon.kill()
                    self.daemon.wait()
                raise AssertionError("SIGTERM did not end the idle daemon within 240 s") from None
        return self.daemon.returncode if self.daemon else 0

    def tail(self, lines=15):
        with open(self.log_path, encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-lines:])

    def health(self):
        try:
            return json.loads(self.call("GET", "/veyra/health")[1])
        except (OSError, ValueError, http.client.HTTPException):
            return None

    def call(self, method, path, body=None, connection=None, port=None):
        connection = connection or http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=120)
        headers = {"User-Agent": "Veyra-Control-Plane/1", "Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def job(self, files, script, **options):
        """Fund one job, deliver it, and wait for the accepted result."""
        job = self.make(files, script, **options)
        self.run(job)
        return job

    def make(self, files, script, **options):
        self.counter += 1
        job = Job(self.counter, self, files, script, **options)
        self.forge.seed(job.full_name, files)
        return self.fund(job)

    def fund(self, job):
        with self.plane.lock:
            self.plane.jobs[job.number] = job
        return job

    def run(self, job, timeout=480):
        self.deliver(job)
        if not job.done.wait(timeout):
            raise AssertionError(f"no accepted result within {timeout} s; phases {job.phases[-3:]}, "
                                 f"{len(job.submissions)} submissions, beat {self.plane.beat.get('message')!r}")

    def deliver(self, job):
        with self.plane.lock:
            self.plane.job = job


def free_port():
    """A port below those that the kernel gives to connections: one of them might take it meanwhile."""
    for port in random.sample(range(30_000, 32_700), 1000):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def perform(world, name, scenario):
    """Run one scenario; what the daemon did wrong meanwhile fails it as well."""
    before, start = len(world.violations), time.monotonic()
    try:
        scenario(world)
        why = ""
    except Exception as error:  # each scenario is judged by itself
        why = f"{type(error).__name__}: {error}" if not isinstance(error, AssertionError) else str(error)
    world.deliver(None)
    new = list(dict.fromkeys(world.violations[before:]))[:5]
    why = "; ".join(filter(None, [why, *new])).replace("\n", " | ")[:3000]
    print(f"FAIL {name}: {why}" if why else f"ok   {name} ({time.monotonic() - start:.1f} s)", flush=True)
    return not why


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--daemon", required=True, help="the built veyra-sandboxd")
    parser.add_argument("--policy", default="strict")
    parser.add_argument("--role", default="WORKER", choices=("WORKER", "VERIFIER"))
    parser.add_argument("--only", default="", help="a regular expression; pairing, qualification and the end always run")
    parser.add_argument("--slow", action="store_true", help="also what waits for more than half a minute")
    parser.add_argument("--keep", action="store_true", help="leave the temporary directory")
    options = parser.parse_args()
    options.daemon = os.path.abspath(options.daemon)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds through the clean-up below
    world, passed, failed = World(options), 0, 0
    try:
        world.start()
        for name, scenario in SCENARIOS if options.role == "WORKER" else REVIEWS:
            needed = scenario in (connecting, pairing, qualification, ending, reviewing_ends)
            if scenario in SLOW and not options.slow or not (needed or re.search(options.only, name)):
                continue
            good = perform(world, name, scenario)
            passed, failed = passed + good, failed + (not good)
            if not good and scenario in (pairing, qualification) or world.daemon.poll() is not None and scenario not in (ending, reviewing_ends):
                print("the rest can't run:\n" + world.tail(30), file=sys.stderr)
                break
    finally:
        with contextlib.suppress(AssertionError):
            world.stop()
        if options.keep or failed:
            print("log of the daemon, last lines:\n" + world.tail(30), file=sys.stderr)
        if options.keep:
            print("kept: " + world.root, file=sys.stderr)
        else:
            shutil.rmtree(world.root, ignore_errors=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
